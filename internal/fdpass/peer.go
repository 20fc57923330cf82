package fdpass

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// credentials returns what the kernel noted of the other end when that connected or began to listen
// (SO_PEERCRED, unix(7)).
func credentials(conn *net.UnixConn) (cred *syscall.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, os.NewSyscallError("getsockopt", credErr)
}

// Process returns the process at the other end of conn, or 0 if it is unknown, as in another pid namespace.
func Process(conn *net.UnixConn) int {
	cred, err := credentials(conn)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// sameUser checks that the other end of conn runs as this process's user, and
// reports whether it is this very process. A process number of another namespace is
// translated, so ours is never another's.
func sameUser(conn *net.UnixConn) (sameProcess bool, err error) {
	cred, err := credentials(conn)
	if err != nil {
		return false, err
	}
	if me := os.Geteuid(); int(cred.Uid) != me {
		return false, fmt.Errorf("the other end is process %d of user %d, this one is of user %d", cred.Pid, cred.Uid, me)
	}
	return int(cred.Pid) == os.Getpid(), nil
}
