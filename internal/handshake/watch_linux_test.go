package handshake

import (
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
