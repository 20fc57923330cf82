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
	device bool
	base   uint64
	mrs    []*verbs.MR // one for each of the transport's devices

	users sync.WaitGroup // messages that are being applied to it; joined while it is in Transport.memories
}

// register registers a buffer with all of the devices, or returns an error.
func register(buf *gpu.Buffer, nics ...*nic) (*registration, error) {
	source := sourceOf(buf)
	defer source.close()
	r := &registration{device: source.device, base: source.base()}
	for _, n := range nics {
		mr, err := source.register(n)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.mrs = append(r.mrs, mr)
	}
	return r, nil
}

func (r *registration) close() error {
	var errs []error
	for _, mr := range r.mrs {
		errs = append(errs, mr.Close())
	}
	return errors.Join(errs...)
}

// tryDeviceMemory returns an error if a device cannot access the memory of the
// rank's GPU.
func (t *Transport) tryDeviceMemory(n *nic) error {
	b, err := t.reg.Device().Alloc(uint64(os.Getpagesize()))
	if err != nil {
		return err
	}
	r, err := register(b, n)
	if err == nil {
		err = r.close()
	}
	return errors.Join(err, b.Close())
}

// Offer registers a memory of this rank with all devices. Host memory and memory of
// emulated devices is registered as memory of the process, a GPU's as a dma-buf, or if
// that is not possible through the kernel module nvidia_peermem. Package registeredmem
// calls it.
//
// Errors: ErrUnsupported if the devices cannot access a GPU's memory; ErrSystem, with
// the limit if there is too little locked memory.
func (t *Transport) Offer(m *registeredmem.Memory) ([]byte, error) {
	op := fmt.Sprintf("ib: register %v", m)
	if !t.begin() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the transport is closed")
	}
	defer t.changing.Done()
	// Without the lock, which writes need: it takes long for gigabytes.
	r, err := register(m.Buffer(), t.nics...)
	if err != nil {
		return nil, wrap(op, err, t.reg.Rank(), mscclgo.NoRank)
	}
	r.memory = m
	t.mu.Lock()
	t.memories[m.ID()] = r
	t.mu.Unlock()
	k := key{device: r.device, base: r.base}
	for _, mr := range r.mrs {
		k.keys = append(k.keys, mr.RemoteKey())
	}
	return k.encode(), nil
}

// Withdraw undoes Offer, and has the peers told, for which it does not wait. Package
// registeredmem calls it.
func (t *Transport) Withdraw(m *registeredmem.Memory) error {
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
	return wrap(fmt.Sprintf("ib: unregister %v", m), r.close(), t.reg.Rank(), mscclgo.NoRank)
}

// begin counts a change of what is registered, which Close waits for, until changing.Done.
// It reports whether the transport is open.
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
