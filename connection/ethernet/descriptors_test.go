package ethernet

import (
	"errors"
	"syscall"
	"testing"

	"github.com/mscclgo/mscclgo"
)

// TestConnectWithoutDescriptors has a rank that cannot open a socket: the peer is not to
// blame.
func TestConnectWithoutDescriptors(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	remote := marshal(t, b.e)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := a.e.connect(t.Context(), remote)
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, mscclgo.ErrSystem) || !errors.Is(err, syscall.EMFILE) {
		t.Errorf("%v, want an ErrSystem: too many open files", err)
	}
}
