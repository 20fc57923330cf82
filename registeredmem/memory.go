package registeredmem

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Memory is memory that peers may reach: this rank's, from [Registry.Register],
// or a peer's, from [Registry.Import].
type Memory struct {
	reg        *Registry
	about      description
	local      bool
	allocation *allocation  // of local memory
	mapped     *mapping     // of imported memory that a descriptor maps, or nil
	unmap      func() error // of imported memory; nil where there is nothing to unmap
	buf        atomic.Pointer[gpu.Buffer]
	closed     atomic.Bool
	closeOnce  sync.Once
	native     *native.Range // nil before it is first asked for; guarded by reg.mu
	updatable  sync.Once     // sets canUpdate
	canUpdate  bool
}

// Registry returns the registry that the memory is in.
func (m *Memory) Registry() *Registry { return m.reg }

// Rank returns the number of the rank whose memory it is.
func (m *Memory) Rank() int { return int(m.about.rank) }

// ID returns the memory's number in its rank's registry. Numbers count from 0 and
// are used once.
func (m *Memory) ID() uint32 { return m.about.id }

// Size returns the memory's size in bytes.
func (m *Memory) Size() uint64 { return m.about.size }

// Local reports whether the memory was registered in this registry, rather than
// imported.
func (m *Memory) Local() bool { return m.local }

// Transports returns the transports that reach the memory: for this rank's own
// memory what it offers to peers, for an imported one what works from
// here.
func (m *Memory) Transports() Transports { return m.about.transports }

func (m memoryInside) WordAligned(offset uint64) bool {
	return (uint64(m.about.phase)+offset)%wordSize == 0
}

// Buffer returns the memory as this rank's device sees it, or nil if the memory is
// not mapped here or is closed. While Close waits, it still returns the buffer.
func (m *Memory) Buffer() *gpu.Buffer { return m.buf.Load() }

// CanUpdate reports whether kernels of this rank's device can make atomic
// read-modify-writes in the memory, which is mapped here: in memory of the device itself, or over a
// link that has them, as NVLink does and PCIe mostly does not.
func (m *Memory) CanUpdate() bool {
	if m.Buffer() == nil {
		return false
	}
	// The driver is asked once: ports ask for each atomic operation.
	m.updatable.Do(func() { m.canUpdate = m.reg.options.Device.Internal().CanUpdate(m.about.device) })
	return m.canUpdate
}

// Closed reports whether the memory is closed.
func (m *Memory) Closed() bool { return m.closed.Load() }

// MarshalBinary returns the bytes that a peer's [Registry.Import] takes. They are
// no secret and mean nothing outside the group.
//
// Errors: ErrInvalid for imported memory, which only its own rank can share, and
// for closed memory.
func (m *Memory) MarshalBinary() ([]byte, error) {
	const op = "registeredmem: marshal"
	if !m.local {
		return nil, m.reg.fault(op, "%v is imported; only the rank that registered it can share it", m)
	}
	if m.closed.Load() {
		return nil, m.reg.fault(op, "%v is closed", m)
	}
	d := m.offered()
	return d.encode(), nil
}

// offered returns the description of this rank's memory that peers get.
func (m *Memory) offered() description {
	d := m.about
	if m.reg.options.Unmapped {
		d.transports &^= CudaIPC
	}
	return d
}

// Close unmaps an imported memory, which kernels must no longer use, or unregisters
// this rank's: peers can no longer import it or write to it over a [Registrar], but
// what they have mapped stays mapped with them. Before that it waits for what
// connections have queued, for at most Options.Timeout. It does nothing on nil, and may be
// called again, also meanwhile: every call returns once that is done, the first of them with
// the error.
//
// Errors: ErrTimeout when that was not done in time. The memory is then mapped, or this
// rank's is kept though its buffer is closed, until it is: a copy engine that still works
// on it would fault.
func (m *Memory) Close() (err error) {
	if m == nil {
		return nil
	}
	m.closed.Store(true)
	m.closeOnce.Do(func() { err = m.close() })
	return err
}

func (m *Memory) close() error {
	r := m.reg
	r.mu.Lock()
	if m.native != nil {
		m.native.Close()
	}
	if m.local {
		delete(r.local, m.about.id)
		r.allocations.leave(m.allocation)
	} else {
		delete(r.imported, m)
	}
	r.mu.Unlock()
	err := r.waitForTransfers()
	busy := errors.Is(err, mscclgo.ErrTimeout)
	buf := m.buf.Swap(nil) // not earlier: a connection that found the memory open may be queueing
	if m.local {
		err = errors.Join(err, m.withdraw(r.registrars))
		if letGo, ok := keep(buf, busy); ok {
			go r.letGoLater(m, letGo)
		}
	} else if m.unmap != nil && busy {
		go r.letGoLater(m, m.unmap)
	} else if m.unmap != nil {
		err = errors.Join(err, m.unmap())
	}
	if err != nil {
		return wrap(err, fmt.Sprintf("registeredmem: close %v", m), r.options.Rank, m.Rank())
	}
	return nil
}

// keep keeps a buffer's memory if it is busy and still there.
func keep(buf *gpu.Buffer, busy bool) (letGo func() error, ok bool) {
	if !busy || buf == nil {
		return nil, false
	}
	return buf.Internal().Keep()
}

// letGoLater unmaps a memory, or frees it, once nothing is under way.
func (r *Registry) letGoLater(m *Memory, letGo func() error) {
	log := r.options.Logger.With("rank", r.options.Rank, "memory", m.String())
	log.Warn("registeredmem: a closed memory stays, since transfers that may use it have not ended", "timeout", r.options.Timeout)
	for errors.Is(r.waitForTransfers(), mscclgo.ErrTimeout) {
		continue
	}
	log.Info("registeredmem: a memory that stayed is let go", "error", letGo())
}

// String returns the memory's name for messages.
func (m *Memory) String() string {
	return fmt.Sprintf("memory %d of rank %d (%d bytes)", m.about.id, m.about.rank, m.about.size)
}
