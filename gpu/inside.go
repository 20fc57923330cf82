package gpu

import (
	"context"
	"os"
	"runtime"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Internal is for packages of this module.
func (s *Stream) Internal() inside.Stream[*Stream, *Event, *Buffer] { return streamInside{s} }

// Internal is for packages of this module.
func (b *Buffer) Internal() inside.Buffer { return bufferInside{b} }

// Internal is for packages of this module.
func (k *Kernel) Internal() inside.Kernel[*Stream, LaunchConfig] { return kernelInside{k} }

// Internal is for packages of this module.
func (d *Device) Internal() inside.Device[*Buffer] { return deviceInside{d} }

// The insides have one pointer each, so that no call allocates.
type (
	streamInside struct{ *Stream }
	bufferInside struct{ *Buffer }
	kernelInside struct{ *Kernel }
	deviceInside struct{ *Device }
)

func (s streamInside) Queue() *native.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native == nil && !s.closed.Load() && !s.foreign {
		s.native = s.b.Native()
	}
	return s.native
}

func (s streamInside) QueueError(f native.Failure) error { return s.b.NativeError(f) }

func (s streamInside) Capture() uint64 { return s.capturing().number() }

func (s streamInside) Enter(op string) (capture uint64, err error) {
	c, err := s.enter(op)
	return c.number(), err
}

func (s streamInside) CapturedByOthers() bool { return s.capturing().isForeign() }

func (s streamInside) OfThread() bool { return s.standard == threadStream }

func (s streamInside) InContext(f func() error) error {
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

func (s streamInside) RecordAcross(e *Event) error {
	e.capture.Store(nil)
	return s.b.RecordAcross(e.b)
}

func (s streamInside) WaitAcross(e *Event) error { return s.b.WaitAcross(e.b) }

func (s streamInside) Carry(id uint64, late bool, around func(*Stream, inside.GraphLaunch) error) {
	s.carry(launchHook{id, late, around})
}

func (s streamInside) Explain(f func(error) error) { s.explain.Store(&f) }

func (s streamInside) Synchronize(ctx context.Context) error {
	if err := s.usable(synchronizing); err != nil {
		return err
	}
	return s.finish(ctx)
}

func (s streamInside) BeforeClose(id uint64, f func()) {
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

func (s streamInside) Usable(op string) error { return s.open(op) }

func (s streamInside) Reaches(b *Buffer, op string, n uint64) error { return s.reachOnly(op, b, 0, n) }

func (b bufferInside) Gate() *native.Gate { return b.mem.life.nativeGate() }

func (b bufferInside) Keep() (letGo func() error, ok bool) { return b.mem.letGo, b.mem.keep() }

func (b bufferInside) Freed() bool { return b.mem.life.over() }

func (b bufferInside) Renew() error {
	return b.replaced("gpu: renew memory", backend.Replaceable.Renew)
}

func (b bufferInside) Remap(file *os.File) error {
	defer runtime.KeepAlive(file)
	const op = "gpu: remap memory"
	if file == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "there is no file")
	}
	return b.replaced(op, func(r backend.Replaceable) error { return r.Remap(int(file.Fd())) })
}

// replaced replaces the memory at the buffer's address.
func (b bufferInside) replaced(op string, how func(backend.Replaceable) error) error {
	if err := b.usable(op); err != nil {
		return err
	}
	if b.view || b.mem.replace == nil {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this kind of memory has no place of its own")
	}
	return how(b.mem.replace)
}

func (k kernelInside) Params() []inside.Param {
	all := make([]inside.Param, len(k.params))
	for i, p := range k.params {
		all[i] = inside.Param{Offset: p.place.Offset, Size: p.place.Size, Param: p.signature}
	}
	return all
}

func (k kernelInside) LaunchPacked(s *Stream, cfg LaunchConfig, args []byte) error {
	shape, capture, err := k.launchable(s, cfg)
	if err != nil {
		return err
	}
	const align = 16 // the most that C aligns a struct to
	if padded := (k.bytes + align - 1) / align * align; len(args) < k.bytes || len(args) > padded {
		return k.invalid("%d bytes of arguments given, and the %d parameters have %d", len(args), len(k.params), k.bytes)
	}
	return k.queue(s, capture, shape, args[:k.bytes])
}

func (d deviceInside) Use(by string) (end func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(by); err != nil {
		return nil, err
	}
	if d.users == nil {
		d.users = map[*string]bool{}
	}
	d.users[&by] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.users, &by)
	}, nil
}

func (d deviceInside) WrapVouched(address, bytes uint64) *Buffer {
	if d.kind == kindCUDA && !d.closed.Load() && bytes > 0 && address+bytes > address {
		return d.wrap(Ptr(address), bytes, address, bytes)
	}
	return nil
}

func (d deviceInside) BeginBusy(what string, compiles bool) (end func()) {
	return d.busy.begin(what, compiles)
}

func (d deviceInside) Busy() []inside.Busy { return d.busy.all() }

func (d deviceInside) SlowDriver(f func()) { d.slow.Store(&f) }

func (d deviceInside) Launches(query bool) (all [][]inside.Launch) {
	for _, s := range d.openStreams() {
		if query {
			s.askEnded()
		}
		if launches := s.log.read(); len(launches) > 0 {
			all = append(all, launches)
		}
	}
	return all
}

func (d deviceInside) GroupLaunches() inside.LaunchGroup {
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	g.made++
	return &launchGroup{all: g, number: g.made}
}

func (d deviceInside) Still() inside.Still {
	if s, ok := d.b.(backend.Stiller); ok {
		return s.Still()
	}
	return inside.Still{}
}

func (d deviceInside) TraceLaunches(ring uint64) (sites func() []native.LaunchSite, stop func(), ok bool) {
	t := &launchTrace{ring: ring, numbers: map[native.LaunchSite]uint64{}}
	if !d.trace.CompareAndSwap(nil, t) {
		return nil, nil, false
	}
	return t.all, func() { d.trace.CompareAndSwap(t, nil) }, true
}

func (d deviceInside) Clock() (native.Clock, error) { return d.clock() }
