package connection

import (
	"context"

	"github.com/mscclgo/mscclgo/registeredmem"
)

// Kind is what an [Operation] does.
type Kind uint8

// The kinds of operations. A word has 8 bytes and is aligned.
const (
	// Write copies N bytes, more than 0, of Own to Theirs.
	Write Kind = iota + 1
	// WriteBytes writes Data, of N bytes, more than 0, which belong to the caller again once Submit returns.
	WriteBytes
	// Read copies N bytes, more than 0, of Theirs to Own. It reads what was queued before it has written
	// there. What is queued after it does not change what it reads, and finds all of it, so that an Update
	// tells the peer that its memory was read. Of two reads into one place the later one's bytes remain. Its
	// bytes are here once a mark behind it is reached.
	Read
	// Store stores To in a word of Theirs, which is not seen in part where the hardware can.
	Store
	// Add adds To to a word of Theirs, as one atomic operation. What is queued after it finds the sum.
	Add
	// Exchange replaces a word of Theirs by To, as one atomic operation, and stores what it was in a word of
	// Own. In the order of operations it is an Add at the peer, and a Read of 8 bytes here.
	Exchange
	// Update changes a word of Theirs from From to To, which becomes visible at system scope behind all that
	// was queued before.
	Update
)

// word reports whether operations of the kind are on a word.
func (k Kind) word() bool { return k >= Store }

// kindNames are what kinds do. Nothing writes to it.
var kindNames = [...]string{"no operation", "write", "write bytes", "read", "store", "add", "exchange", "update a word"}

// String returns what the kind does, for errors.
func (k Kind) String() string { return kindNames[int(k)%len(kindNames)] }

// Operation is what a [Driver] queues.
type Operation struct {
	Kind      Kind
	Theirs    *registeredmem.Memory // the peer's
	Offset    uint64                // in Theirs
	Own       *registeredmem.Memory // this rank's
	OwnOffset uint64
	N         uint64 // bytes of a write or a read
	Data      []byte
	From, To  uint64
}

// Driver is what a transport does for one connection. The [Connection] has
// checked the arguments: memories are of the right rank and registry, open and
// reachable, ranges lie inside them, words are aligned and values do not fall.
// It adds the operation and the ranks to errors and keeps their kinds.
//
// A memory that is closed meanwhile waits for the call, but not beyond its registry's
// timeout, nor if the group fails: then a driver finds it closed, which is ErrInvalid.
//
// Submit and DriverMark.Set queue. They are called by one goroutine at a time, and what they queue takes
// effect at the peer in the order of the calls. They wait only where a queue is full, or for the peer where
// their order cannot be had otherwise. All other methods may be called at any time; but for Close,
// none of them waits, not even for a call that waits.
type Driver interface {
	// Submit queues an operation. Of a kind that the transport does not have it is ErrUnsupported.
	Submit(o Operation) error

	// Ready reports whether an operation of a kind, of n bytes, an update behind it and a mark would be
	// queued without waiting. It is called in turn with the methods that queue. Once the transport has failed
	// or is closed, and for a kind that it does not have, it reports true.
	Ready(k Kind, n uint64) bool

	// NewMark returns a mark, which the connection sets many times.
	NewMark() (DriverMark, error)

	// Close releases everything that the connection holds, and abandons what is
	// still queued. Calls that wait return an error. It is called once.
	Close() error
}

// BytesDriver is a Driver that also writes bytes that are not in registered
// memory.
type BytesDriver interface {
	Driver

	// InlineLimit returns the most bytes that a WriteBytes has, the same each time, or
	// 0 if there is none.
	InlineLimit() uint64
}

// QuietDriver is a Driver that may copy for a while yet once it has failed: nothing takes back
// what it has queued on a device, and one of its goroutines may be in the middle of a copy.
type QuietDriver interface {
	Driver

	// Quiet waits until nothing is copied any more. The connection calls it once a mark has
	// failed, before memory that was used is unmapped or left to its owner. It may be called
	// by several goroutines at a time, also while Close is called and after.
	//
	// Errors: ErrTimeout and ErrAborted when ctx ends first.
	Quiet(ctx context.Context) error
}

// DriverMark is a point in the queue of a [Driver].
type DriverMark interface {
	// Set moves the mark behind all that is queued. It may be called before the point
	// of an earlier Set is reached, which nobody waits for then. A failed transport is
	// not an error if all before the mark is done.
	Set() error

	// Reached reports whether all before the mark is done at the peer, and what was
	// read there has arrived. It does not wait.
	Reached() (bool, error)

	// Close releases the mark. The Driver may have been closed before.
	Close() error
}

// WaitingMark is a [DriverMark] that can be waited for. Others are polled.
type WaitingMark interface {
	DriverMark

	// Wait returns once Reached reports true or an error, or ctx has ended. When
	// the mark is reached, it returns nil even if ctx has ended.
	Wait(ctx context.Context) error
}
