package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// bind binds this process to one of the CPUs that it may run on, as taskset does, by a number. It returns what
// lists the threads that are bound to others later.
func bind(number int) (astray func() []string, err error) {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return nil, err
	}
	cpu := 0
	for left := number % may.Count(); ; cpu++ {
		if may.IsSet(cpu) {
			if left == 0 {
				break
			}
			left--
		}
	}
	one.Set(cpu)
	for range 2 { // a thread may have been started meanwhile by one that was not bound yet
		for _, thread := range threads() {
			_ = unix.SchedSetaffinity(thread, &one) // it may have ended
		}
	}
	return func() (all []string) {
		for _, thread := range threads() {
			var now unix.CPUSet
			if err := unix.SchedGetaffinity(thread, &now); err == nil && now != one {
				all = append(all, fmt.Sprintf("thread %d may run on %d CPUs, and the process on CPU %d", thread, now.Count(), cpu))
			}
		}
		return all
	}, nil
}

// threads returns the threads of this process.
func threads() (all []int) {
	names, _ := filepath.Glob("/proc/self/task/*")
	for _, name := range names {
		if n, err := strconv.Atoi(filepath.Base(name)); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// bound binds the rank in a run of that name, and has it look for threads that are not.
func (w *worker) bound() error {
	number, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err == nil && w.Fault == "bound" {
		w.astray, err = bind(number)
	}
	return err
}
