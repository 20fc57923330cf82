package fdpass

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// sameUser checks that the other end of conn runs as this process's user, and
// reports whether it is this very process. The kernel noted both when the other
// end connected or began to listen (SO_PEERCRED, unix(7)); a process number of
// another namespace is translated, so ours is never another's.
func sameUser(conn *net.UnixConn) (sameProcess bool, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return false, err
	}
	if credErr != nil {
		return false, os.NewSyscallError("getsockopt", credErr)
	}
	if me := os.Geteuid(); int(cred.Uid) != me {
		return false, fmt.Errorf("the other end is process %d of user %d, this one is of user %d", cred.Pid, cred.Uid, me)
	}
	return int(cred.Pid) == os.Getpid(), nil
}
