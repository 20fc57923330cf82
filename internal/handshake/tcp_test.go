package handshake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Both ends of a connection have the same timeouts.
func TestWatch(t *testing.T) {
	m := New(with(func(o *Options) { o.Silence = 10 * time.Second }))
	near, far := pair(t)
	go m.Client(t.Context(), near, testClaim)
	if _, err := m.Server(far, func(net.Conn, []byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]net.Conn{"dialed": near, "accepted": far} {
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 10_000, unix.TCP_KEEPIDLE: 2, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 4} {
			raw.Control(func(fd uintptr) {
				if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
					t.Errorf("%s: option %#x is %d (%v), want %d", name, option, got, err, want)
				}
			})
		}
	}
}

// TestListenWhereDialed checks that a rendezvous can listen on the port of a connection that was dialed from there, open or
// closed. The kernel takes any free port for a dial, and so may take the port of a group whose rank 0 is yet to come. It may
// also give the port to another process's connection, so one of several must do.
func TestListenWhereDialed(t *testing.T) {
	m := New(testOptions)
	acc, _ := echo(t, m)
	listens := func() error {
		conn, err := m.Dial(t.Context(), acc.Addr().String(), testClaim)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for _, when := range []string{"open", "closed"} {
			ln, err := net.Listen("tcp", conn.LocalAddr().String())
			if err != nil {
				return fmt.Errorf("%s: %w", when, err)
			}
			ln.Close()
			conn.Close() // before the other end does, so that the kernel keeps its port (TIME_WAIT)
		}
		return nil
	}
	var errs []error
	for range 5 {
		err := listens()
		if err == nil {
			return
		}
		errs = append(errs, err)
	}
	t.Fatal(errs)
}

// TestAcknowledged writes what the other end does not read, until its kernel takes no more: that
// is not acknowledged, and is given up when the other end resets the connection.
func TestAcknowledged(t *testing.T) {
	near, far := pair(t)
	if _, err := near.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	await := func(what string, want bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); Acknowledged(near) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: acknowledged is %v", what, !want)
			}
		}
	}
	await("read by the kernel", true)
	near.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for data, err := make([]byte, 1<<20), error(nil); err == nil; {
		_, err = near.Write(data)
	}
	if Acknowledged(near) {
		t.Error("what the other end has no room for is acknowledged")
	}
	far.(*net.TCPConn).SetLinger(0)
	far.Close() // by a reset
	await("after a reset", true)
}

// TestDialDeadline dials where nobody answers until the context's deadline passes: whoever gets the error finds
// the context over.
func TestDialDeadline(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for { // until the kernel has no room for one more to accept, and drops what dials
		c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			break
		}
		defer c.Close()
	}
	m := New(testOptions)
	for range 500 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := m.Dial(ctx, addr, testClaim)
		over := ctx.Err()
		cancel()
		if err == nil || over == nil {
			t.Fatalf("dialling ended with %v, and the context with %v", err, over)
		}
	}
}
