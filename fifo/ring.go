// Package fifo lets GPU threads ask the host for something: a [Ring] of triggers in
// pinned host memory. Any number of threads push, with the device functions of
// <mscclgo/fifo.cuh>; one goroutine polls and pops.
//
// Each trigger that a thread pushes arrives once, whole, and in the order of its
// pushes.
package fifo

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -I${SRCDIR}/../internal
#cgo noescape poll
#cgo nocallback poll
#cgo noescape native_ring_payload
#cgo nocallback native_ring_payload
#cgo noescape native_ring_waiting
#cgo nocallback native_ring_waiting
#include "native/ring.h"

static size_t poll(native_ring* ring, native_trigger* dst, size_t n) {
  size_t i = 0;
  for (; i < n && native_ring_peek(ring, &dst[i]); i++) ring->polled++;
  return i;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Sizes of a ring, in triggers: a power of two.
const (
	minSize     = 2
	maxSize     = 1 << 16
	DefaultSize = 512
)

// MaxPayload is the largest Options.Payload, in bytes.
const MaxPayload = 1 << 16

// maxWords is the largest Options.Words and Options.DeviceWords.
const maxWords = 1 << 20

// defaultTimeout bounds each wait of a kernel where Options.Watch does not.
const defaultTimeout = 30 * time.Second

// Options configure a [Ring]. The zero value is right for most uses.
type Options struct {
	// Size is the number of triggers that the ring holds, a power of two. 0 means
	// DefaultSize.
	Size int
	// Words is the number of further 8-byte words of pinned memory,
	// through which the goroutine that serves the ring reports to kernels; see
	// what Internal returns.
	Words int
	// DeviceWords is the number of further 8-byte words of device memory; see
	// what Internal returns.
	DeviceWords int
	// Payload is the number of bytes that a thread may send with a trigger; see
	// [Ring.Payload]. 0 means none.
	Payload int
	// Watch bounds the waits of kernels, for room and in sync. A zero Watch.Status
	// means a status of the ring's own, which nobody aborts. A zero Watch.Timeout
	// means 30 s.
	Watch devicecode.Watch
}

// Ring is a ring of triggers. It takes pinned host memory, 32 bytes for each
// trigger and 128 more, and with Options.Payload that many bytes and up to 142 more
// for each trigger. It also takes 384 bytes of device memory, and Options.DeviceWords, an
// allocation of its own.
//
// Poll, PollBatch, Payload, Pop and Popped are for one goroutine at a time, all
// other methods for any.
type Ring struct {
	pinned *gpu.Buffer // the tail and a status, in their own line; the payloads; the entries; the words
	device *gpu.Buffer // a layout.FifoState, then the device words
	words  int
	watch  devicecode.Watch

	// state is an object of its own, without Go pointers, as C requires. Its
	// addresses, in pinned, are nil once the ring is closed.
	state *native.Ring

	closing sync.RWMutex // for Len and Words, which another goroutine may call
	servers []string     // who polls the ring and would crash without it
}

// The pinned memory begins with the tail, in a line of its own. The payloads, the entries
// and the words follow, and the status of a ring that has one of its own.
const (
	stateBytes  = int(unsafe.Sizeof(layout.FifoState{}))
	lineBytes   = 128 // a device's cache line: payloads begin at one
	statusAlign = 16  // of a devicecode.GroupStatus
)

// payloadAlign is the size of the words in which a payload lies as its bytes did in
// the device's memory.
const payloadAlign = 16

// New returns an empty ring on a device.
//
// Errors: ErrInvalid for sizes that are not possible and for a Watch that would not end
// waits, ErrSystem when memory is short.
func New(dev *gpu.Device, o Options) (*Ring, error) {
	if o.Size == 0 {
		o.Size = DefaultSize
	}
	op := fmt.Sprintf("fifo: new ring of %d triggers on %v", o.Size, dev)
	if o.Size < minSize || o.Size > maxSize || o.Size&(o.Size-1) != 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the size must be a power of two from %d to %d", minSize, maxSize)
	}
	if o.Words < 0 || o.Words > maxWords {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Words is %d, not 0 to %d", o.Words, maxWords)
	}
	if o.DeviceWords < 0 || o.DeviceWords > maxWords {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.DeviceWords is %d, not 0 to %d", o.DeviceWords, maxWords)
	}
	if o.Payload < 0 || o.Payload > MaxPayload {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Payload is %d, not 0 to %d", o.Payload, MaxPayload)
	}
	if err := native.CheckWatch(op, uint64(o.Watch.Status), o.Watch.Timeout); err != nil {
		return nil, err
	}
	state := &native.Ring{Size: uint64(o.Size), Payload: uint64(o.Payload)}
	if o.Payload != 0 {
		state.PayloadStride = (state.Payload + payloadAlign - 1 + lineBytes - 1) &^ (lineBytes - 1)
	}
	entries := lineBytes + state.Size*state.PayloadStride
	status := (entries + state.Size*native.EntryBytes + uint64(o.Words)*8 + statusAlign - 1) &^ (statusAlign - 1)
	bytes := status
	if o.Watch.Status == 0 {
		bytes += uint64(unsafe.Sizeof(layout.GroupStatus{}))
	}
	pinned, err := dev.AllocHost(bytes)
	if err != nil {
		return nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(pinned.Bytes()))
	state.Tail, state.Payloads, state.Entries = base, unsafe.Add(base, lineBytes), unsafe.Add(base, entries)
	if o.Watch.Status == 0 {
		o.Watch.Status = pinned.Ptr() + gpu.Ptr(status)
	}
	if o.Watch.Timeout == 0 {
		o.Watch.Timeout = uint64(defaultTimeout)
	}
	device, err := gpu.Upload(dev, make([]byte, stateBytes+8*o.DeviceWords))
	if err != nil {
		return nil, errors.Join(err, pinned.Close())
	}
	return &Ring{pinned: pinned, device: device, words: o.Words, watch: o.Watch, state: state}, nil
}

