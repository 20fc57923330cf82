package registeredmem

import "github.com/mscclgo/mscclgo/internal/native"

// Instance gives a number that tells the registry from others.
func (r *Registry) Instance() uint64 { return r.instance }

// Native gives the memory to threads in C, the same each time, or nil where it is
// not mapped here or was closed before. Closing the memory closes it to them, and
// waits for those that use it before the memory is unmapped.
func (m *Memory) Native() *native.Range {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if buf := m.buf.Load(); m.native == nil && buf != nil {
		m.native = native.NewRange(buf.Gate(), native.RangeInfo{
			Address: uint64(buf.Ptr()), Size: m.Size(), Registry: m.reg.instance, Rank: m.Rank(),
		})
	}
	return m.native
}
