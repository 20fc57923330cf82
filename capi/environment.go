package capi

// #include "process.h"
import "C"

import (
	"os"
	"strings"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/cudaenv"
)

// readEnvironment has Go see the variables as the program has set them: its runtime read
// them when it started. Setting a variable sets it for C as well, to what it is there.
func readEnvironment() {
	cudaenv.Lock.Lock()
	defer cudaenv.Lock.Unlock()
	now := map[string]bool{}
	for at := C.capi_environment(); at != nil && *at != nil; at = (**C.char)(unsafe.Add(unsafe.Pointer(at), unsafe.Sizeof(at))) {
		name, value, ok := strings.Cut(C.GoString(*at), "=")
		if !ok || name == "" || now[name] {
			continue
		}
		now[name] = true
		if have, ok := os.LookupEnv(name); !ok || have != value {
			_ = os.Setenv(name, value) // fails for wrong names only
		}
	}
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); name != "" && !now[name] {
			_ = os.Unsetenv(name)
		}
	}
}
