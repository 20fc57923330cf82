package registeredmem

import (
	"context"
	"time"

	"github.com/mscclgo/mscclgo/internal/native"
)

func init() {
	native.RangeOf = func(m any) *native.Range { return m.(*Memory).asRange() }
	native.JoinRegistry = func(r any, wait func(context.Context) error) func() { return r.(*Registry).join(wait) }
	native.WhenShort = func(r any, after time.Duration, tell func(error)) { r.(*Registry).server.WhenShort(after, tell) }
	native.FailedOf = func(r any) *native.Flag { return r.(*Registry).failed }
	native.InstanceOf = func(r any) uint64 { return r.(*Registry).instance }
	native.OwnerOf = func(m any) uint64 { return m.(*Memory).about.instance }
	native.TraceRegistry = func(r any, t *native.Trace) { r.(*Registry).trace.Store(t) }
	native.TraceOf = func(r any) *native.Trace { return r.(*Registry).trace.Load() }
}

// asRange returns the memory to threads in C, the same each time, or nil where it was
// closed before. Closing the memory closes it to them, and waits for threads that use it before
// the memory is unmapped.
func (m *Memory) asRange() *native.Range {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if m.native == nil && !m.closed.Load() {
		gate, about := (*native.Gate)(nil), native.RangeInfo{
			Address: uint64(m.about.phase), Size: m.Size(), Registry: m.reg.instance, Owner: m.about.instance, Rank: m.Rank(), Number: m.ID(),
		}
		if buf := m.buf.Load(); buf != nil {
			gate, about.Address, about.Mapped = buf.Internal().Gate(), uint64(buf.Ptr()), true
		} else {
			gate = native.NewGate()
		}
		m.native = native.NewRange(gate, about)
	}
	return m.native
}
