package ethernet

import (
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Transport returns Ethernet.
func (t *Transport) Transport() registeredmem.Transports { return registeredmem.Ethernet }

// Offer lets peers write to m and read it. Package registeredmem calls it.
func (t *Transport) Offer(m *registeredmem.Memory) ([]byte, error) { return t.rank.Offer(m) }

// Withdraw refuses whatever peers send for m from now on, but for what this rank
// has read into it, which is dropped. It waits for copies into it and out of it that are under
// way, and has the peers told. None of that depends on the peers. Package registeredmem calls
// it.
func (t *Transport) Withdraw(m *registeredmem.Memory) error { return t.rank.Withdraw(m) }

// target returns the memory that a frame writes to or reads. All of the frame must lie inside
// it.
func (t *Transport) target(f *message.Frame) (*target.Memory, error) {
	return t.rank.Targets.Find(f.Memory, f.Offset, f.Size(), f.Kind.Word())
}
