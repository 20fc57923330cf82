// Package nccl runs NVIDIA's NCCL, to be timed beside this library. It loads
// libnccl.so.2 when asked to, so that nothing depends on it. A [Comm] is one rank's
// communicator on a stream of package gpu.
//
// The package sets none of NCCL's variables: the environment's apply.
package nccl

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "nccl.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/mscclgo/mscclgo"
)

// defaultFile is loaded where none is named.
const defaultFile = "libnccl.so.2"

// Library is a loaded NCCL.
type Library struct {
	api *C.functions // for the life of the process, as the library is
}

// Open loads NCCL from a file. "" is libnccl.so.2 where the system's loader finds
// it.
//
// Errors: ErrUnsupported when NCCL is missing or lacks a function.
func Open(file string) (*Library, error) {
	if file == "" {
		file = defaultFile
	}
	cFile := C.CString(file)
	defer C.free(unsafe.Pointer(cFile))
	message := (*C.char)(C.calloc(1, 512))
	defer C.free(unsafe.Pointer(message))
	api := C.nccl_load(cFile, message, 512)
	if api == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, "nccl: load "+file,
			"%s; name the file, or the folder in LD_LIBRARY_PATH", C.GoString(message))
	}
	return &Library{api}, nil
}

// Version returns NCCL's version, such as "2.28.3".
func (l *Library) Version() string {
	v := int(C.nccl_version(l.api))
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}
