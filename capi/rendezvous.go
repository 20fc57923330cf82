package main

// #include "process.h"
import "C"

import (
	"unsafe"

	"github.com/mscclgo/mscclgo/bootstrap"
)

//export capi_rendezvous_create
func capi_rendezvous_create(address *C.char, result *C.uintptr_t) C.mscclgo_status {
	const op = "open a rendezvous"
	return call(func() error {
		if err := isNull(op, unsafe.Pointer(address), unsafe.Pointer(result)); err != nil {
			return err
		}
		readEnvironment()
		r, err := bootstrap.NewRendezvous(C.GoString(address), logger())
		if err != nil {
			return err
		}
		objects.add(nil, aRendezvous, r, r.Close).store(result)
		return nil
	})
}

//export capi_rendezvous_id
func capi_rendezvous_id(handle C.uintptr_t, id *C.char, bytes C.size_t) C.mscclgo_status {
	const op = "get the id of a rendezvous"
	return call(func() error {
		return of(op, aRendezvous, handle, func(_ *object, r *bootstrap.Rendezvous) error {
			return storeID(op, r.ID(), id, bytes)
		})
	})
}

// storeID stores an id as a text with a zero behind it.
func storeID(op string, id bootstrap.UniqueID, to *C.char, bytes C.size_t) error {
	room, err := hostBytes(op, C.uintptr_t(uintptr(unsafe.Pointer(to))), bytes, writes)
	if err != nil {
		return err
	}
	text := id.String()
	if len(text) >= len(room) {
		return invalid(op, "the id has %d bytes and a zero, and there is room for %d; MSCCLGO_ID_BYTES is enough", len(text), len(room))
	}
	room[copy(room, text)] = 0
	return nil
}

//export capi_rendezvous_destroy
func capi_rendezvous_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy a rendezvous", aRendezvous, handle) })
}
