// Package fifo is how GPU threads ask the host for something: a [Ring] of
// triggers in pinned host memory. Any number of threads push, with the device
// functions of <mscclgo/fifo.cuh>; one goroutine polls and pops.
//
// What a thread pushes arrives once, whole, and in the order of its pushes.
package fifo

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Sizes of a ring, in triggers: a power of two.
const (
	MinSize     = 2
	MaxSize     = 1 << 16
	DefaultSize = 512
)

// MaxPayload bounds Options.Payload, in bytes.
const MaxPayload = 1 << 16

// maxWords bounds Options.Words.
const maxWords = 1 << 20

// Options are what a ring's owner may choose; the zero value is right for most.
type Options struct {
	// Size is the number of triggers that the ring holds. 0 means DefaultSize.
	Size int
	// Words is the number of further 8-byte words of pinned memory, through
	// which who serves the ring tells kernels something; see [Ring.Word].
	Words int
	// Payload is the number of bytes that a thread may send with a trigger; see
	// [Ring.Payload]. 0 means none.
	Payload int
	// Watch bounds the waits of kernels, for room and in sync.
	Watch devicecode.Watch
}

// Ring is a ring of triggers. It takes pinned host memory, 32 bytes a trigger
// and 128 more, and with Options.Payload so many bytes and up to 142 more a trigger;
// and 384 bytes of device memory, an allocation of its own.
//
// Poll, PollBatch, Payload and Pop are for one goroutine at a time, all else for any.
type Ring struct {
	pinned   *gpu.Buffer // the tail, alone in its lines; the payloads; the entries; the words
	device   *gpu.Buffer // a devicecode.FifoState
	payload  uint64      // Options.Payload
	payloads []byte      // of all entries
	words    int
	watch    devicecode.Watch

	// state is an object of its own, without Go pointers, as C requires. Its
	// addresses, in pinned, are nil once the ring is closed.
	state *native.Ring

	closing sync.RWMutex // for who looks from another goroutine
}

// lineBytes is a device's cache line, which the tail has for itself and payloads
// begin.
const lineBytes = 128

// payloadAlign is how payloads lie as their bytes did in the device's memory: alike
// in words of so many bytes.
const payloadAlign = 16

// New makes an empty ring on a device.
//
// Errors: ErrInvalid for sizes that cannot be, ErrSystem when memory is short.
func New(dev *gpu.Device, o Options) (*Ring, error) {
	if o.Size == 0 {
		o.Size = DefaultSize
	}
	op := fmt.Sprintf("fifo: make a ring of %d triggers on %v", o.Size, dev)
	if o.Size < MinSize || o.Size > MaxSize || o.Size&(o.Size-1) != 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the size must be a power of two from %d to %d", MinSize, MaxSize)
	}
	if o.Words < 0 || o.Words > maxWords {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d further words asked, 0 to %d are possible", o.Words, maxWords)
	}
	if o.Payload < 0 || o.Payload > MaxPayload {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "a payload of %d bytes a trigger asked, 0 to %d are possible", o.Payload, MaxPayload)
	}
	if o.Watch.Status == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Watch has no status, so waits of kernels could not end")
	}
	r := &Ring{payload: uint64(o.Payload), words: o.Words, watch: o.Watch}
	size := uint64(o.Size)
	entries := lineBytes + size*r.payloadBytes()
	var err error
	if r.pinned, err = dev.AllocHost(entries + size*entryBytes + uint64(o.Words)*8); err != nil {
		return nil, err
	}
	bytes := r.pinned.Bytes()
	base := unsafe.Pointer(unsafe.SliceData(bytes))
	r.payloads = bytes[lineBytes:entries:entries]
	r.state = &native.Ring{Tail: base, Entries: unsafe.Add(base, entries), Size: size}
	if r.device, err = gpu.Upload(dev, make([]devicecode.FifoState, 1)); err != nil {
		return nil, errors.Join(err, r.pinned.Close())
	}
	return r, nil
}

// payloadBytes gives what an entry's payload takes.
func (r *Ring) payloadBytes() uint64 {
	if r.payload == 0 {
		return 0
	}
	return (r.payload + payloadAlign - 1 + lineBytes - 1) &^ (lineBytes - 1)
}

// Handle gives what kernels use.
func (r *Ring) Handle() devicecode.Fifo {
	h := devicecode.Fifo{
		Entries:      r.entries(),
		Tail:         r.pinned.Ptr(),
		State:        r.device.Ptr(),
		Size:         r.state.Size,
		PayloadBytes: r.payloadBytes(),
		Watch:        r.watch,
	}
	if r.payload != 0 {
		h.Payloads = r.pinned.Ptr() + lineBytes
	}
	return h
}

