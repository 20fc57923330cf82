package ethernet

import (
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Transport returns Ethernet.
func (t *Transport) Transport() registeredmem.Transports { return registeredmem.Ethernet }

// Offer lets peers write to m and read it. Package registeredmem calls it.
func (t *Transport) Offer(m *registeredmem.Memory) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, t.rank.Invalid("ethernet: offer a memory", "the transport is closed")
	}
	t.rank.Targets.Offer(m)
	return t.rank.Instance[:], nil
}

// Withdraw refuses whatever peers send for m from now on, but for what this rank
// has read into it, which is dropped. It waits for copies into it and out of it that are under
// way, and has the peers told. None of that depends on the peers. Package registeredmem calls
// it.
func (t *Transport) Withdraw(m *registeredmem.Memory) error {
	one := t.rank.Targets.Remove(m.ID())
	if one == nil {
		return nil
	}
	for _, c := range t.all() {
		c.tellGone(one.ID)
	}
	return one.Withdraw()
}

// target returns the memory that a frame writes to or reads. All of the frame must lie inside
// it.
func (t *Transport) target(f *message.Frame) (*target.Memory, error) {
	return t.rank.Targets.Find(f.Memory, f.Offset, f.Size(), f.Kind.Word())
}
