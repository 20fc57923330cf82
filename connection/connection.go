// Package connection moves data between two ranks. One rank acts and the other's program
// does nothing. A rank writes into the peer's registered memory, reads from it, updates
// words behind both, and flushes: it waits for all of it.
//
// A connection is made from two endpoints: each side creates one, serialises
// it, lets anything carry the bytes to the peer, and connects its own with the
// peer's. The packages below this one make endpoints, one package for each
// transport.
//
// A [Connection] checks and counts what is the same for all transports. What
// differs is behind the interface [Driver], so that a transport of one's own is
// a Driver and a call of [New]; package conntest tests it.
package connection

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Endpoint is one rank's half of a connection that is not made yet.
type Endpoint interface {
	// MarshalBinary returns the bytes that the peer's Connect takes. They are no
	// secret.
	MarshalBinary() ([]byte, error)

	// Connect returns the connection to the rank whose endpoint's bytes remote are. It
	// may wait for the peer, but only for what the peer's own Connect does without
	// waiting for this rank. So ranks may connect in any order in which the lower rank
	// of each pair does not wait for the higher one. Nothing may be queued before both
	// have returned, so the ranks must tell each other.
	//
	// Errors: ErrInvalid for bytes that were cut short or altered, or are of another
	// version or group, and once the endpoint is closed; ErrUnsupported when the
	// transport cannot connect the two, with the reason; ErrRemote when the peer is
	// gone; ErrTimeout and ErrAborted when ctx ends first.
	Connect(ctx context.Context, remote []byte) (*Connection, error)

	// Close releases what the endpoint holds. The connections that it made stay
	// open. It is safe to call twice.
	Close() error
}

// Connection writes into the memory of one peer, and reads from it. Every method may be
// called from any goroutine. What one goroutine queues is done in that order. A call
// that queues waits where the transport's queue is full, and behind all that wait
// already.
//
// Words of 8 bytes are aligned at the peer: their address is a multiple of 8. If the memory begins at
// such an address, the offset must be a multiple of 8. Only a slice of a memory may begin elsewhere.
//
// Errors of all methods, which name both ranks: ErrInvalid for a memory that is nil, closed, of
// another rank or of another registry than the connection, for a range outside it, and once the
// connection is closed; ErrSystem and ErrRemote when the transport failed. ErrRemote is also for
// memory that the peer has closed, as far as this rank knows: then the connection works on. An
// operation on such memory that was queued before this rank knew fails the connection.
type Connection struct {
	registry  *registeredmem.Registry
	rank      int
	peer      int
	transport registeredmem.Transports
	driver    Driver
	quiet     QuietDriver // or nil
	inline    uint64
	native    native.Driver // nil where threads in C cannot use the transport
	path      *native.Path
	leave     func()            // has the registry call waitForTransfers no more
	trace     *native.Trace     // or nil
	explain   func(error) error // of the transport's failures, or nil; see Explain of inside.Connection
	moves     *race.Sequence    // what the transport moves, or nil; streams tell of what they move

	closed    atomic.Bool // nothing more is queued
	closeOnce sync.Once
	ended     chan struct{} // closed once the driver is

	turns turnQueue // of goroutines that queue
	marks marks
}

// New returns a connection of the registry's rank to a peer over a transport. The
// connection owns the driver. The packages of the transports call it.
//
// The transport is one of the constants of package registeredmem. A transport of
// one's own takes the constant that it stands in for: CudaIPC where it reaches mapped memory
// only, and otherwise the one that its [registeredmem.Registrar] attached with.
//
// Errors: ErrInvalid for invalid arguments; the caller then still owns the driver.
func New(registry *registeredmem.Registry, peer int, transport registeredmem.Transports, d Driver) (*Connection, error) {
	const op = "connection: new connection"
	switch {
	case registry == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the registry is nil")
	case d == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the driver is nil").At(registry.Rank(), peer)
	case peer < 0:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the peer is rank %d", peer).At(registry.Rank(), mscclgo.NoRank)
	case !transport.One():
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the transport is %v, not one of the constants of package registeredmem", transport).At(registry.Rank(), peer)
	}
	c := &Connection{registry: registry, rank: registry.Rank(), peer: peer, transport: transport, driver: d, ended: make(chan struct{}), trace: registry.Internal().Trace()}
	c.turns.begin = c.begin
	c.path = &native.Path{Registry: registry.Internal().Instance(), Rank: c.rank, Peer: peer, Failed: registry.Internal().Failed()}
	if b, ok := d.(BytesDriver); ok {
		c.inline = b.InlineLimit()
	}
	c.quiet, _ = d.(QuietDriver)
	if transport != registeredmem.CudaIPC {
		if f, _ := race.Current(); f != nil {
			c.moves = f.NewSequence(registry.Device().String())
		}
	}
	if n, ok := d.(native.Driver); ok && c.moves == nil { // what C moves it does not tell
		if q := n.NativeQueue(); q != nil {
			c.native, c.path.Queue, c.turns.native = n, q, q
		}
	}
	if x := explore.Current(); x != nil && transport != registeredmem.CudaIPC {
		x.Outside(fmt.Sprintf("connections over %v, whose messages come at any time", transport))
	}
	c.leave = registry.Internal().Join(c.waitForTransfers)
	return c, nil
}

