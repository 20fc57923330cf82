package ethernet

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

// TestConnectWithoutDescriptors has a rank that cannot open a socket: the peer is not to
// blame.
func TestConnectWithoutDescriptors(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	remote := testlink.Marshal(t, b.e)
	var limit syscall.Rlimit
	testerr.Check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 3
	testerr.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	_, err := a.e.connect(t.Context(), remote)
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, mscclgo.ErrSystem) || !errors.Is(err, syscall.EMFILE) {
		t.Errorf("%v, want an ErrSystem: too many open files", err)
	}
}

// starved is a listener that finds no descriptor for a dialer until it is closed.
type starved struct {
	net.Listener
	closed atomic.Bool
}

func (s *starved) Accept() (net.Conn, error) {
	if s.closed.Load() {
		return nil, net.ErrClosed
	}
	return nil, os.NewSyscallError("accept4", syscall.EMFILE)
}

func (s *starved) Close() error {
	s.closed.Store(true)
	return s.Listener.Close()
}

// TestAcceptWithoutDescriptors has a rank wait for a peer that it cannot accept: it says so,
// long before its time is up.
func TestAcceptWithoutDescriptors(t *testing.T) {
	o := loopback()
	o.Timeout = time.Second
	a, b := newRank(t, 0, loopback()), newRank(t, 1, o)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testerr.Check(t, err)
	b.t.acceptor.Add(&starved{Listener: ln})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = b.e.connect(ctx, testlink.Marshal(t, a.e)) // a does not dial
	if !errors.Is(err, mscclgo.ErrSystem) || !errors.Is(err, syscall.EMFILE) {
		t.Errorf("%v, want an ErrSystem: too many open files", err)
	}
}
