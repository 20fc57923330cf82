package gpu

import "github.com/mscclgo/mscclgo/internal/native"

func init() {
	native.QueueOf = func(s any) *native.Queue { return s.(*Stream).queue() }
	native.QueueError = func(s any, f native.Failure) error { return s.(*Stream).b.NativeError(f) }
	native.CaptureOf = func(s any) any {
		if c := s.(*Stream).capturing(); c != nil {
			return c
		}
		return nil
	}
	native.Carry = func(s any, id uint64, around func(any, func() error) error) { s.(*Stream).carry(id, around) }
	native.BeforeClose = func(s any, id uint64, f func()) { s.(*Stream).beforeClose(id, f) }
	native.Usable = func(s, b any, op string, n uint64) error {
		if b == nil {
			return s.(*Stream).usable(op)
		}
		return s.(*Stream).reach(op, b.(*Buffer), 0, n)
	}
	native.Keep = func(b any) (func() error, bool) {
		a := b.(*Buffer).mem
		return a.letGo, a.keep()
	}
	native.UseDevice = func(d any, by string) (func(), error) { return d.(*Device).use(by) }
	native.GateOf = func(b any) *native.Gate { return b.(*Buffer).mem.life.door() }
}

// queue returns the stream for threads in C, the same each time, or nil if the stream
// is closed. What they queue and what the stream's methods queue is done in the order
// of the calls. Close waits for the threads that use it.
func (s *Stream) queue() *native.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native == nil && !s.closed.Load() {
		s.native = s.b.Native()
	}
	return s.native
}

// beforeClose implements native.BeforeClose.
func (s *Stream) beforeClose(id uint64, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.closing, id)
	if f == nil || s.ending {
		return
	}
	if s.closing == nil {
		s.closing = map[uint64]func(){}
	}
	s.closing[id] = f
}
