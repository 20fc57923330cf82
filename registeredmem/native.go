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
	native.InstanceOf = func(r any) uint64 { return r.(*Registry).instance }
	native.TraceRegistry = func(r any, t *native.Trace) { r.(*Registry).trace.Store(t) }
	native.TraceOf = func(r any) *native.Trace { return r.(*Registry).trace.Load() }
}

// asRange returns the memory to threads in C, the same each time, or nil where it is
// not mapped here or was closed before. Closing the memory closes it to them, and
// waits for those that use it before the memory is unmapped.
func (m *Memory) asRange() *native.Range {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if buf := m.buf.Load(); m.native == nil && buf != nil && !m.closed.Load() {
		m.native = native.NewRange(native.GateOf(buf), native.RangeInfo{
			Address: uint64(buf.Ptr()), Size: m.Size(), Registry: m.reg.instance, Rank: m.Rank(),
		})
	}
	return m.native
}
