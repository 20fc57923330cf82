package gpu

import "github.com/mscclgo/mscclgo/internal/native"

// Native gives the stream to threads in C, the same each time, or nil when the
// stream is closed. What they queue and what the stream's methods queue is done in
// the order of the calls. Close waits for those that use it.
func (s *Stream) Native() *native.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native == nil && !s.closed.Load() {
		s.native = s.b.Native()
	}
	return s.native
}

// NativeError gives the error of an operation of [Stream.Native] that failed.
func (s *Stream) NativeError(f native.Failure) error { return s.b.NativeError(f) }

// Gate gives what threads in C pass to use the memory, the same for all views of
// it. Close waits for those inside.
func (b *Buffer) Gate() *native.Gate { return b.mem.life.door() }
