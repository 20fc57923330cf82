// Package procfs says what Linux tells of processes in /proc.
package procfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stopped reports whether a process is stopped by a signal. One that a debugger holds is
// not: it goes on in a moment. Nor is one that has ended.
func Stopped(process int) bool { return state(process) == 'T' }

// Runs reports whether a process is there and is not stopped, not by a debugger either. It may
// wait for a CPU.
func Runs(process int) bool { return bytes.IndexByte([]byte("RSDI"), state(process)) >= 0 }

// Ended reports whether a process has ended, also where it waits for whoever started it to learn of
// that. It needs no descriptor for one that is not there.
func Ended(process int) bool {
	return unix.Kill(process, 0) == unix.ESRCH || bytes.IndexByte([]byte("ZX"), state(process)) >= 0
}

// state returns the letter of a process's state, as in proc(5), or 0 for one that is not there.
func state(process int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	if err != nil {
		return 0
	}
	// The command's name is in parentheses and may hold any.
	_, state, ok := bytes.Cut(b[max(bytes.LastIndexByte(b, ')'), 0):], []byte(") "))
	if !ok || len(state) == 0 {
		return 0
	}
	return state[0]
}

// maxChain bounds the processes that StoppedIn follows.
const maxChain = 8

// StoppedIn is Stopped for a process that may be a shell that runs the program. While a
// process of one thread waits for the end of its only child, it counts as stopped if the
// child is. which is the process that is stopped.
func StoppedIn(process int) (which int, stopped bool) {
	for range maxChain {
		if Stopped(process) {
			return process, true
		}
		child, ok := awaited(process)
		if !ok {
			return 0, false
		}
		process = child
	}
	return 0, false
}

// awaited returns the only child of a process of one thread, if it waits for its end.
func awaited(process int) (child int, ok bool) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", process))
	if err != nil || len(tasks) != 1 {
		return 0, false
	}
	dir := fmt.Sprintf("/proc/%d", process)
	// The number of the system call that it is in; not to be read of another user's.
	call, err := os.ReadFile(filepath.Join(dir, "syscall"))
	if err != nil {
		return 0, false
	}
	number, _, _ := strings.Cut(string(call), " ")
	if n, err := strconv.Atoi(number); err != nil || n != unix.SYS_WAIT4 && n != unix.SYS_WAITID {
		return 0, false
	}
	children, err := os.ReadFile(filepath.Join(dir, "task", tasks[0].Name(), "children"))
	if err != nil {
		return 0, false
	}
	names := strings.Fields(string(children))
	if len(names) != 1 {
		return 0, false
	}
	child, err = strconv.Atoi(names[0])
	return child, err == nil
}

// Namespace returns the inode of this process's pid namespace, by which process ids count, or 0 if it is unknown.
func Namespace() uint64 {
	var stat unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &stat) != nil {
		return 0
	}
	return stat.Ino
}