// Handle returns what kernels use.
func (r *Ring) Handle() devicecode.Fifo {
	h := layout.Fifo{
		Entries:      r.entries(),
		Tail:         r.pinned.Ptr(),
		State:        r.device.Ptr(),
		Size:         r.state.Size,
		PayloadBytes: r.state.PayloadStride,
		Watch:        layout.Watch(r.watch),
	}
	if r.state.Payload != 0 {
		h.Payloads = r.pinned.Ptr() + lineBytes
	}
	return layout.Handle[devicecode.Fifo](h)
}

// entries returns the address of the entries as kernels see it.
func (r *Ring) entries() gpu.Ptr {
	return r.pinned.Ptr() + gpu.Ptr(lineBytes+r.state.Size*r.state.PayloadStride)
}

// Device returns the device whose kernels push.
func (r *Ring) Device() *gpu.Device { return r.pinned.Device() }

// Size returns the number of triggers that the ring holds.
func (r *Ring) Size() int { return int(r.state.Size) }

func (r ringInside) Words() ([]atomic.Uint64, gpu.Ptr) {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if r.state.Entries == nil {
		return nil, 0
	}
	offset := r.state.Size * native.EntryBytes
	first := (*atomic.Uint64)(unsafe.Add(r.state.Entries, offset))
	return unsafe.Slice(first, r.words), r.entries() + gpu.Ptr(offset)
}

func (r ringInside) DeviceWords() gpu.Ptr { return r.device.Ptr() + gpu.Ptr(stateBytes) }

func (r ringInside) PayloadSize() int { return int(r.state.Payload) }

// Payload returns the bytes that a thread sent with a trigger (pushWith of
// <mscclgo/fifo.cuh>) which was polled at a position. They are valid until Pop
// frees the trigger's entry. Payload reports whether the trigger, which may hold
// anything, has such bytes and was polled and not popped.
func (r *Ring) Payload(position uint64, t Trigger) ([]byte, bool) {
	if r.state.Tail == nil || position-r.state.Popped >= r.state.Polled-r.state.Popped {
		return nil, false
	}
	p := C.native_ring_payload(r.c(), C.uint64_t(position), (*C.native_trigger)(unsafe.Pointer(&t)))
	if p == nil {
		return nil, false
	}
	return unsafe.Slice((*byte)(p), t.C), true
}

