package ethernet

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// update stores a word's new value after all data before it: at once if the stream is
// idle and the host can access the memory, else by the stream, which makes it visible
// at system scope after its copies (cuStreamWriteValue64 without
// CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER). host is the memory, or nil if the host
// cannot access it.
func (s *socket) update(f *message.Frame, m *target.Memory, host []byte) error {
	if host != nil && s.rx.idle() {
		if !m.Hold() {
			return target.Gone(m)
		}
		defer m.Release()
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&host[f.Offset])), f.Total)
		return nil
	}
	if s.rx.storeValues {
		return s.queue(m, func() error { return s.rx.stream.WriteValue64(m.Buffer, f.Offset, f.Total) })
	}
	// A copy of 8 aligned bytes is not torn. They take the place of the frame's head,
	// which is longer and no longer needed.
	at := (s.r - message.FrameSize + 7) &^ 7
	binary.NativeEndian.PutUint64(s.slots[s.cur].bytes[at:], f.Total)
	return s.copy(m, f.Offset, at, 8)
}
