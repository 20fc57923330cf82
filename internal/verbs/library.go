package verbs

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -I${SRCDIR}/..
#cgo LDFLAGS: -ldl
#cgo noescape verbs_post_send
#cgo nocallback verbs_post_send
#cgo noescape verbs_poll
#cgo nocallback verbs_poll
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"embed"
	"io/fs"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	_ "github.com/mscclgo/mscclgo/internal/native" // library.h
)

// Embedding the headers makes the go command rebuild the packages that include one of them.
//
//go:embed *.h
var headers embed.FS

var _ = headers

// process is the library of this process. It is never unloaded.
var process = sync.OnceValues(func() (*C.verbs_api, error) { return load("libibverbs.so.1") })

func load(library string) (*C.verbs_api, error) {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	message := (*C.char)(C.calloc(1, 512))
	defer C.free(unsafe.Pointer(message))
	var absent C.int
	api := C.verbs_load(name, message, 512, &absent)
	if api == nil && absent == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "verbs: load libibverbs",
			"%s cannot be loaded (%s); install rdma-core's libibverbs1 again, or use other transports: MSCCLGO_TRANSPORTS=CudaIPC,SHM,Ethernet",
			library, C.GoString(message))
	}
	if api == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, "verbs: load libibverbs",
			"%s cannot be used (%s); install rdma-core's libibverbs1 and ibverbs-providers, or use another transport",
			library, C.GoString(message))
	}
	return api, nil
}

// Devices returns the sorted names of this machine's RDMA devices.
//
// Errors: ErrUnsupported when the library is missing or there is no device.
func Devices() ([]string, error) {
	const op = "verbs: list devices"
	api, err := process()
	if err != nil {
		return nil, err
	}
	var n C.int
	list, err := C.verbs_list(api, &n)
	if list == nil {
		return nil, noDevice(op, err)
	}
	defer C.verbs_free_list(api, list)
	var names []string
	for _, d := range unsafe.Slice(list, int(n)) {
		names = append(names, C.GoString(C.verbs_name(api, d)))
	}
	if len(names) == 0 {
		return nil, noDevice(op, nil)
	}
	slices.Sort(names)
	return names, nil
}

// noDevice returns the error for a machine without RDMA devices. Without kernel
// support the library returns ENOSYS.
func noDevice(op string, cause error) error {
	const advice = "this machine has no RDMA device; look at ibv_devices and whether the kernel module ib_uverbs is loaded"
	if cause == nil || cause == syscall.ENOSYS || cause == syscall.ENODEV {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, advice)
	}
	return mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", cause)
}

// failure returns the error of a call that returned an errno value.
func failure(op string, cause error) *mscclgo.Error {
	kind := mscclgo.ErrSystem
	if cause == syscall.EOPNOTSUPP || cause == syscall.ENOSYS {
		kind = mscclgo.ErrUnsupported
	}
	if cause == nil {
		cause = fs.ErrInvalid // the library said no reason
	}
	return mscclgo.Errorf(kind, op, "%w", cause)
}

func number(op string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return failure(op, syscall.Errno(rc))
}
