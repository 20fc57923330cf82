package gpu

import "github.com/mscclgo/mscclgo/internal/native"

func init() {
	native.QueueOf = func(s any) *native.Queue { return s.(*Stream).queue() }
	native.QueueError = func(s any, f native.Failure) error { return s.(*Stream).b.NativeError(f) }
	native.GateOf = func(b any) *native.Gate { return b.(*Buffer).mem.life.door() }
}

// queue returns the stream to threads in C, the same each time, or nil when the
// stream is closed. What they queue and what the stream's methods queue is done in
// the order of the calls. Close waits for those that use it.
func (s *Stream) queue() *native.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native == nil && !s.closed.Load() {
		s.native = s.b.Native()
	}
	return s.native
}
