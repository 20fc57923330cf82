package capi

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
)

// readSignals delivers the signals whose numbers are read from a descriptor, a byte each, until stop is
// called. It delivers none if the descriptor is negative. The descriptor is the caller's: it is neither
// closed nor made not to block, which would concern the caller too.
func readSignals(from int) (signals <-chan os.Signal, stop func(), err error) {
	const op = "read signals"
	c := make(chan os.Signal)
	if from < 0 {
		return c, func() {}, nil
	}
	if _, err := unix.FcntlInt(uintptr(from), unix.F_GETFD, 0); err != nil {
		return nil, nil, invalid(op, "the descriptor %d: %v", from, err)
	}
	var ends [2]int // of a pipe that tells the goroutine to end
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrSystem, "mscclgo: "+op, "make a pipe: %w", err)
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			number, ok := nextByte(from, ends[0])
			if !ok {
				return
			}
			select {
			case c <- syscall.Signal(number):
			case <-stopped:
				return
			}
		}
	}()
	return c, func() {
		close(stopped)
		unix.Close(ends[1])
		<-done
		unix.Close(ends[0])
	}, nil
}

// nextByte reads a byte, unless there are no more or the other descriptor has an event first.
func nextByte(from, other int) (b byte, ok bool) {
	for {
		ready := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}, {Fd: int32(other), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err == unix.EINTR {
			continue
		} else if err != nil || ready[1].Revents != 0 {
			return 0, false
		}
		var one [1]byte
		n, err := unix.Read(from, one[:])
		if n == 1 {
			return one[0], true
		}
		if err != unix.EINTR && err != unix.EAGAIN {
			return 0, false
		}
	}
}
