package gpu

import (
	"context"
	"os"
	"runtime"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/signature"
)

func init() {
	native.QueueOf = func(s any) *native.Queue { return s.(*Stream).queue() }
	native.QueueError = func(s any, f native.Failure) error { return s.(*Stream).b.NativeError(f) }
	native.CaptureOf = func(s any) any {
		if c := s.(*Stream).capturing(); c != nil {
			return c.id
		}
		return nil
	}
	native.Enter = func(s any, op string) (any, error) {
		c, err := s.(*Stream).enter(op)
		if c == nil {
			return nil, err
		}
		return c.id, err
	}
	native.CapturedByOthers = func(s any) bool { return s.(*Stream).capturing().isForeign() }
	native.OfThread = func(s any) bool { return s.(*Stream).standard == threadStream }
	native.InContext = func(s any, f func() error) error { return s.(*Stream).inContext(f) }
	native.RecordAcross = func(s, e any) error { return s.(*Stream).recordAcross(e.(*Event)) }
	native.WaitAcross = func(s, e any) error { return s.(*Stream).b.WaitAcross(e.(*Event).b) }
	native.Carry = func(s any, id uint64, late bool, around func(any, native.GraphLaunch) error) {
		s.(*Stream).carry(launchHook{id, late, around})
	}
	native.SlowDriver = func(d any, f func()) { d.(*Device).slow.Store(&f) }
	native.Explain = func(s any, f func(error) error) { s.(*Stream).explain.Store(&f) }
	native.Synchronize = func(ctx context.Context, s any) error {
		if err := s.(*Stream).usable(synchronizing); err != nil {
			return err
		}
		return s.(*Stream).finish(ctx)
	}
	native.BeforeClose = func(s any, id uint64, f func()) { s.(*Stream).beforeClose(id, f) }
	native.Usable = func(s, b any, op string, n uint64) error {
		if b == nil {
			return s.(*Stream).open(op)
		}
		return s.(*Stream).reachOnly(op, b.(*Buffer), 0, n)
	}
	native.Keep = func(b any) (func() error, bool) {
		a := b.(*Buffer).mem
		return a.letGo, a.keep()
	}
	native.Freed = func(b any) bool { return b.(*Buffer).mem.life.over() }
	native.Renew = func(b any) error { return b.(*Buffer).renew() }
	native.Remap = func(b any, file *os.File) error { return b.(*Buffer).remap(file) }
	native.WrapVouched = func(d any, address, bytes uint64) any {
		if d := d.(*Device); d.kind == kindCUDA && !d.closed.Load() && bytes > 0 && address+bytes > address {
			return d.wrap(Ptr(address), bytes, address, bytes)
		}
		return nil
	}
	native.UseDevice = func(d any, by string) (func(), error) { return d.(*Device).use(by) }
	native.LaunchesOf = func(d any, query bool) [][]native.Launch { return d.(*Device).launches(query) }
	native.GroupLaunches = func(d any) native.LaunchGroup { return d.(*Device).groupLaunches() }
	native.StillOf = func(d any) native.Still {
		if s, ok := d.(*Device).b.(backend.Stiller); ok {
			return s.Still()
		}
		return native.Still{}
	}
	native.TraceLaunches = func(d any, ring uint64) (func() []native.LaunchSite, func(), bool) {
		return d.(*Device).traceLaunches(ring)
	}
	native.ClockOf = func(d any) (native.Clock, error) { return d.(*Device).clock() }
	native.ParamsOf = func(k any) []native.Param { return k.(*Kernel).places() }
	native.SignatureOf = func(k any) []signature.Param { return k.(*Kernel).signature() }
	native.LaunchPacked = func(k, s, cfg any, args []byte) error {
		return k.(*Kernel).launchPacked(s.(*Stream), *cfg.(*LaunchConfig), args)
	}
	native.GateOf = func(b any) *native.Gate { return b.(*Buffer).mem.life.nativeGate() }
}

// renew implements native.Renew.
func (b *Buffer) renew() error {
	return b.replaced("gpu: renew memory", backend.Replaceable.Renew)
}

// remap implements native.Remap.
func (b *Buffer) remap(file *os.File) error {
	defer runtime.KeepAlive(file)
	const op = "gpu: remap memory"
	if file == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "there is no file")
	}
	return b.replaced(op, func(r backend.Replaceable) error { return r.Remap(int(file.Fd())) })
}

// replaced replaces the memory at the buffer's address.
func (b *Buffer) replaced(op string, how func(backend.Replaceable) error) error {
	if err := b.usable(op); err != nil {
		return err
	}
	if b.view || b.mem.replace == nil {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this kind of memory has no place of its own")
	}
	return how(b.mem.replace)
}

// queue returns the stream for threads in C, the same each time, or nil if the stream
// is closed or is another's. What they queue and what the stream's methods queue is done in the order
// of the calls. Close waits for the threads that use it.
func (s *Stream) queue() *native.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native == nil && !s.closed.Load() && !s.foreign {
		s.native = s.b.Native()
	}
	return s.native
}

// inContext implements native.InContext.
func (s *Stream) inContext(f func() error) error {
	const op = "gpu: enter the context of a stream"
	if err := s.usable(op); err != nil {
		return err
	}
	e, ok := s.b.(backend.Enterer)
	if !ok {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%v has no contexts", s.dev)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := e.Enter(); err != nil {
		return err
	}
	return f()
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
