package capi

// #include "process.h"
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// init tells C where the kernel lists what Go's runtime polls: all sockets and pipes of the library. A child that
// is forked closes these, or a peer would not hear that this process has ended while the child lives, and nobody
// could listen at its port. Without /proc the child keeps them.
func init() {
	r, w, err := os.Pipe() // which the runtime polls
	if err != nil {
		return
	}
	defer r.Close()
	defer w.Close()
	raw, err := r.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		all, _ := filepath.Glob("/proc/self/fdinfo/*")
		for _, file := range all {
			if text, _ := os.ReadFile(file); bytes.Contains(text, fmt.Appendf(nil, "tfd: %8d ", fd)) {
				C.capi_polls(C.CString(file))
			}
		}
	})
}
