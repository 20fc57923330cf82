package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
)

// More faults that kill the victim.
const (
	// childLives is of a victim whose sockets stay open, as a child that it has forked keeps them.
	childLives = "child lives"
	// killedEarly is of a victim that is killed about when the group forms, with no launcher that knows of it:
	// rank 0 opens the rendezvous. One that had not come to it is known to nobody until the time to connect is up.
	killedEarly = "killed early"
)

// early returns when the victim of killedEarly is killed.
func early(random *rand.Rand) time.Duration {
	return 100*time.Millisecond + time.Duration(random.Int64N(int64(200*time.Millisecond)))
}

// connecting is how long ranks wait for one that does not come, and some time to end.
const connecting = 70 * time.Second

// neverCame reports whether a rank's time to connect was up and it does not know of the victim.
func neverCame(end *report) bool {
	return end.Kind == mscclgo.ErrTimeout.Error() && (strings.Contains(end.Text, "did not come") || strings.Contains(end.Text, "nobody answers"))
}

// keepSockets keeps the sockets of a process open until release is called.
func keepSockets(pid int) (release func()) {
	var kept []int
	eachSocket(pid, func(fd int) bool {
		kept = append(kept, fd)
		return true
	})
	return func() {
		for _, fd := range kept {
			unix.Close(fd)
		}
	}
}

// eachSocket calls f with a descriptor of each socket of a process, in any order, until it returns false. f closes it.
func eachSocket(pid int, f func(fd int) bool) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(process)
	names, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, name := range names {
		target, err := os.Readlink(name)
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		n, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if fd, err := unix.PidfdGetfd(process, n, 0); err == nil && !f(fd) {
			return
		}
	}
}
