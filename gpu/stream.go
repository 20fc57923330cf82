package gpu

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Compare is a comparison of [Stream.WaitValue64].
type Compare int

// The comparisons of [Stream.WaitValue64].
const (
	GreaterOrEqual Compare = iota // the signed difference is not negative, so values may wrap around
	Equal
)

// Stream runs work in the order in which it is queued, concurrently with other streams.
// Methods that queue work return once it is queued.
type Stream struct {
	dev     *Device
	b       backend.Stream
	closed  atomic.Bool
	foreign bool // from WrapStream
	// standard is the driver's default stream. The legacy one cannot be used while some
	// others capture, and the other one is of the calling thread.
	standard standardStream

	outside atomic.Bool             // other code may have it capture: ask the driver
	capture atomic.Pointer[capture] // the last that it was found to take part in
	log     launchLog
	explain atomic.Pointer[func(error) error] // of Synchronize; see Explain of inside.Stream
	traced  int                               // its number in the device's trace, or 0; guarded by the trace's mu

	mu      sync.Mutex
	native  *native.Queue     // nil until first needed
	closing map[uint64]func() // what to call before it closes; see BeforeClose of inside.Stream
	ending  bool              // Close was called
}

// NewStream creates a stream. The caller closes it.
func (d *Device) NewStream() (*Stream, error) {
	if err := d.usable("gpu: new stream"); err != nil {
		return nil, err
	}
	b, err := d.b.NewStream()
	if err != nil {
		return nil, err
	}
	s := &Stream{dev: d, b: b}
	d.remember(s)
	return s, nil
}

// Device returns the stream's device.
func (s *Stream) Device() *Device { return s.dev }

// Handle returns a handle of the stream for other code of this process: the handle of
// [Device.WrapStream], and on an NVIDIA GPU for libraries such as NCCL and cuBLAS, since it
// is a CUstream of the device's primary context. It is 0 once the stream is closed. It is
// valid until [Stream.Close], which the caller must not call while other code still uses
// it. Work queued through it runs in order with the work queued by the stream's methods,
// and may begin a capture. Only Close may destroy the stream.
func (s *Stream) Handle() uintptr {
	if s.usable("") != nil {
		return 0
	}
	s.outside.Store(true)
	return s.b.Handle()
}

// Copy queues a copy of n bytes. Either side may be device memory, pinned host memory
// or mapped memory of a peer. The ranges must not overlap.
//
// Errors: ErrInvalid if a range is not inside its buffer, or a buffer belongs to
// another device; see [Device.Access].
func (s *Stream) Copy(dst *Buffer, dstOffset uint64, src *Buffer, srcOffset, n uint64) error {
	if err := s.reach("gpu: copy to", dst, dstOffset, n); err != nil {
		return err
	}
	if err := s.reach("gpu: copy from", src, srcOffset, n); err != nil || n == 0 {
		return err
	}
	return s.b.Copy(uint64(dst.ptr)+dstOffset, uint64(src.ptr)+srcOffset, n)
}

// Fill queues setting n bytes to value.
//
// Errors: as for [Stream.Copy].
func (s *Stream) Fill(dst *Buffer, offset uint64, value byte, n uint64) error {
	if err := s.reach("gpu: fill", dst, offset, n); err != nil || n == 0 {
		return err
	}
	return s.b.Fill(uint64(dst.ptr)+offset, value, n)
}

// WriteValue64 queues the store of an 8-byte value, whose address must be a multiple
// of 8. A reader that acquires the value at system scope sees all earlier work of the
// stream.
//
// Errors: as for [Stream.Copy], and ErrInvalid if the address is not aligned.
func (s *Stream) WriteValue64(dst *Buffer, offset, value uint64) error {
	if err := s.word("gpu: stream write value", dst, offset); err != nil {
		return err
	}
	return s.b.WriteValue64(uint64(dst.ptr)+offset, value)
}

func (s streamInside) Add64(dst *Buffer, offset, value uint64) error {
	if err := s.word("gpu: stream add", dst, offset); err != nil {
		return err
	}
	return s.b.Add64(uint64(dst.ptr)+offset, value)
}

func (s streamInside) Exchange64(dst *Buffer, offset, value uint64, old *Buffer, oldOffset uint64) error {
	const op = "gpu: stream exchange"
	if err := s.word(op, dst, offset); err != nil {
		return err
	}
	if err := s.word(op, old, oldOffset); err != nil {
		return err
	}
	return s.b.Exchange64(uint64(dst.ptr)+offset, value, uint64(old.ptr)+oldOffset)
}

// WaitValue64 queues a wait until the 8 bytes at offset are equal to value, or greater
// or equal. Their address must be a multiple of 8. The wait has no timeout: it ends
// only when the value is stored.
//
// Errors: as for [Stream.WriteValue64].
func (s *Stream) WaitValue64(src *Buffer, offset, value uint64, how Compare) error {
	if err := s.word("gpu: stream wait value", src, offset); err != nil {
		return err
	}
	if how != GreaterOrEqual && how != Equal {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: stream wait value", "comparison %d is neither GreaterOrEqual nor Equal", how)
	}
	return s.b.WaitValue64(uint64(src.ptr)+offset, value, how == Equal)
}

