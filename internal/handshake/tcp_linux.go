package handshake

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds how long sent data may stay unacknowledged
// (TCP_USER_TIMEOUT, tcp(7)). If the kernel refuses, its own longer limit stays.
func setUserTimeout(c *net.TCPConn, d time.Duration) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
}

// tcpClose is the state TCP_CLOSE in tcpi_state (Linux, include/net/tcp_states.h): the other end
// has reset the connection, or the kernel has given it up.
const tcpClose = 7

// unacknowledged reports whether the kernel still sends what was written to c (SIOCOUTQ in tcp(7)).
// It counts for ever what was left when a connection was reset.
func unacknowledged(c *net.TCPConn) (sending bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
		if err != nil || left == 0 {
			return
		}
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		sending = err == nil && info.State != tcpClose
	})
	return sending
}