// Transport returns the one transport that the connection uses.
func (c *Connection) Transport() registeredmem.Transports { return c.transport }

// Write queues a copy of n bytes. src is this rank's memory, dst the peer's. The
// bytes at src must stay as they are until a Flush has returned. n may be 0.
func (c *Connection) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	return c.submit(Operation{Kind: Write, Theirs: dst, Offset: dstOffset, Own: src, OwnOffset: srcOffset, N: n})
}

// InlineLimit returns the most bytes that WriteBytes takes at a time, the same
// each time: 0 where the transport has no WriteBytes.
func (c *Connection) InlineLimit() uint64 { return c.inline }

// WriteBytes queues a write of data to the peer's memory, in one order with what
// Write queues. The bytes need not be fetched from a device. data may be used again
// once WriteBytes returns. data may be empty.
//
// Errors: ErrInvalid for more than InlineLimit bytes.
func (c *Connection) WriteBytes(dst *registeredmem.Memory, dstOffset uint64, data []byte) error {
	return c.submit(Operation{Kind: WriteBytes, Theirs: dst, Offset: dstOffset, N: uint64(len(data)), Data: data})
}

// Read queues a copy of n bytes of the peer's memory src to this rank's dst, in one
// order with all else. It reads what writes and updates before it have left. Operations
// queued behind it find the bytes in dst, and an update behind it tells the peer that src
// was read. Of two reads into one place the later one's bytes remain. All others find the
// bytes in dst once a Flush has returned; until then dst must not be used. n may be 0.
//
// Over CUDA IPC this rank's device copies. Over InfiniBand it is RDMA reads; writes of the same
// memory and updates wait for them. Over Ethernet and SHM the peer's transport sends the bytes,
// and operations behind a read, but for reads, are sent when the bytes have arrived.
//
// Errors: ErrInvalid for a dst that is closed, also by another goroutine meanwhile;
// ErrUnsupported where the transport cannot read. All transports of this module can read.
func (c *Connection) Read(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	return c.submit(Operation{Kind: Read, Theirs: src, Offset: srcOffset, Own: dst, OwnOffset: dstOffset, N: n})
}

// Store queues the store of a value to the peer's 8-byte word at a multiple of 8, in one
// order with all else. Any value may follow any other. The word is never seen in part, but
// over Soft-RoCE, which copies byte by byte. Unlike an update, a store does not tell a reader of
// the word that what was queued before is there: that is so over CUDA IPC and Ethernet, but
// not over InfiniBand.
//
// Errors: ErrInvalid for a word that is not aligned; ErrUnsupported where the transport
// cannot store; all transports of this module can.
func (c *Connection) Store(dst *registeredmem.Memory, dstOffset, value uint64) error {
	return c.submit(Operation{Kind: Store, Theirs: dst, Offset: dstOffset, To: value})
}