// Record makes e, an event of the stream's device, mark the work queued so far.
func (s *Stream) Record(e *Event) error {
	if err := s.usable("gpu: record an event"); err != nil {
		return err
	}
	if err := e.usable("gpu: record an event"); err != nil {
		return err
	}
	if e.dev != s.dev {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: record an event", "the event is of %v, the stream of %v%s", e.dev, s.dev, native.Twice(e.dev, s.dev))
	}
	e.capture.Store(s.capturing())
	return s.b.Record(e.b)
}

// Wait makes the work queued from now on wait for the work that e marks at the time of
// the call. The event may be of any device of the same kind.
func (s *Stream) Wait(e *Event) error {
	if err := s.usable("gpu: wait for an event"); err != nil {
		return err
	}
	if err := e.usable("gpu: wait for an event"); err != nil {
		return err
	}
	if err := s.b.WaitEvent(e.b); err != nil {
		return err
	}
	c := e.capture.Load()
	if e.outside.Load() || c.isForeign() {
		s.outside.Store(true)
	}
	if c.underway() {
		s.capture.Store(c)
	}
	return nil
}

// Query reports whether all queued work is done. If work failed, it returns the error. It
// is ErrInvalid while the stream captures, and does the capture no harm.
func (s *Stream) Query() (bool, error) {
	if err := s.usable("gpu: query a stream"); err != nil {
		return false, err
	}
	made := s.log.made()
	done, err := s.b.Query()
	if done {
		s.log.end(made)
	}
	return done, err
}

const synchronizing = "gpu: synchronize a stream"

// Synchronize waits until all queued work is done. It knows no group of ranks: a kernel
// whose wait for a peer failed has ended as any other. Communicator.Synchronize of package
// communicator tells of such waits, and so does this method of a stream from
// Communicator.NewStream.
//
// Errors: ErrTimeout or ErrAborted if ctx ends first, in which case the work goes on;
// ErrSystem if work failed; ErrInvalid while the stream captures, which does the capture no
// harm.
func (s *Stream) Synchronize(ctx context.Context) error {
	if err := s.usable(synchronizing); err != nil {
		return err
	}
	err := s.finish(ctx)
	if explain := s.explain.Load(); explain != nil {
		return (*explain)(err)
	}
	return err
}

// finish waits until all queued work is done.
func (s *Stream) finish(ctx context.Context) error {
	made := s.log.made()
	err := s.b.Synchronize(ctx)
	if err == nil {
		s.log.end(made)
	}
	return err
}

// Close releases the stream. It does not wait for queued work, which still runs. A capture that
// the stream began ends, and its work is dropped. A stream of [Device.WrapStream] stays open to its
// owner. It is safe to call twice, and does nothing on nil.
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	ended, closing := s.ending, s.closing
	s.ending, s.closing = true, nil
	s.mu.Unlock()
	if ended {
		return nil
	}
	s.dropCapture() // so that what closing has can mark the work before it
	for _, f := range closing {
		f()
	}
	s.closed.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native != nil {
		s.native.Close()
	}
	return s.b.Close()
}

// usable returns an error if the stream cannot be used now. Of the legacy default stream the
// driver tells that.
func (s *Stream) usable(op string) error {
	if err := s.open(op); err != nil || s.standard != legacyStream {
		return err
	}
	_, err := s.b.Capture() // of others, with which it would interfere
	return err
}

// enter is usable for what becomes part of a capture, which it returns, or nil: the driver is asked
// once about both.
func (s *Stream) enter(op string) (*capture, error) {
	if err := s.open(op); err != nil {
		return nil, err
	}
	if s.standard != legacyStream {
		return s.capturing(), nil
	}
	id, err := s.b.Capture()
	if err != nil {
		return nil, err
	}
	return s.captureBy(id), nil
}

// open returns an error if the stream is nil, or it or its device is closed.
func (s *Stream) open(op string) error {
	if s == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the stream is nil")
	}
	if s.closed.Load() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the stream on %v is closed", s.dev)
	}
	return s.dev.usable(op)
}

// reach returns an error if the stream's device cannot access the range.
func (s *Stream) reach(op string, b *Buffer, offset, n uint64) error {
	if err := s.usable(op); err != nil {
		return err
	}
	return s.reachOnly(op, b, offset, n)
}

// reachOnly is reach of a stream that is known to be usable.
func (s *Stream) reachOnly(op string, b *Buffer, offset, n uint64) error {
	if err := b.check(op, offset, n); err != nil {
		return err
	}
	if !s.dev.reaches(b) {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the buffer belongs to %v, not to the stream's Device on %v; Device.Access makes it usable there", b.dev, s.dev)
	}
	return nil
}

// word checks an 8-byte word.
func (s *Stream) word(op string, b *Buffer, offset uint64) error {
	if err := s.reach(op, b, offset, 8); err != nil {
		return err
	}
	if (uint64(b.ptr)+offset)%8 != 0 {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the word at offset %d is not aligned to 8 bytes", offset)
	}
	return nil
}
