package netlab

import (
	"os"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// Start starts the test's program, as [testproc.Main]'s main, as the ranks of a group, so many
// on each host.
func (l *Lab) Start(s *testproc.Scene, perHost []int, args ...string) (all []*testproc.Process) {
	s.T.Helper()
	program, err := os.Executable()
	if err != nil {
		s.T.Fatal(err)
	}
	for _, p := range testproc.Places(perHost...) {
		all = append(all, s.Run(l.Hosts[p.Host].Command(s.T.Context(), program, args...), append(l.Env(), p.Env...)))
	}
	return all
}

// Env returns the variables of all ranks of a group that meets on the first host. Kernels come
// from the user's cache: where the hosts are in an emulated machine, compiling takes minutes.
func (l *Lab) Env() []string {
	return []string{
		"MASTER_ADDR=" + l.Hosts[0].Address, bootstrap.EnvPort + "=20000", bootstrap.EnvSecret + "=of " + l.t.Name(),
		"MSCCLGO_CACHE=" + os.Getenv("MSCCLGO_CACHE"),
	}
}
