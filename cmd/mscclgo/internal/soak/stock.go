package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// A stock is what this process has before its group.
type stock struct{ goroutines, descriptors int }

func takeStock() stock {
	return stock{runtime.NumGoroutine(), len(descriptors("self"))}
}

// left lists what is still held when the group is closed, after a moment in which goroutines
// end. Only emulated devices leave nothing: CUDA's driver keeps what it has opened.
func (s stock) left(device string) []string {
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		left := s.look(device)
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

func (s stock) look(device string) (left []string) {
	if n := runtime.NumGoroutine(); n > s.goroutines {
		stacks := make([]byte, 4000)
		left = append(left, fmt.Sprintf("%d goroutines, %d before: %s", n, s.goroutines, stacks[:runtime.Stack(stacks, true)]))
	}
	if device != "emu" {
		return left
	}
	// The runtime's poller opens two with the first socket.
	const poller = 2
	if now := descriptors("self"); len(now) > s.descriptors+poller {
		left = append(left, fmt.Sprintf("descriptors of %s, %d before", strings.Join(now, ", "), s.descriptors))
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/memfd:") {
			left = append(left, "mapped "+strings.TrimSpace(line))
		}
	}
	return left
}

// descriptors lists what a process's are of.
func descriptors(pid string) (targets []string) {
	names, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	for _, name := range names {
		if target, err := os.Readlink(name); err == nil {
			targets = append(targets, target)
		}
	}
	return targets
}