// Add queues the addition of a value to the peer's 8-byte word at a multiple of 8, in one
// order with all else. It is one atomic operation. The transport decides to which other
// accesses it is atomic:
//
//   - Over CUDA IPC this rank's device adds, atomic to all that kernels, streams and connections
//     over CUDA IPC, Ethernet and SHM do in that memory at system scope. Where the link has no
//     atomics ([registeredmem.Memory.CanUpdate]) it is ErrUnsupported.
//   - Over Ethernet and SHM the peer's transport adds. In memory of its device this is atomic to
//     the same accesses. In memory that its host reaches it is atomic to what hosts and all
//     connections over Ethernet and SHM do there.
//   - Over InfiniBand the peer's card adds, atomic to what comes through the same card, and to
//     nothing that devices and hosts do there. Where a card has no atomics the peer's process adds,
//     as over Ethernet. Additions of card and process are not atomic to each other.
//
// Like a store, it does not tell a reader of the word that what was queued before is there. An
// NVIDIA GPU adds by a kernel of one thread. Kernels that fill the device must not wait for it, nor
// for what is queued behind it, nor, over InfiniBand without atomics, for updates of any peer. Where
// they run for longer than the transport's time-out, the connection fails.
//
// Errors: ErrInvalid for a word that is not aligned; ErrUnsupported where the transport has no
// atomic operations; all transports of this module have them.
func (c *Connection) Add(dst *registeredmem.Memory, dstOffset, value uint64) error {
	return c.submit(Operation{Kind: Add, Theirs: dst, Offset: dstOffset, To: value})
}

// Exchange queues an exchange: the peer's 8-byte word at an offset of theirs becomes value, and a
// word of this rank's own gets the previous value. It is as atomic as an Add. Both offsets are
// multiples of 8. Operations queued behind it find the previous value, and all others find it once
// a Flush has returned.
//
// Over InfiniBand the card compares and exchanges until it has found the word unchanged, and the
// call waits for that.
//
// Errors: as for [Connection.Add]; ErrTimeout over InfiniBand if others change the word all the time.
func (c *Connection) Exchange(own *registeredmem.Memory, ownOffset uint64, theirs *registeredmem.Memory, offset, value uint64) error {
	return c.submit(Operation{Kind: Exchange, Theirs: theirs, Offset: offset, Own: own, OwnOffset: ownOffset, To: value})
}

// UpdateAndSync queues the change of the peer's 8-byte word at a multiple of 8
// from one value to another. Whoever reads the new value at system scope sees
// all that was queued before. The word has one writer and only grows, so that a
// transport may store the value or add the difference; from is what the last
// update left there, or 0.
//
// Errors: ErrInvalid for a word that is not aligned, and for a value that falls.
func (c *Connection) UpdateAndSync(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	return c.submit(Operation{Kind: Update, Theirs: dst, Offset: dstOffset, From: from, To: to})
}

// Flush waits until all that was queued before is done at the peer, and what was read
// there is here. What others queue meanwhile does not hold it up.
//
// Errors: ErrTimeout and ErrAborted when ctx ends first; what was queued goes on.
func (c *Connection) Flush(ctx context.Context) error {
	const op = "flush"
	m, err := c.setMark(ctx, op, false)
	if err != nil {
		return err
	}
	return c.wait(ctx, op, m)
}

// Close waits for what is queued, for the registry's timeout at most, and
// releases the connection. If the group has failed, or fails meanwhile, it waits only over
// CUDA IPC. It does nothing on nil, and may be called again, also meanwhile: every call returns once
// that is done, the first of them with the error.
//
// Errors: ErrTimeout when the queue did not drain; over CUDA IPC, where nothing can stop
// copies that are queued, the connection is then released once they are done, and the
// memories that it uses stay mapped until then; ErrSystem when this rank's side
// of the transport failed. A failure of the peer is not an error, since the peer
// may close first: Flush before Close where that matters.
func (c *Connection) Close() (err error) {
	if c == nil {
		return nil
	}
	c.closed.Store(true)
	c.closeOnce.Do(func() { err = c.close() })
	return err
}

func (c *Connection) close() error {
	const op = "close"
	if c.path.Queue != nil {
		c.path.Queue.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.registry.Timeout())
	defer cancel()
	abandoned, err := c.settle(ctx, op)
	switch {
	case abandoned || errors.Is(err, mscclgo.ErrRemote):
		err = nil // a peer may close first
	case errors.Is(err, mscclgo.ErrTimeout) && c.transport == registeredmem.CudaIPC:
		go func() {
			c.drain(context.Background(), op)
			c.release(op)
		}()
		return err
	}
	return errors.Join(err, c.release(op))
}

// release releases what the connection holds, once nothing is under way.
func (c *Connection) release(op string) error {
	released := errors.Join(c.driver.Close(), c.marks.close())
	c.leave()
	close(c.ended)
	return c.wrap(op, released)
}

// pause lets other goroutines run between two polls, and takes longer after many of
// them.
func pause(looks int) {
	if looks < 2000 {
		runtime.Gosched()
		return
	}
	time.Sleep(50 * time.Microsecond)
}
