package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/quiet"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// inlineLimit is the most bytes that the queue keeps of one operation, in ordinary
// memory: 4 MiB in all if every operation has as many.
const inlineLimit = 4 << 10

// queueDepth is the number of operations that may wait for a place in the ring; a power of
// two. The next one waits for room.
const queueDepth = 1024

// conn is the driver of a connection: the sending end of a ring.
//
// Goroutines: one that fills the ring and posts what is in it, one that fetches from it what
// was read, one that waits for the ends of both, and one that reads the peer's messages.
type conn struct {
	half
	peerInstance [idSize]byte // of the transport that the peer's memories are registered with
	filler       filler
	fetcher      fetcher
	copying      sync.WaitGroup // the goroutines of these
	still        quiet.Point    // reached once the connection has ended and copies nothing any more

	queued atomic.Uint64 // operations added to the queue, ever
	posted atomic.Uint64 // entries that the peer may read, ever

	// Guarded by mu.
	changed  sync.Cond // entries were done, there is room in the queue, or the end
	work     sync.Cond // something was queued or done, or the end: for the filler
	asking   sync.Cond // something is read, or the end: for the fetcher
	queue    [queueDepth]op
	taken    uint64           // operations that the filler has taken whole, ever
	spans    [entryCount]span // of the entries that are in the ring
	done     uint64           // entries that are done at the peer, as last seen
	finished uint64           // those before the first whose answer is not here yet
	freed    uint64           // bytes of the data that these had
	acked    uint64           // operations that are done
	asked    uint64           // parts of reads that are in the ring, ever
	fetched  uint64           // those among them that are here
	peerGone target.Withdrawn // memories that the peer has closed

	seen      uint64 // done at seenAt; used by watch
	seenAt    time.Time
	closeOnce sync.Once
	closeErr  error
}

// op is an operation in the queue.
type op struct {
	kind   entryKind
	memory uint32
	offset uint64
	// Of a write: its size, how much of it is in the ring, and its source.
	n, given  uint64
	src       *gpu.Buffer // nil: the bytes are in data
	srcOffset uint64
	data      []byte // belongs to the place in the queue, which uses it again
	// Of an update, and of an addition and an exchange the value, to.
	from, to uint64
	// Of a read and an exchange: n bytes come here.
	into       *target.Memory
	intoOffset uint64
}

// span is what is free once an entry is done.
type span struct {
	end uint64 // of its data, counted from the first byte that ever was in the ring
	ops uint64 // operations that are done with it

	read answer // or without a memory
}

// newConn returns the sending end of a ring. It owns the socket and the ring, also when it
// fails.
func newConn(t *Transport, peer *description, sock *net.UnixConn, r *ring) (*conn, error) {
	c := &conn{peerInstance: peer.transport, still: quiet.New()}
	c.changed.L, c.work.L, c.asking.L = &c.mu, &c.mu, &c.mu
	c.ended = func() {
		c.look() // a last time
		c.changed.Broadcast()
		c.work.Broadcast()
		c.asking.Broadcast()
	}
	err := c.open(t, int(peer.rank), sock, r)
	if err == nil {
		err = c.filler.open(c)
	}
	if err == nil {
		err = c.fetcher.open(c)
	}
	if err == nil {
		err = c.start()
	}
	if err != nil {
		c.leave() // the peer is to hear of it from this rank's caller
		return nil, errors.Join(err, c.free())
	}
	return c, nil
}

// start begins to send.
func (c *conn) start() error {
	t := c.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return t.invalid("shm: connect", "the transport is closed")
	}
	t.conns[c] = struct{}{}
	c.copying.Go(c.filler.run)
	c.copying.Go(c.fetcher.run)
	c.tasks.Go(c.calm)
	c.tasks.Go(func() { c.listen(c.hear) })
	c.wake() // the peer is to know that its ring was taken
	return nil
}

// hear takes a message of the peer.
func (c *conn) hear(m *message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.kind {
	case messageWake:
	case messageGone:
		c.peerGone.Add(m.memory)
	case messageRefuse:
		c.poll()
		if m.number < c.done || m.number >= c.posted.Load() {
			return fmt.Errorf("it refuses entry %d of %d, of which %d are done", m.number, c.posted.Load(), c.done)
		}
		e := entry{kind: m.refused, memory: m.memory, offset: m.offset, length: m.length}
		c.uselessLocked(fmt.Errorf("rank %d refused %v: %v", c.peer, &e, m.reason))
		return nil
	}
	c.changed.Broadcast() // those who sleep look themselves
	c.work.Broadcast()
	return nil
}

// poll looks how many entries are done, unless the connection has ended. The caller holds
// mu.
func (c *conn) poll() {
	if c.err != nil {
		return // the ring may be unmapped
	}
	if err := c.look(); err != nil {
		c.lostLocked(err)
	}
}

// look is poll for callers that know that the ring is mapped.
func (c *conn) look() error {
	n, posted := c.ring.done.Load(), c.posted.Load()
	switch {
	case n == c.done:
		return nil
	case n < c.done || n > posted:
		return fmt.Errorf("it says that %d entries are done, after %d, and %d were posted", n, c.done, posted)
	}
	c.done = n
	c.finish()
	return nil
}

