package connection

import (
	"context"

	"github.com/mscclgo/mscclgo/registeredmem"
)

// Operations are what a caller that must not wait would queue.
type Operations uint8

// The operations. Those of which a transport has none are errors, which do not wait.
const (
	Writes    Operations = iota // a write or store of n bytes, which may be 0, an update or add, and a mark, in this order
	Reads                       // a read of n bytes and a mark
	Exchanges                   // an exchange and a mark
)

// Driver is what a transport does for one connection. The [Connection] has
// checked the arguments: memories are of the right rank and registry, open and
// reachable, ranges lie inside them, words are aligned and values do not fall.
// It adds the operation and the ranks to errors and keeps their kinds.
//
// A memory that is closed meanwhile waits for the call, but not beyond its registry's
// timeout, nor if the group fails: then a driver finds it closed, which is ErrInvalid.
//
// Write, Update, WriteBytes, Read, Store, Add, Exchange and DriverMark.Set queue. They are called by one
// goroutine at a time, and what they queue takes effect at the peer in the order
// of the calls. They wait only where a queue is full, or for the peer where their order
// cannot be had otherwise. All other methods may be called at any time; but for Close,
// none of them waits, not even for a call that waits.
type Driver interface {
	// Ready reports whether operations would be queued without waiting. It is called in turn with the
	// methods that queue. Once the transport has failed or is closed, it reports true.
	Ready(o Operations, n uint64) bool

	// Write queues a copy of n bytes, more than 0.
	Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error

	// Update queues the change of an 8-byte word, whose value becomes visible at
	// system scope behind all that was queued before.
	Update(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error

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

	// InlineLimit returns the most bytes that WriteBytes takes, the same each time, or
	// 0 if WriteBytes cannot be used.
	InlineLimit() uint64

	// WriteBytes queues a write of data, at least 1 byte. data belongs to the
	// caller again once it returns.
	WriteBytes(dst *registeredmem.Memory, dstOffset uint64, data []byte) error
}

// ReadDriver is a Driver that also copies from the peer's memory.
type ReadDriver interface {
	Driver

	// Read queues a copy of n bytes, more than 0, of the peer's memory into this rank's.
	// It reads what was queued before it has written there. What is queued after it does not
	// change what it reads, and finds all of it, so that an Update tells the peer that its
	// memory was read. Of two reads into one place the later one's bytes remain. Its bytes
	// are here once a mark behind it is reached.
	Read(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error
}

// StoreDriver is a Driver that also stores values.
type StoreDriver interface {
	Driver

	// Store queues the store of an 8-byte word, which is not seen in part where the hardware
	// can.
	Store(dst *registeredmem.Memory, dstOffset uint64, value uint64) error
}

// AtomicDriver is a Driver that also changes words of the peer's depending on what they are.
type AtomicDriver interface {
	Driver

	// Add queues the addition of a value to an 8-byte word, as one atomic operation. What is queued
	// after it finds the sum.
	Add(dst *registeredmem.Memory, dstOffset uint64, value uint64) error

	// Exchange queues the replacement of an 8-byte word of the peer's, as one atomic operation,
	// and the store of what it was to a word of this rank's. In the order of operations it is an
	// Add at the peer, and a Read of 8 bytes here.
	Exchange(own *registeredmem.Memory, ownOffset uint64, theirs *registeredmem.Memory, offset, value uint64) error
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
