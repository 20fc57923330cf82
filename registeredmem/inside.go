package registeredmem

import (
	"time"

	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Internal is for packages of this module.
func (r *Registry) Internal() inside.Registry[*Registry, *Memory] { return registryInside{r} }

// Internal is for packages of this module.
func (m *Memory) Internal() inside.Memory { return memoryInside{m} }

type (
	registryInside struct{ *Registry }
	memoryInside   struct{ *Memory }
)

func (r registryInside) Instance() uint64 { return r.instance }

func (r registryInside) Failed() *native.Flag { return r.failed }

func (r registryInside) WhenShort(after time.Duration, tell func(error)) {
	r.server.WhenShort(after, tell)
}

func (r registryInside) TraceTo(t *native.Trace) { r.trace.Store(t) }

func (r registryInside) Trace() *native.Trace { return r.trace.Load() }

func (m memoryInside) Range() *native.Range {
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

func (m memoryInside) Owner() uint64 { return m.about.instance }
