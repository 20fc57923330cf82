package ib

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// registration is a memory of this rank.
type registration struct {
	memory *registeredmem.Memory
	*region

	users sync.WaitGroup // messages that are being applied to it; joined while it is in Transport.memories
}

// region is a range of memory that is registered with devices, once for all memories of this rank with that
// range: the devices pin its pages, which takes long for gigabytes.
type region struct {
	device  bool
	base    uint64
	address uint64
	mrs     []*verbs.MR // one for each of the transport's devices

	buf     *gpu.Buffer
	holders int // memories of the range; guarded by Transport.mu
}

// place identifies a range of memory while that is allocated.
type place struct {
	start          gpu.Ptr
	size, capacity uint64
}

func placeOf(buf *gpu.Buffer) place { return place{buf.Ptr(), buf.Size(), buf.Internal().Capacity()} }

// register registers a buffer with all of the devices, or returns an error.
func register(buf *gpu.Buffer, nics ...*nic) (*region, error) {
	source := sourceOf(buf)
	defer source.close()
	r := &region{device: source.device, base: source.base(), address: uint64(source.address), buf: buf}
	for _, n := range nics {
		mr, err := source.register(n)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.mrs = append(r.mrs, mr)
	}
	return r, nil
}

// hold returns the region of a buffer for one more memory.
func (t *Transport) hold(buf *gpu.Buffer) (*region, error) {
	at := placeOf(buf)
	t.mu.Lock()
	r := t.held(at)
	t.mu.Unlock()
	if r != nil {
		return r, nil
	}
	// Without the lock, which writes need.
	fresh, err := register(buf, t.nics...)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	if r = t.held(at); r == nil {
		fresh.holders, t.regions[at] = 1, fresh
	}
	t.mu.Unlock()
	if r == nil {
		return fresh, nil
	}
	if err := fresh.close(); err != nil { // another goroutine was faster
		return nil, errors.Join(err, t.letGo(r))
	}
	return r, nil
}

// held returns the region at a place for one more memory, or nil. The caller holds mu.
func (t *Transport) held(at place) *region {
	r := t.regions[at]
	if r == nil || r.buf.Internal().Freed() { // what is there now may be other memory
		return nil
	}
	r.holders++
	return r
}

// letGo ends the use of a region by a memory. The last one unregisters it.
func (t *Transport) letGo(r *region) error {
	t.mu.Lock()
	last := t.drop(r)
	t.mu.Unlock()
	if !last {
		return nil
	}
	return r.close()
}

// drop takes a memory from a region, and reports whether it was the last. The caller holds mu.
func (t *Transport) drop(r *region) bool {
	if r.holders--; r.holders > 0 {
		return false
	}
	if at := placeOf(r.buf); t.regions[at] == r {
		delete(t.regions, at)
	}
	return true
}

func (r *region) close() error {
	var errs []error
	for _, mr := range r.mrs {
		errs = append(errs, mr.Close())
	}
	return errors.Join(errs...)
}

// ordered returns an error if kernels may see a signal before the data that an RDMA device wrote earlier. The
// writes would have to be flushed (cuFlushGPUDirectRDMAWrites) by the host, between data and signal.
func ordered(gpu gpu.Info) error {
	if gpu.RDMAOrdered {
		return nil
	}
	return mscclgo.Errorf(mscclgo.ErrUnsupported, "ib: look at the order of writes", "kernels of %s (%s) do not see the writes of RDMA devices in their order "+
		"(GPU_DIRECT_RDMA_WRITES_ORDERING is none), so that signals would come before data; use other transports", gpu.Name, gpu.Model)
}

// tryDeviceMemory returns an error if a device cannot access the memory of the
// rank's GPU, or not in order. With the first device it keeps some memory, which peers read to know that what they
// wrote to others before is in place: those may be closed by then.
func (t *Transport) tryDeviceMemory(n *nic) error {
	if err := ordered(t.reg.Device().Info()); err != nil {
		return err
	}
	b, err := t.reg.Device().Alloc(uint64(os.Getpagesize()))
	if err != nil {
		return err
	}
	r, err := register(b, n)
	if err == nil && t.anchor == nil {
		t.anchor = r
		return nil
	}
	if err == nil {
		err = r.close()
	}
	return errors.Join(err, b.Close())
}

// closeAnchor releases that memory.
func (t *Transport) closeAnchor() error {
	if t.anchor == nil {
		return nil
	}
	r := t.anchor
	t.anchor = nil
	return errors.Join(r.close(), r.buf.Close())
}

// registrar is the transport as package registeredmem sees it.
type registrar struct{ t *Transport }

func (r registrar) Transport() registeredmem.Transports { return registeredmem.InfiniBand }

func (r registrar) Offer(m *registeredmem.Memory) ([]byte, error) { return r.t.offer(m) }

func (r registrar) Withdraw(m *registeredmem.Memory) error { return r.t.withdraw(m) }

// offer registers a memory of this rank with all devices. Host memory and memory of
// emulated devices is registered as memory of the process, a GPU's as a dma-buf, or if
// that is not possible through the kernel module nvidia_peermem.
//
// Errors: ErrUnsupported if the devices cannot access a GPU's memory; ErrSystem, with
// the limit if there is too little locked memory.
func (t *Transport) offer(m *registeredmem.Memory) ([]byte, error) {
	op := fmt.Sprintf("ib: register %v", m)
	if !t.begin() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the transport is closed")
	}
	defer t.changing.Done()
	r, err := t.hold(m.Buffer())
	if err != nil {
		return nil, wrap(op, err, t.reg.Rank(), mscclgo.NoRank)
	}
	t.mu.Lock()
	t.memories[m.ID()] = &registration{memory: m, region: r}
	t.mu.Unlock()
	k := key{device: r.device, base: r.base, place: r.address + t.shift}
	for _, mr := range r.mrs {
		k.keys = append(k.keys, mr.RemoteKey())
	}
	return k.encode(), nil
}

// withdraw undoes offer, and has the peers told, for which it does not wait.
func (t *Transport) withdraw(m *registeredmem.Memory) error {
	if !t.begin() {
		return nil // Close unregisters it, or has
	}
	defer t.changing.Done()
	t.mu.Lock()
	r := t.memories[m.ID()]
	delete(t.memories, m.ID())
	if r != nil {
		for one := range t.live {
			if c, ok := one.(*conn); ok {
				c.tellGone(m.ID())
			}
		}
	}
	t.mu.Unlock()
	if r == nil {
		return nil
	}
	r.users.Wait()
	return wrap(fmt.Sprintf("ib: unregister %v", m), t.letGo(r.region), t.reg.Rank(), mscclgo.NoRank)
}

// begin counts a call that uses the devices, which Close waits for, until changing.Done. It reports
// whether the transport is open.
func (t *Transport) begin() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return false
	}
	t.changing.Add(1)
	return true
}

// registered returns a memory of this rank, or nil.
func (t *Transport) registered(id uint32) *registration {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.memories[id]
}