// Poll returns the oldest trigger that was not polled, and reports whether one has
// arrived. Its entry stays taken until [Ring.Pop]. What the pushing thread wrote
// before is visible, unless it pushed relaxed.
func (r *Ring) Poll() (t Trigger, ok bool) {
	ok = r.PollBatch(unsafe.Slice(&t, 1)) == 1
	return t, ok
}

// PollBatch polls as many triggers into dst as have arrived and fit, as Poll does,
// and returns their number.
func (r *Ring) PollBatch(dst []Trigger) int {
	if r.state.Tail == nil || !r.arrived() {
		return 0
	}
	return int(C.poll(r.c(), (*C.native_trigger)(unsafe.Pointer(unsafe.SliceData(dst))), C.size_t(len(dst))))
}

// arrived reports whether the next trigger may have arrived, so that polling an
// empty ring does not cross into C. It looks at the tag of the first word alone.
func (r *Ring) arrived() bool {
	s := r.state
	word := atomic.LoadUint64((*uint64)(unsafe.Add(s.Entries, s.Polled%s.Size*native.EntryBytes)))
	return (word>>63 == 1) == (s.Polled&s.Size == 0)
}

// Pop frees the entries of the n oldest triggers that were polled, and tells
// kernels that these were served: after sync, they see what this goroutine wrote to
// pinned memory before.
//
// Errors: ErrInvalid when fewer were polled, or the ring is closed.
func (r *Ring) Pop(n int) error {
	if r.state.Tail == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "fifo: pop", "the ring is closed")
	}
	if n < 0 || uint64(n) > r.state.Polled-r.state.Popped {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "fifo: pop", "%d triggers to be popped, %d were polled", n, r.state.Polled-r.state.Popped)
	}
	r.state.Popped += uint64(n)
	atomic.StoreUint64((*uint64)(r.state.Tail), r.state.Popped)
	return nil
}

// Internal is for packages of this module.
func (r *Ring) Internal() inside.Ring[gpu.Ptr] { return ringInside{r} }

type ringInside struct{ *Ring }

func (r ringInside) State() *native.Ring { return r.state }

func (r ringInside) Serve(by string) (end func(), err error) {
	r.closing.Lock()
	defer r.closing.Unlock()
	if r.state.Tail == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, by, "its ring is closed")
	}
	release, err := r.Device().Internal().Use(by)
	if err != nil {
		return nil, err
	}
	r.servers = append(r.servers, by)
	return func() {
		r.closing.Lock()
		defer r.closing.Unlock()
		i := slices.Index(r.servers, by)
		r.servers = slices.Delete(r.servers, i, i+1)
		release()
	}, nil
}

func (r *Ring) c() *C.native_ring { return (*C.native_ring)(unsafe.Pointer(r.state)) }

// Popped returns how many triggers were popped in all, which is also the position
// of the next one.
func (r *Ring) Popped() uint64 { return r.state.Popped }

// Len returns how many triggers have arrived and were not popped.
func (r *Ring) Len() int {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if r.state.Tail == nil {
		return 0
	}
	return int(C.native_ring_waiting(r.c()))
}

// Close frees the ring. Kernels that push and the goroutine that polls must have
// ended. It is safe to call twice, and does nothing on nil.
//
// Errors: ErrInvalid while a proxy serves the ring, which stays open then.
func (r *Ring) Close() error {
	if r == nil {
		return nil
	}
	r.closing.Lock()
	defer r.closing.Unlock()
	if len(r.servers) > 0 {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "fifo: close", "%s serves it; stop that first", r.servers[0])
	}
	r.state.Tail, r.state.Entries, r.state.Payloads = nil, nil, nil
	return errors.Join(r.device.Close(), r.pinned.Close())
}
