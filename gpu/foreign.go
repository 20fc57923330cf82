package gpu

import "github.com/mscclgo/mscclgo"

// standardStream is which of the driver's default streams a stream is.
type standardStream int

const (
	noStandard standardStream = iota
	legacyStream
	threadStream
)

// standardOf returns which default stream a handle is of.
func standardOf(handle uintptr) standardStream {
	switch handle {
	case 0, 1: // NULL, cudaStreamLegacy
		return legacyStream
	case 2: // cudaStreamPerThread
		return threadStream
	}
	return noStandard
}

// WrapStream returns a stream for the handle of one that other code of this process made
// and still owns: a cudaStream_t or CUstream on an NVIDIA GPU, such as a framework's
// current stream, and on an emulated device the [Stream.Handle] of a stream of any Device
// of the same name. Work queued by the methods of both goes in the order of the calls. Close
// leaves the stream open to its owner, who must not destroy it before Close is called.
//
// 0 and cudaStreamLegacy (1) are the legacy default stream, for which other streams of the
// process wait, except streams that were made not to. Launch kernels that wait for a peer on
// another stream: ranks of one process that share a GPU have one legacy stream, where one
// rank's kernel would be queued behind the other's kernel that waits for it.
// cudaStreamPerThread (2) is the default stream of the OS thread that makes a call, so its
// caller locks the goroutine to a thread ([runtime.LockOSThread]); on an emulated device all
// threads have the same.
//
// # Captures of other code
//
// When its owner captures the stream into a graph, what the stream is given becomes part of
// the graph; all methods that queue work can be used. [Stream.Query] and
// [Stream.Synchronize] fail, and do the capture no harm. The graph needs the memory, modules
// and events that it uses, and nothing keeps these open for it.
//
// Errors: ErrInvalid if the stream is of another device or, on an NVIDIA GPU, not of the
// primary context, which the CUDA runtime uses. The handle of a stream that was
// destroyed is ErrInvalid on an emulated device; the CUDA driver may not notice.
func (d *Device) WrapStream(handle uintptr) (*Stream, error) {
	if err := d.usable("gpu: wrap a stream"); err != nil {
		return nil, err
	}
	b, err := d.b.WrapStream(handle)
	if err != nil {
		return nil, err
	}
	s := &Stream{dev: d, b: b, foreign: true, standard: standardOf(handle)}
	s.outside.Store(true)
	d.remember(s)
	return s, nil
}

// WrapEvent returns an event for the handle of one that other code of this process made
// and still owns: a cudaEvent_t or CUevent on an NVIDIA GPU, and on an emulated device the
// [Event.Handle] of an event of any Device of the same name. Close leaves it open to its
// owner, who must not destroy it before Close is called.
//
// [Event.Since] needs events that record the time, as cudaEventDisableTiming prevents. An
// event that other code recorded in a capture that has not ended must not be queried or
// synchronized, which makes the capture invalid.
//
// Errors: ErrInvalid for 0, and on an emulated device for a handle that is not of an open
// event of the device. The CUDA driver notices a wrong handle, or an event of another
// device, only when it is used, if at all.
func (d *Device) WrapEvent(handle uintptr) (*Event, error) {
	const op = "gpu: wrap an event"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if handle == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "no event has the handle 0")
	}
	b, err := d.b.WrapEvent(handle)
	if err != nil {
		return nil, err
	}
	e := &Event{dev: d, b: b}
	e.outside.Store(true)
	return e, nil
}
