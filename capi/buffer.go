package capi

// #include "process.h"
import "C"

import (
	"cmp"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

func (c *call) bufferCreate(device handle, bytes uint64, result *handle) error {
	o, d := c.to("allocate device memory").device(device)
	return makes(c, result, o, aBuffer, func() (*gpu.Buffer, error) { return d.Alloc(bytes) })
}

func (c *call) bufferCreateHost(device handle, bytes uint64, result *handle) error {
	o, d := c.to("allocate pinned memory").device(device)
	return makes(c, result, o, aBuffer, func() (*gpu.Buffer, error) { return d.AllocHost(bytes) })
}

func (c *call) bufferWrap(device handle, pointer address, bytes uint64, result *handle) error {
	o, d := c.to("wrap memory").device(device)
	return makes(c, result, o, aBuffer, func() (*gpu.Buffer, error) {
		b, err := d.Wrap(gpu.Ptr(pointer), bytes)
		if err != nil {
			err = cmp.Or(objects.address(c.op, "the pointer", pointer), err)
		}
		return b, err
	})
}

func (c *call) bufferWrapHost(device handle, pointer address, bytes uint64, result *handle) error {
	o, d := c.to("wrap memory of the host").device(device)
	// A wrong address must not become a Go pointer.
	const lowest = 1 << 16
	if pointer < lowest || bytes > 1<<47 || uint64(pointer) > 1<<63-bytes {
		return invalid(c.op, "there is no memory of %d bytes at %#x", bytes, uint64(pointer))
	}
	memory := c.host(pointer, bytes, reads)
	return makes(c, result, o, aBuffer, func() (*gpu.Buffer, error) { return d.WrapHost(memory) })
}

func (c *call) bufferSlice(buffer handle, offset, bytes uint64, result *handle) error {
	o, b := get[*gpu.Buffer](c.to("slice a buffer"), aBuffer, buffer)
	return makes(c, result, o, aBuffer, func() (*gpu.Buffer, error) { return b.Slice(offset, bytes) })
}

func (c *call) bufferSize(buffer handle, bytes *C.uint64_t) error {
	return put(c, bytes, C.uint64_t(c.to("get the size of a buffer").buffer(buffer).Size()), nil)
}

func (c *call) bufferPointer(buffer handle, pointer *address) error {
	return put(c, pointer, address(c.to("get the address of a buffer").buffer(buffer).Ptr()), nil)
}

func (c *call) bufferHostPointer(buffer handle, pointer *address) error {
	host := c.to("get the host's address of a buffer").buffer(buffer).HostBytes()
	need(c, pointer)
	if len(host) == 0 {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "mscclgo: "+c.op, "the host cannot access this memory; mscclgo_copy_in and mscclgo_copy_out can")
	}
	*pointer = address(uintptr(unsafe.Pointer(&host[0])))
	return nil
}

func (c *call) copyIn(to handle, offset uint64, from address, bytes uint64) error {
	part, err := c.to("copy to a buffer").buffer(to).Slice(offset, bytes)
	c.check(err)
	data := c.host(from, bytes, reads)
	c.check(touch(c.op, part.HostBytes(), writes)) // which may be wrapped
	return gpu.CopyIn(part, data)
}

func (c *call) copyOut(to address, from handle, offset, bytes uint64) error {
	part, err := c.to("copy from a buffer").buffer(from).Slice(offset, bytes)
	c.check(err)
	data := c.host(to, bytes, writes)
	c.check(touch(c.op, part.HostBytes(), reads)) // which may be wrapped
	return gpu.CopyOut(data, part)
}