// finish frees the places of entries that are done, before the next answer that must be
// fetched. The caller holds mu.
func (c *conn) finish() {
	for c.finished < c.done {
		s := &c.spans[c.finished%entryCount]
		if s.read.into != nil {
			break
		}
		c.finished, c.freed, c.acked = c.finished+1, s.end, s.ops
	}
	c.changed.Broadcast()
	if c.taken != c.queued.Load() {
		c.work.Signal()
	}
}

// sleep waits until more is done or the half has ended, unless what holds. The caller holds
// mu, and looks again.
func (c *conn) sleep(on *sync.Cond, unless func() bool) {
	c.ring.senderSleeps.Store(1)
	c.poll() // the peer may have looked before the store
	if c.err == nil && !unless() {
		on.Wait()
	}
}

// Ready reports whether the queue has room for two operations. A mark needs none.
func (c *conn) Ready(uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil || c.queued.Load()-c.taken <= queueDepth-2
}

// Write queues the sending of n bytes.
func (c *conn) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	from := src.Buffer()
	if from == nil { // it was closed meanwhile
		return mscclgo.Errorf(mscclgo.ErrInvalid, "shm: find the bytes", "%v is closed", src)
	}
	return c.enqueue(dst, op{kind: kindData, offset: dstOffset, n: n, src: from, srcOffset: srcOffset})
}

// InlineLimit returns 4 KiB.
func (c *conn) InlineLimit() uint64 { return inlineLimit }

// WriteBytes queues the sending of data, of which the queue keeps a copy.
func (c *conn) WriteBytes(dst *registeredmem.Memory, dstOffset uint64, data []byte) error {
	return c.enqueue(dst, op{kind: kindData, offset: dstOffset, n: uint64(len(data)), data: data})
}

// Update queues the sending of a word's new value, which the peer stores behind
// all that was queued before.
func (c *conn) Update(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	return c.enqueue(dst, op{kind: kindUpdate, offset: dstOffset, from: from, to: to})
}

// Store queues the sending of a word's value, as Update does.
func (c *conn) Store(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	return c.Update(dst, dstOffset, 0, value)
}

// enqueue adds an operation with a copy of its data to the queue. It waits while the
// queue is full.
func (c *conn) enqueue(dst *registeredmem.Memory, o op) error {
	if !bytes.Equal(dst.Key(registeredmem.SHM), c.peerInstance[:]) {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "shm: find the memory", "%v is of another transport of the rank than the connection", dst)
	}
	o.memory = dst.ID()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.queued.Load()-c.taken == queueDepth && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return c.failure()
	}
	if c.peerGone.Has(o.memory) {
		return mscclgo.Errorf(mscclgo.ErrRemote, "shm: find the memory", "rank %d has closed memory %d; nothing was sent", c.peer, o.memory)
	}
	place := &c.queue[c.queued.Load()%queueDepth]
	o.data = append(place.data[:0], o.data...)
	*place = o
	c.queued.Add(1)
	c.work.Signal()
	return nil
}

// calm waits until the connection has ended and its streams have done what they were given: a
// source, too, is its owner's again then.
func (c *conn) calm() {
	c.copying.Wait()
	c.still.Reach(c.drain, c.stream, c.fetcher.stream)
}

// Quiet waits until nothing is copied any more.
func (c *conn) Quiet(ctx context.Context) error { return c.still.Wait(ctx, "shm: wait") }

// free releases everything once the connection has ended and its goroutines have.
func (c *conn) free() error {
	return c.release(append(c.filler.events(), c.fetcher.event), c.fetcher.stream)
}

// watch fails the connection if the peer has done nothing for the timeout although
// something is posted. Transport.watch calls it.
func (c *conn) watch(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.poll()
	due := c.posted.Load() - c.done
	if due == 0 || c.done != c.seen || c.seenAt.IsZero() {
		c.seen, c.seenAt = c.done, now
		return
	}
	if silent := now.Sub(c.seenAt); silent >= c.t.opts.Timeout {
		c.lostLocked(fmt.Errorf("it has done nothing for %v, with %d entries waiting: %s", silent.Round(time.Millisecond), due, whyStuck(fdpass.Process(c.sock))))
	}
}

// whyStuck says why a peer's process, which is 0 if it is unknown, may do nothing.
func whyStuck(process int) string {
	switch {
	case procfs.Stopped(process):
		return fmt.Sprintf("its process is stopped (process %d): a signal, a shell or a debugger stopped it", process)
	case procfs.Runs(process):
		return fmt.Sprintf("its process (process %d) is not stopped: its device is stuck, or it gets no CPU", process)
	}
	return "its process is stopped, or its device is stuck"
}

// Close tells the peer, and releases the connection.
func (c *conn) Close() error {
	c.closeOnce.Do(func() {
		c.leave()
		c.tasks.Wait()
		c.closeErr = c.free()
		c.t.mu.Lock()
		defer c.t.mu.Unlock()
		delete(c.t.conns, c)
	})
	return c.closeErr
}
