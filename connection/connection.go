// Package connection says what a transport between two ranks can do. One rank
// acts and the other's program does nothing: writes into the peer's registered
// memory, an update of a word that follows them, and a flush that waits for
// both. Each transport is a package of its own below this one.
//
// A connection is made from two endpoints: each side creates one, serialises
// it, lets anything carry the bytes to the peer, and connects its own with the
// peer's.
package connection

import (
	"context"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Endpoint is one rank's half of a connection that is not made yet. One that is
// never connected is released with the transport that it was made by.
type Endpoint interface {
	// MarshalBinary gives the bytes that the peer's Connect takes. They are no
	// secret.
	MarshalBinary() ([]byte, error)

	// Connect gives the connection to the rank whose endpoint's bytes remote are.
	// Where it waits for the peer, it is for what the peer's own Connect does
	// without waiting for this rank, so that ranks may connect in any order that
	// begins at the lower rank's. Nothing may be queued before both have returned, so
	// ranks tell each other.
	//
	// Errors: ErrInvalid for bytes that were cut short or altered, or are of
	// another version or group; ErrUnsupported, saying why, when the transport does
	// not lead there; ErrRemote when the peer is gone; ErrTimeout and ErrAborted
	// when ctx ends first.
	Connect(ctx context.Context, remote []byte) (Connection, error)
}

// Connection is one rank's way to write into the memory of one peer. Every
// method may be called from any goroutine. What one goroutine queues is done in
// that order.
//
// Errors: ErrInvalid for a memory that is closed, of another rank or of another
// registry than the connection, for a range outside it, and once the connection
// is closed; ErrSystem and ErrRemote when the transport failed. They name both
// ranks.
type Connection interface {
	// Transport gives the one transport that this is.
	Transport() registeredmem.Transports

	// Write queues a copy of n bytes. src is this rank's memory, dst the
	// peer's. The bytes at src must stay as they are until a Flush has
	// returned. 0 bytes are no error.
	Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error

	// UpdateAndSync queues the change of the peer's 8-byte word at a multiple
	// of 8 from one value to another. Whoever reads the new value at system
	// scope sees all that was queued before. The word has one writer and only
	// grows, so that a transport may store to or add the difference; from is
	// what the last update left there, or 0.
	UpdateAndSync(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error

	// Mark queues a mark behind all that was queued before, for who cannot wait
	// in Flush.
	Mark() (Mark, error)

	// Flush waits until all that was queued before is done at the peer.
	//
	// Errors: ErrTimeout and ErrAborted when ctx ends first; what was queued
	// goes on.
	Flush(ctx context.Context) error

	// Close waits for what is queued, for the registry's time-out at most, and
	// releases the connection. It is safe to call twice.
	//
	// Errors: ErrTimeout when the queue did not drain.
	Close() error
}

// Native is a connection that threads in C can use as well. What they queue is in
// one order with what the methods queue.
type Native interface {
	Connection

	// NativePath gives what threads in C use, the same each time, or nil where
	// there is nothing for them. Close ends their use, before it waits for the
	// queue.
	NativePath() *native.Path

	// NativeError gives the error of an operation that failed in C: that of the
	// method which does the same.
	NativeError(f native.Failure) error
}

// Inliner is a connection that also writes bytes of the host's, which then need not
// be fetched from a device.
type Inliner interface {
	Connection

	// InlineLimit is the most bytes that WriteBytes takes at a time: more than 0, and
	// the same each time.
	InlineLimit() uint64

	// WriteBytes queues a write of data to the peer's memory, in one order with what
	// Write queues. data may be used again once it returns. No bytes are no error.
	//
	// Errors: ErrInvalid for more than InlineLimit bytes.
	WriteBytes(dst *registeredmem.Memory, dstOffset uint64, data []byte) error
}

// Mark is a point in what a connection has queued.
type Mark interface {
	// Done says whether all before the mark is done at the peer. Once it has
	// said so, or failed, the mark must not be used again: the connection may
	// hand it out anew.
	//
	// Errors: ErrSystem and ErrRemote when the transport failed.
	Done() (bool, error)
}
