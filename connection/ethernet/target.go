package ethernet

import (
	"sync"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// target is a memory of this rank that peers write to.
type target struct {
	id  uint32
	buf *gpu.Buffer

	mu    sync.Mutex
	users int        // copies and reads into it under way
	gone  bool       // it was withdrawn
	idle  *sync.Cond // users fell to 0
}

// hold keeps the memory from being withdrawn until release. It reports false if it was
// withdrawn before.
func (m *target) hold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return false
	}
	m.users++
	return true
}

func (m *target) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 {
		m.idle.Broadcast()
	}
}

// Transport returns Ethernet.
func (t *Transport) Transport() registeredmem.Transports { return registeredmem.Ethernet }

// Offer lets peers write to m. Package registeredmem calls it.
func (t *Transport) Offer(m *registeredmem.Memory) ([]byte, error) {
	one := &target{id: m.ID(), buf: m.Buffer()}
	one.idle = sync.NewCond(&one.mu)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, t.invalid("ethernet: offer a memory", "the transport is closed")
	}
	t.targets[one.id] = one
	t.offered = max(t.offered, one.id+1)
	return t.instance[:], nil
}

// Withdraw has everything refused that peers send for m from now on, waits for
// copies into it that are under way, and has the peers told. None of that depends on
// the peers. Package registeredmem calls it.
func (t *Transport) Withdraw(m *registeredmem.Memory) error {
	t.mu.Lock()
	one := t.targets[m.ID()]
	delete(t.targets, m.ID())
	t.mu.Unlock()
	if one == nil {
		return nil
	}
	for _, c := range t.all() {
		c.tellGone(one.id)
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.gone = true
	for one.users > 0 {
		one.idle.Wait()
	}
	return nil
}

// target returns the memory that a frame writes to. All of the frame must lie inside
// it.
func (t *Transport) target(f *frame) (*target, error) {
	t.mu.Lock()
	m, offered := t.targets[f.memory], f.memory < t.offered
	t.mu.Unlock()
	switch {
	case m == nil && offered:
		return nil, refusal(reasonClosed, "it sent a frame for memory %d, which is closed", f.memory)
	case m == nil:
		return nil, refusal(reasonUnknown, "it sent a frame for memory %d, which never was registered", f.memory)
	}
	n := f.bytes()
	if size := m.buf.Size(); f.offset > size || n > size-f.offset {
		return nil, refusal(reasonRange, "it sent %d bytes for offset %d of memory %d, which has %d", n, f.offset, f.memory, size)
	}
	if f.kind == kindUpdate && (uint64(m.buf.Ptr())+f.offset)%8 != 0 {
		return nil, refusal(reasonRange, "it sent an update for offset %d of memory %d, which is not aligned to 8 bytes", f.offset, f.memory)
	}
	return m, nil
}

func errGone(m *target) error {
	return refusal(reasonClosed, "it sent a frame for memory %d, which was closed meanwhile", m.id)
}
