package handshake

import (
	"errors"
	"syscall"
)

// Shortage reports whether an error of a call says that this process or its system has run
// out of descriptors or memory, which is no fault of the peer's.
func Shortage(err error) bool {
	for _, lack := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}
