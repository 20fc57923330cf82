package handshake

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// dialled reports whether a dialer waits for ln to accept it: accepting fails for lack of
// descriptors even if nobody dials. It is true where that cannot be found out.
func dialled(ln net.Listener) bool {
	conn, ok := ln.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	waits := true
	raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		waits = err != nil || n > 0
	})
	return waits
}
