package main

// #include "process.h"
import "C"

import (
	"cmp"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// newBuffer stores the handle of a buffer that get makes of an object.
func newBuffer(op string, of *object, result *C.uintptr_t, get func() (*gpu.Buffer, error)) error {
	if err := isNull(op, unsafe.Pointer(result)); err != nil {
		return err
	}
	b, err := get()
	if err != nil {
		return err
	}
	objects.add(of, aBuffer, b, b.Close).store(result)
	return nil
}

//export capi_buffer_create
func capi_buffer_create(handle C.uintptr_t, bytes C.uint64_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "allocate device memory"
	return withDevice(op, handle, func(o *object, d *gpu.Device) error {
		return newBuffer(op, o, result, func() (*gpu.Buffer, error) { return d.Alloc(uint64(bytes)) })
	})
}

//export capi_buffer_create_host
func capi_buffer_create_host(handle C.uintptr_t, bytes C.uint64_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "allocate pinned memory"
	return withDevice(op, handle, func(o *object, d *gpu.Device) error {
		return newBuffer(op, o, result, func() (*gpu.Buffer, error) { return d.AllocHost(uint64(bytes)) })
	})
}

//export capi_buffer_wrap
func capi_buffer_wrap(handle, pointer C.uintptr_t, bytes C.uint64_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "wrap memory"
	return withDevice(op, handle, func(o *object, d *gpu.Device) error {
		return newBuffer(op, o, result, func() (*gpu.Buffer, error) {
			b, err := d.Wrap(gpu.Ptr(pointer), uint64(bytes))
			if err != nil {
				err = cmp.Or(objects.address(op, "the pointer", pointer), err)
			}
			return b, err
		})
	})
}

//export capi_buffer_wrap_host
func capi_buffer_wrap_host(handle, pointer C.uintptr_t, bytes C.uint64_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "wrap memory of the host"
	return withDevice(op, handle, func(o *object, d *gpu.Device) error {
		// A wrong address must not become a Go pointer.
		const lowest = 1 << 16
		if pointer < lowest || bytes > 1<<47 || uint64(pointer) > 1<<63-uint64(bytes) {
			return invalid(op, "there is no memory of %d bytes at %#x", uint64(bytes), uint64(pointer))
		}
		memory, err := hostBytes(op, pointer, C.size_t(bytes), reads)
		if err != nil {
			return err
		}
		return newBuffer(op, o, result, func() (*gpu.Buffer, error) { return d.WrapHost(memory) })
	})
}

//export capi_buffer_slice
func capi_buffer_slice(handle C.uintptr_t, offset, bytes C.uint64_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "slice a buffer"
	return withBuffer(op, handle, func(o *object, b *gpu.Buffer) error {
		return newBuffer(op, o, result, func() (*gpu.Buffer, error) { return b.Slice(uint64(offset), uint64(bytes)) })
	})
}

//export capi_buffer_destroy
func capi_buffer_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy a buffer", aBuffer, handle) })
}

//export capi_buffer_size
func capi_buffer_size(handle C.uintptr_t, bytes *C.uint64_t) C.mscclgo_status {
	const op = "get the size of a buffer"
	return withBuffer(op, handle, func(_ *object, b *gpu.Buffer) error {
		if err := isNull(op, unsafe.Pointer(bytes)); err != nil {
			return err
		}
		*bytes = C.uint64_t(b.Size())
		return nil
	})
}

//export capi_buffer_pointer
func capi_buffer_pointer(handle C.uintptr_t, pointer *C.uintptr_t) C.mscclgo_status {
	const op = "get the address of a buffer"
	return withBuffer(op, handle, func(_ *object, b *gpu.Buffer) error {
		if err := isNull(op, unsafe.Pointer(pointer)); err != nil {
			return err
		}
		*pointer = C.uintptr_t(b.Ptr())
		return nil
	})
}

//export capi_buffer_host_pointer
func capi_buffer_host_pointer(handle C.uintptr_t, pointer *C.uintptr_t) C.mscclgo_status {
	const op = "get the host's address of a buffer"
	return withBuffer(op, handle, func(_ *object, b *gpu.Buffer) error {
		if err := isNull(op, unsafe.Pointer(pointer)); err != nil {
			return err
		}
		host := b.HostBytes()
		if len(host) == 0 {
			return mscclgo.Errorf(mscclgo.ErrUnsupported, "mscclgo: "+op, "the host cannot access this memory; mscclgo_copy_in and mscclgo_copy_out can")
		}
		*pointer = C.uintptr_t(uintptr(unsafe.Pointer(&host[0])))
		return nil
	})
}

//export capi_copy_in
func capi_copy_in(handle C.uintptr_t, offset C.uint64_t, from C.uintptr_t, bytes C.uint64_t) C.mscclgo_status {
	const op = "copy to a buffer"
	return withBuffer(op, handle, func(_ *object, b *gpu.Buffer) error {
		part, err := b.Slice(uint64(offset), uint64(bytes))
		if err != nil {
			return err
		}
		data, err := hostBytes(op, from, C.size_t(bytes), reads)
		if err != nil {
			return err
		}
		if err := touch(op, part.HostBytes(), writes); err != nil { // which may be wrapped
			return err
		}
		return gpu.CopyIn(part, data)
	})
}

//export capi_copy_out
func capi_copy_out(to, handle C.uintptr_t, offset, bytes C.uint64_t) C.mscclgo_status {
	const op = "copy from a buffer"
	return withBuffer(op, handle, func(_ *object, b *gpu.Buffer) error {
		part, err := b.Slice(uint64(offset), uint64(bytes))
		if err != nil {
			return err
		}
		data, err := hostBytes(op, to, C.size_t(bytes), writes)
		if err != nil {
			return err
		}
		if err := touch(op, part.HostBytes(), reads); err != nil { // which may be wrapped
			return err
		}
		return gpu.CopyOut(data, part)
	})
}
