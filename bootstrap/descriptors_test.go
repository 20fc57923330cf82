package bootstrap

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/mscclgo/mscclgo/internal/handshake"
)

// With 512 descriptors, in a process of its own, silent strangers at the rendezvous and at
// the ranks keep no member out, and descriptors are left for other things.
func TestStrangersAndFewDescriptors(t *testing.T) {
	const childEnv = "BOOTSTRAP_TEST_STRANGERS"
	if os.Getenv(childEnv) == "" {
		child := exec.Command(os.Args[0], "-test.run=^TestStrangersAndFewDescriptors$", "-test.v")
		child.Env = append(os.Environ(), childEnv+"=1")
		if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "with few descriptors") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	few := syscall.Rlimit{Cur: 512, Max: 512}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Log("with few descriptors")
	r := rendezvous(t, quiet)
	// The strangers' ends are in this process too: half the descriptors are theirs.
	strangers := func(addr string) {
		for range 60 {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
	}
	strangers(r.ID().Addr())
	ctx := testContext(t)
	opts := make([]Options, 3)
	for i := range opts {
		opts[i] = Options{Rank: i, Size: 3, ID: r.ID()}
	}
	bs, errs := connectAll(ctx, opts)
	defer closeAll(bs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, b := range bs {
		strangers(b.acc.Addr().String())
	}
	each(t, bs, func(b *Bootstrap) error {
		if err := b.Send(ctx, (b.Rank()+1)%3, 1, nil); err != nil { // dials
			return err
		}
		return b.Barrier(ctx)
	})
	entries, err := os.ReadDir("/proc/self/fd")
	if most := 4*60 + 4*512/16 + 40; err != nil || len(entries) > most {
		t.Errorf("%d descriptors are in use, want at most %d: %v", len(entries), most, err)
	}
	if handshake.MaxHalfOpen <= 512/16 {
		t.Error("the test shows nothing")
	}
}
