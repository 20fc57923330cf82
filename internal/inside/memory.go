package inside

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/internal/native"
)

// Registry is the inside of a *registeredmem.Registry R. M is *registeredmem.Memory.
type Registry[R, M any] interface {
	// Instance returns a number that no other registry has.
	Instance() uint64
	// JoinProcess has the registry, which is new, import from the registries of a process without
	// a socket, and they from it.
	JoinProcess(p *Process[R])
	// ImportAt is Import at the address of an earlier memory, or at any if that is nil. The earlier
	// memory is of a retired registry for the same device. If the driver can, and the allocation has
	// the earlier one's size, the memory is mapped in its place, and all memories of the earlier
	// mapping are closed. Otherwise it is mapped elsewhere. Kernels must not use the earlier memory
	// any more.
	ImportAt(ctx context.Context, data []byte, at M) (M, error)
	// Retire ends the registry's part in the group: it stops the server and unregisters this
	// rank's memory, as Close does. But what is imported and mapped stays mapped, until it is
	// closed, Close is called, or ImportAt of another registry takes its place. It is safe to
	// call twice.
	Retire() error
	// Failed returns the flag that is to be set when the group has failed, before kernels are
	// told: proxies then drop what triggers ask of the registry's connections.
	Failed() *native.Flag
	// Join has the registry call wait before it unmaps or withdraws a memory, until leave is
	// called. ctx ends with the registry's timeout.
	Join(wait func(ctx context.Context) error) (leave func())
	// WhenShort has tell called when the registry has had no descriptor, or no memory, for a
	// peer that asks for a memory, for the time after. It may not close the registry.
	WhenShort(after time.Duration, tell func(error))
	// TraceTo has the connections of the registry and the semaphores on them add what they do
	// to a trace; they must be made after it. Trace returns that trace, or nil.
	TraceTo(t *native.Trace)
	Trace() *native.Trace
}

// Memory is the inside of a *registeredmem.Memory.
type Memory interface {
	// Range returns the memory to threads in C, the same each time, or nil where it was closed
	// before. Closing the memory closes it to them, and waits for threads that use it before the
	// memory is unmapped.
	Range() *native.Range
	// WordAligned reports whether an 8-byte word at an offset of the memory is aligned, at its
	// address on the rank whose it is, also where it is not mapped here.
	WordAligned(offset uint64) bool
	// Owner returns the Instance of the registry in which its rank has registered the memory.
	Owner() uint64
}

// Turn is the right to queue on a connection, which one goroutine has at a time: what
// it queues is done in that order, with nothing of others in between; over CUDA IPC a trigger
// that a proxy took just before may be. The goroutine must not call the connection's own methods that queue
// before End. O is connection.Operation, and M connection.Mark.
type Turn[O, M any] interface {
	// Do queues an operation, with the errors of the connection's methods.
	Do(o O) error
	// Mark is Mark of the connection.
	Mark() (M, error)
	// End ends the turn.
	End()
}

// Connection is the inside of a *connection.Connection. K is connection.Kind; see Turn for O and M.
type Connection[O, K, M any] interface {
	// Path returns the connection to threads in C, the same each time. Closing the connection
	// closes the queue, before it waits for what is queued.
	Path() *native.Path
	// Error returns the error of an operation on the path that failed in C. The method that does the same
	// in Go returns the same error.
	Error(f native.Failure) error
	// Explain has what the methods of the connection return of a failure of its transport pass
	// through f. The connection is not used yet.
	Explain(f func(error) error)
	// Explained returns an error as the methods of the connection return one of its transport.
	Explained(err error) error
	// Turn waits for the turn. Turns come in the order in which they were asked for.
	Turn() Turn[O, M]
	// TryTurn takes the turn if nobody has it or waits for it and an operation of a kind, of n bytes, an update
	// behind it and a mark would not wait in it. Otherwise it reports false. It does not wait itself. What a
	// failed transport refuses does not wait.
	TryTurn(kind K, n uint64) (turn Turn[O, M], ok bool)
	// Later has f called with the turn, behind all that have or await it now, by a goroutine of the
	// connection's, which ends it then. It does not wait.
	Later(f func(turn Turn[O, M]))
}

// Ethernet is the inside of a *ethernet.Transport.
type Ethernet interface {
	// Lossy returns the peer whose host has acknowledged nothing for longest, while this host
	// sends again what it sent there, and since when. The time is zero if there is none.
	Lossy() (peer int, since time.Time)
}

// Ring is the inside of a *fifo.Ring. P is gpu.Ptr.
type Ring[P any] interface {
	// State returns the state of the ring to the thread in C that polls it.
	State() *native.Ring
	// Serve has closing the ring and its device be an error that names the server, until end is
	// called. It fails if either is closed.
	Serve(by string) (end func(), err error)
	// Words returns the Options.Words further words as the host sees them, 0 at
	// first, and the address of the first as kernels see it. Nothing in this package
	// uses them. They are freed with the ring, which has none once it is closed.
	Words() ([]atomic.Uint64, P)
	// DeviceWords returns the address of the Options.DeviceWords further words in device
	// memory, 0 at first. Nothing in this package uses them. They are freed with the ring.
	DeviceWords() P
	// PayloadSize returns Options.Payload.
	PayloadSize() int
}

// Semaphore is the inside of a *semaphore.Host2Device: what threads in C need to signal it, and a port channel.
// T is a Turn.
type Semaphore[T any] struct {
	Sent   *native.Count // claimed while the value after it is stored
	Peer   *native.Range // the peer's memory, or nil where it was closed
	Offset uint64        // in Peer, of the word that counts the host's signals

	Signal func(turn T) (number uint64, err error) // is Signal in a turn of the connection, and returns the signal's number

	Channel, Rank uint32 // the channel's number and the peer, as its Watch has them

	State    uint64 // the address of the layout.PortState in the end's memory, for a port channel
	PeerSent uint64 // of the word that kernels here count up at the peer, or 0 if they cannot
}
