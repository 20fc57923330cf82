package handshake

import (
	"errors"
	"math"
	"os"
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

// DescriptorLimit returns how many descriptors this process may have open.
func DescriptorLimit() int {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return math.MaxInt32
	}
	return int(min(r.Cur, math.MaxInt32))
}

// Descriptors returns how many it has open, or 0 where that cannot be found out.
func Descriptors() int {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(open) - 1 // without the folder's
}
