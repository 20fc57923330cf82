package ethernet

import (
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// Of memory that the host can access, the host changes words. What it does is atomic for all
// transports and connections then, since none has a device do so there. In other memory the
// device does, by kernels at system scope.

// add adds to a word behind all data before it. host is the memory, or nil if the host cannot
// access it.
func (s *socket) add(f *message.Frame, m *target.Memory, host []byte) error {
	if host == nil {
		return s.queue(m, func() error { return s.rx.stream.Add64(m.Buffer, f.Offset, f.Total) })
	}
	return s.onHost(f, m, host, func(word *uint64) { atomic.AddUint64(word, f.Total) })
}

// exchange replaces a word behind all data before it, and answers with what it was. The device
// leaves that in the place of the frame's head, which is longer and no longer needed.
func (s *socket) exchange(f *message.Frame, m *target.Memory, host []byte) error {
	a := answer{op: f.Op, n: 8}
	var err error
	if host != nil {
		err = s.onHost(f, m, host, func(word *uint64) { a.value = atomic.SwapUint64(word, f.Total) })
	} else {
		slot, at := &s.slots[s.cur], (s.r-message.FrameSize+7)&^7
		a.old = slot.bytes[at : at+8]
		err = s.queue(m, func() error {
			return s.rx.stream.Exchange64(m.Buffer, f.Offset, f.Total, slot.staging, uint64(at))
		})
	}
	if err != nil {
		return err
	}
	return s.accept(a)
}

// onHost changes a word of memory that the host can access, when the stream, which may have
// stores there to do, is idle.
func (s *socket) onHost(f *message.Frame, m *target.Memory, host []byte, change func(word *uint64)) error {
	s.settle()
	if !m.Hold() {
		return target.Gone(m)
	}
	defer m.Release()
	change((*uint64)(unsafe.Pointer(&host[f.Offset])))
	return nil
}
