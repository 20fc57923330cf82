package native

// #include "native/queue.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/race"
)

// Queue is what a transport offers to threads in C.
type Queue struct{ c *C.native_queue }

// NewQueue returns a queue of zeros, for the transport to fill. It has the size of the
// transport's own struct, which begins with the native_queue.
func NewQueue(size uintptr) *Queue {
	q := &Queue{(*C.native_queue)(allocate(size))}
	free(q, unsafe.Pointer(q.c))
	return q
}

// Close keeps threads from entering the queue, and waits for those inside. Any
// goroutine may call it, any number of times.
func (q *Queue) Close() { closeGate(&q.c.gate) }

// Remote reports whether the queue leads over a network, so that it may have no room for as
// long as the peer likes.
func (q *Queue) Remote() bool { return bool(q.c.operations.remote) }

// Turns returns the number of goroutines that have the turn of a connection that uses the queue, or a
// place for it. While there are any, threads in C leave what triggers ask for to Go.
func (q *Queue) Turns() *atomic.Int32 { return (*atomic.Int32)(unsafe.Pointer(&q.c.turns)) }

// Pointer returns the native_queue.
func (q *Queue) Pointer() unsafe.Pointer { return unsafe.Pointer(q.c) }

// Path is where a connection leads.
type Path struct {
	Queue    *Queue // nil where only Go can use the connection
	Registry uint64 // of the memories that it takes
	Rank     int    // whose memory it reads
	Peer     int    // whose memory it writes
	Failed   *Flag  // see FailedOf

	// Asked is who asks for what is queued in this turn, for the race finder. A turn begins with
	// nobody.
	Asked race.Asked
}

// Driver is a connection.Driver that threads in C can use as well. What they queue
// is in one order with what its methods queue.
type Driver interface {
	// NativeQueue returns the driver's queue, or nil where it has none.
	NativeQueue() *Queue

	// NativeError returns the error of an operation of the queue that failed in C.
	NativeError(f Failure) error
}

// Op is an operation of a queue.
type Op int

// The operations of a queue.
const (
	Begin    Op = C.NATIVE_BEGIN
	Write    Op = C.NATIVE_WRITE
	Store    Op = C.NATIVE_STORE
	Update   Op = C.NATIVE_UPDATE
	Mark     Op = C.NATIVE_MARK
	Reach    Op = C.NATIVE_REACH
	Read     Op = C.NATIVE_READ // a Write from the peer's memory to this rank's
	Progress Op = C.NATIVE_PROGRESS
)

// Failure is an operation that failed in C.
type Failure struct {
	Op              Op
	Code            int    // the transport's
	Dst, Src, Bytes uint64 // of a Write or Read; of a Store or Update there is Dst
}

// Closed reports whether the operation failed because the queue was closed.
func (f Failure) Closed() bool { return f.Code == C.NATIVE_CLOSED }