// entries gives the address of the entries as kernels see it.
func (r *Ring) entries() gpu.Ptr { return r.pinned.Ptr() + gpu.Ptr(lineBytes+len(r.payloads)) }

// Device gives the device whose kernels push.
func (r *Ring) Device() *gpu.Device { return r.pinned.Device() }

// Size gives the number of triggers that the ring holds.
func (r *Ring) Size() int { return int(r.state.Size) }

// Words gives the Options.Words further words as the host sees them, 0 at
// first, and the address of the first as kernels see it. Nothing in this package
// uses them. They go with the ring.
func (r *Ring) Words() ([]atomic.Uint64, gpu.Ptr) {
	offset := r.state.Size * entryBytes
	first := (*atomic.Uint64)(unsafe.Add(r.state.Entries, offset))
	return unsafe.Slice(first, r.words), r.entries() + gpu.Ptr(offset)
}

// PayloadSize gives Options.Payload.
func (r *Ring) PayloadSize() int { return int(r.payload) }

// Payload gives the bytes that a thread sent with a trigger (pushWith of
// <mscclgo/fifo.cuh>), which was polled at a position and not popped: Pop gives them
// back to kernels. It says false where the trigger, which may hold anything, does not
// tell of such bytes.
func (r *Ring) Payload(position uint64, t Trigger) ([]byte, bool) {
	if r.state.Tail == nil || position-r.state.Popped >= r.state.Polled-r.state.Popped {
		return nil, false
	}
	if t.B >= payloadAlign || t.C == 0 || t.C > r.payload {
		return nil, false
	}
	at := position&(r.state.Size-1)*r.payloadBytes() + t.B
	return r.payloads[at : at+t.C : at+t.C], true
}

// entry gives the words of a position's entry.
func (r *Ring) entry(position uint64) *[entryWords]uint64 {
	return (*[entryWords]uint64)(unsafe.Add(r.state.Entries, position&(r.state.Size-1)*entryBytes))
}

// tag gives the tag of a position's lap. Fresh memory has the tag of no lap.
func (r *Ring) tag(position uint64) uint64 {
	if position&r.state.Size != 0 {
		return 0
	}
	return tagBit
}

// Poll gives the oldest trigger that was not polled yet, if it has arrived. Its
// entry stays taken until [Ring.Pop]. What the pushing thread wrote before is
// visible, unless it pushed relaxed.
func (r *Ring) Poll() (Trigger, bool) {
	if r.state.Tail == nil {
		return Trigger{}, false
	}
	words := r.entry(r.state.Polled)
	tag := r.tag(r.state.Polled)
	var w [entryWords]uint64
	for i := range w {
		w[i] = atomic.LoadUint64(&words[i])
	}
	// Each word has its own tag, since the words arrive in any order.
	if ((w[0]^tag)|(w[1]^tag)|(w[2]^tag)|(w[3]^tag))&tagBit != 0 {
		return Trigger{}, false
	}
	r.state.Polled++
	return decode(w), true
}

// PollBatch gives as many triggers as have arrived and fit, as Poll does, and
// how many they are.
func (r *Ring) PollBatch(dst []Trigger) int {
	for i := range dst {
		var ok bool
		if dst[i], ok = r.Poll(); !ok {
			return i
		}
	}
	return len(dst)
}

// Pop frees the entries of the n oldest triggers that were polled, and tells
// kernels that these were served: what this goroutine wrote before, to pinned
// memory, they see after sync.
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

func init() { native.RingOf = func(r any) *native.Ring { return r.(*Ring).state } }

// Popped gives how many triggers were popped in all, which is also the position
// of the next one. It is for the goroutine that pops.
func (r *Ring) Popped() uint64 { return r.state.Popped }

// Len gives how many triggers have arrived and were not popped. Any goroutine.
func (r *Ring) Len() int {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if r.state.Tail == nil {
		return 0
	}
	tail := atomic.LoadUint64((*uint64)(r.state.Tail))
	n := uint64(0)
	for n < r.state.Size && (atomic.LoadUint64(&r.entry(tail + n)[0])^r.tag(tail+n))&tagBit == 0 {
		n++
	}
	return int(n)
}

// Close frees the ring. Kernels that push, and the goroutine that polls, must
// have ended. It is safe to call twice.
func (r *Ring) Close() error {
	r.closing.Lock()
	defer r.closing.Unlock()
	r.state.Tail, r.state.Entries = nil, nil
	return errors.Join(r.device.Close(), r.pinned.Close())
}
