package main

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// inflict does a fault from outside to the victim, and returns when, or 0. The choices that
// are left are made from the run's seed.
func (r *run) inflict(victim, mate *process) int64 {
	if !r.fault.outside {
		return 0
	}
	random := rand.New(rand.NewPCG(r.Seed, 11))
	select {
	case <-time.After(r.delay):
	case <-victim.done:
	}
	pid := victim.cmd.Process.Pid
	if r.lab != nil {
		peers := 1
		if r.Victim == 0 { // all others come to its host
			peers = r.ranks - 1
			if r.fault.pairs { // one is there
				peers--
			}
		}
		awaitJoin(pid, peers, victim.done)
	}
	if r.fault.name == twoFaults {
		r.stopMate(mate, random)
	}
	began := time.Now().UnixNano()
	signal := func(s syscall.Signal) { victim.cmd.Process.Signal(s) } // fails if it has ended
	switch r.fault.name {
	case "stopped", "continued late":
		signal(syscall.SIGSTOP)
	case "continued":
		signal(syscall.SIGSTOP)
		time.Sleep(r.Heartbeat / 2)
		signal(syscall.SIGCONT)
	case mtusDiffer:
		r.hostOf(r.Victim).Narrow(narrowMTU)
	case "host silent", pairSilent:
		r.hostOf(r.Victim).Mute()
	case "link down":
		r.hostOf(r.Victim).Unplug()
	case "socket cut", "sockets cut":
		if n := cut(pid, random, r.fault.name == "socket cut"); n == 0 {
			return 0
		}
	case "no descriptors":
		// Fewer than it has, or a few more.
		n := uint64(3 + random.IntN(len(descriptors(strconv.Itoa(pid)))+8))
		unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil)
	case "no memory":
		n := addressSpace(pid) + random.Uint64N(64<<20)
		unix.Prlimit(pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: n, Max: n}, nil)
	case childLives:
		r.release = keepSockets(pid)
		signal(syscall.SIGKILL)
	default:
		signal(syscall.SIGKILL)
	}
	return began
}

// awaitJoin returns when a process's host has had TCP connections to so many peers for a moment:
// before, the others cannot know that it is there, nor find it.
func awaitJoin(pid, peers int, done <-chan struct{}) {
	const established, moment = "01", 50 * time.Millisecond
	for joined := false; !joined; {
		n := 0
		lines("/proc/"+strconv.Itoa(pid)+"/net/tcp", func(f []string) {
			if len(f) > 3 && f[3] == established && host(f[1]) != host(f[2]) {
				n++
			}
		})
		joined = n >= peers
		select {
		case <-done:
			return
		case <-time.After(moment):
		}
	}
}

// host returns the host of an address in /proc/net/tcp.
func host(address string) string {
	host, _, _ := strings.Cut(address, ":")
	return host
}

// cut shuts down the TCP sockets of a process that are connected, or one of them, as if the
// connection broke, and returns how many.
func cut(pid int, random *rand.Rand, one bool) (done int) {
	var all []int
	eachSocket(pid, func(fd int) bool {
		all = append(all, fd)
		return true
	})
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, fd := range all {
		if one && done > 0 {
			// It stays.
		} else if _, err := unix.Getpeername(fd); err == nil && isTCP(fd) && unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
			done++
		}
		unix.Close(fd)
	}
	return done
}

func isTCP(fd int) bool {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && protocol == unix.IPPROTO_TCP
}

// addressSpace returns the bytes of a process's address space.
func addressSpace(pid int) uint64 {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	pages, _, _ := strings.Cut(string(text), " ")
	n, _ := strconv.ParseUint(pages, 10, 64)
	return n * uint64(os.Getpagesize())
}

// fullDisk makes a folder on a file system that is full after 64 KiB. It needs root.
func fullDisk(dir string) (undo func(), err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		os.Remove(dir)
		return nil, err
	}
	return func() {
		unix.Unmount(dir, unix.MNT_DETACH)
		os.Remove(dir)
	}, nil
}
