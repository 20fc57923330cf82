package cuda

// #include "memory.h"
import "C"

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// hostRange is whole pages of the host that are pinned for one or more users. They do not
// overlap with other ranges, since the driver pins a page once.
type hostRange struct {
	start, end uintptr
	pinned     bool // by us
	users      int
}

// WrapHost pins those pages that are not pinned yet.
func (d *device) WrapHost(host []byte) (backend.HostMemory, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	m := &wrapped{held: held{primary: d.primary}, bytes: host}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(host)))
	page := uintptr(os.Getpagesize())
	err := d.pin(start/page*page, (start+uintptr(len(host))+page-1)/page*page, &m.ranges)
	if err == nil {
		err = m.locate(start)
	}
	if err != nil {
		return nil, errors.Join(err, m.Free())
	}
	return m, nil
}

// pin adds to held the ranges that hold the pages from start to end.
func (p *primary) pin(start, end uintptr, held *[]*hostRange) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for start < end {
		i, _ := slices.BinarySearchFunc(p.hosts, start, func(r *hostRange, at uintptr) int { return cmp.Compare(r.end, at+1) })
		if i == len(p.hosts) || p.hosts[i].start > start {
			r := &hostRange{start: start, end: end}
			if i < len(p.hosts) {
				r.end = min(end, p.hosts[i].start)
			}
			if err := p.register(r); err != nil {
				return err
			}
			p.hosts = slices.Insert(p.hosts, i, r)
		}
		r := p.hosts[i]
		r.users++
		*held = append(*held, r)
		start = r.end
	}
	return nil
}

func (p *primary) register(r *hostRange) error {
	var pinned C.bool
	rc := C.host_register(p.context, C.host_address(C.uintptr_t(r.start)), C.size_t(r.end-r.start), &pinned)
	r.pinned = bool(pinned)
	return p.result(rc, "pin %d bytes of the host at %#x", r.end-r.start, r.start)
}

// unpin undoes pin.
func (p *primary) unpin(held []*hostRange) error {
	p.mu.Lock()
	last := slices.ContainsFunc(held, func(r *hostRange) bool { return r.users == 1 && r.pinned })
	p.mu.Unlock()
	if last {
		p.awaitIdle()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, r := range held {
		if r.users--; r.users > 0 {
			continue
		}
		p.hosts = slices.DeleteFunc(p.hosts, func(other *hostRange) bool { return other == r })
		if r.pinned {
			rc := C.host_unregister(p.context, C.host_address(C.uintptr_t(r.start)))
			errs = append(errs, p.result(rc, "unpin %d bytes of the host", r.end-r.start))
		}
	}
	return errors.Join(errs...)
}

// wrapped is memory of the host that other code owns.
type wrapped struct {
	held
	ptr    C.CUdeviceptr
	bytes  []byte
	ranges []*hostRange
}

// locate finds the address for kernels. The ranges need not be in a row there.
func (m *wrapped) locate(start uintptr) error {
	if rc := C.host_pointer(m.context, C.host_address(C.uintptr_t(start)), &m.ptr); rc != 0 {
		return m.fail(rc, "find where kernels reach the memory of the host at %#x", start)
	}
	for _, r := range m.ranges {
		last := min(r.end, start+uintptr(len(m.bytes))) - 1 // of what others pinned the driver may know a part only
		var ptr C.CUdeviceptr
		rc := C.host_pointer(m.context, C.host_address(C.uintptr_t(last)), &ptr)
		if rc != 0 || uintptr(ptr-m.ptr) != last-start {
			return mscclgo.Errorf(mscclgo.ErrInvalid, m.op("wrap %d bytes of the host at %#x", len(m.bytes), start),
				"a part of it is pinned already, and kernels do not reach all of it in a row; wrap it as a whole first")
		}
	}
	return nil
}

func (m *wrapped) Ptr() uint64   { return uint64(m.ptr) }
func (m *wrapped) Bytes() []byte { return m.bytes }

func (m *wrapped) Free() error { return m.end(func() error { return m.unpin(m.ranges) }) }
