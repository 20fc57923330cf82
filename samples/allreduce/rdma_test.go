package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// startNodes starts the sample's ranks on this machine as on nodes that have but
// RDMA between them, each node with a device of its own; make test-rdma has some.
func startNodes(s *testproc.Scene, perNode []int, port string, env []string, args ...string) (all []*testproc.Process) {
	s.T.Helper()
	names := os.Getenv("MSCCLGO_TEST_IB_DEVICES")
	if names == "" {
		s.T.Skip("MSCCLGO_TEST_IB_DEVICES does not name RDMA devices to test with")
	}
	devices := strings.Split(names, ",")
	for _, p := range testproc.Places(perNode...) {
		env := append([]string{
			"MASTER_ADDR=127.0.0.1", bootstrap.EnvPort + "=" + port, bootstrap.EnvSecret + "=of " + s.T.Name(),
			"MSCCLGO_CACHE=" + os.Getenv("MSCCLGO_CACHE"), "MSCCLGO_TRANSPORTS=cudaipc,infiniband",
			fmt.Sprintf("%s=node %d", hostid.Env, p.Host), ib.EnvDevice + "=" + devices[p.Host%len(devices)],
		}, append(p.Env, env...)...)
		all = append(all, s.Run(exec.CommandContext(s.T.Context(), testProgram(s.T), args...), env))
	}
	return all
}

func TestNodes(t *testing.T) {
	for i, c := range []struct {
		perNode []int
		env     []string
		args    []string
		sizes   int
	}{
		{[]int{2, 2}, nil, []string{"-max", "65536"}, 3},
		{[]int{1, 1}, []string{"MSCCLGO_IB_NO_ATOMICS=1"}, []string{"-max", "1048576", "-inplace"}, 5},
	} {
		t.Run(fmt.Sprint(c.perNode, c.env), func(t *testing.T) {
			// Few threads, as in an emulated machine all of them spin on two CPUs; and
			// the kernels that scripts/test-rdma has compiled.
			args := append([]string{"-min", "4096", "-warmup", "0", "-iters", "1", "-blocks", "1", "-threads", "32"}, c.args...)
			finish(t, startNodes(testproc.New(t), c.perNode, fmt.Sprint(20100+i), c.env, args...), "auto", c.sizes)
		})
	}
}

// TestRankOnOtherNodeKilled kills a rank in the middle of a run.
func TestRankOnOtherNodeKilled(t *testing.T) {
	s := testproc.New(t)
	all := startNodes(s, []int{1, 1}, "20110", nil, append(endless, "-blocks", "1", "-threads", "32")...)
	begun(all)
	testerr.Check(t, all[1].Cmd.Process.Kill())
	allFail(t, all, map[int]int{0: 1})
}
