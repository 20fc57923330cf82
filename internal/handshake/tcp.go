package handshake

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds how long sent data may stay unacknowledged
// (TCP_USER_TIMEOUT, tcp(7)). If the kernel refuses, its own longer limit stays.
func setUserTimeout(c *net.TCPConn, d time.Duration) {
	control(c, func(fd int) {
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// dialer returns what dials with a time-out. Its connections, open or closed, keep nobody from
// listening on their port (SO_REUSEADDR in socket(7), which Go's listeners set too): the kernel may
// pick the port at which rank 0 is yet to listen, even for a rank that dials that port.
func dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		})
	}}
}

// tcpClose is the state TCP_CLOSE in tcpi_state (Linux, include/net/tcp_states.h): the other end
// has reset the connection, or the kernel has given it up.
const tcpClose = 7

// unacknowledged reports whether the kernel still sends what was written to c (SIOCOUTQ in tcp(7)).
// It counts for ever what was left when a connection was reset.
func unacknowledged(c *net.TCPConn) (sending bool) {
	control(c, func(fd int) {
		left, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
		if err != nil || left == 0 {
			return
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		sending = err == nil && info.State != tcpClose
	})
	return sending
}

// resent returns how many bytes the other end's kernel has acknowledged, and whether this one sends again what
// that has not (TCP_INFO in tcp(7)).
func resent(c *net.TCPConn) (acknowledged uint64, resending bool) {
	control(c, func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.State != tcpClose {
			acknowledged, resending = info.Bytes_acked, info.Unacked > 0 && info.Retransmits > 0
		}
	})
	return acknowledged, resending
}

// dialled reports whether a dialer waits for ln to accept it: accepting fails for lack of
// descriptors even if nobody dials. It is true where that cannot be found out.
func dialled(ln net.Listener) bool {
	waits := true
	if conn, ok := ln.(syscall.Conn); ok {
		control(conn, func(fd int) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			waits = err != nil || n > 0
		})
	}
	return waits
}

// control calls f with the descriptor of a socket, unless that is closed.
func control(c syscall.Conn, f func(fd int)) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
