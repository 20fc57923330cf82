package ib

// #include "post.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// conn is the driver of a connection. Its requests, and what it knows of them, lie in C, where
// threads in C post too. mu is held during a wait in three cases only: a queue or the peer's inbox
// is full, an update must follow writes of other queue pairs, or a word is exchanged.
type conn struct {
	t        *Transport
	endpoint *endpoint
	queues   []*queue // the endpoint's, as far as both ends have them
	scratch  *scratch // the endpoint's
	peer     int
	adds     bool   // updates are atomics, rather than messages
	inboxKey uint32 // the remote key of the peer's inbox

	broken atomic.Pointer[mscclgo.Error] // why the connection has failed, unless that is in C

	closeOnce sync.Once
	closeErr  error

	mu      lock
	native  *native.Queue // the memory of c
	c       *C.ib_conn
	closed  bool
	remotes map[*registeredmem.Memory]*key
	// Whether memory of devices and memory of hosts was used: an update then may have to
	// wait.
	toDevices, toHosts bool
	out                outbox
	lookedAt           uint64 // how much was posted on the first queue at the last look

	received uint32 // messages applied; guarded by the device's lock

	news news
}

func newConn(e *endpoint, count int, peer description) *conn {
	c := &conn{
		t: e.t, endpoint: e, queues: e.queues[:count], scratch: e.scratch, peer: int(peer.rank),
		adds: e.t.atomics() && peer.atomics, inboxKey: peer.inbox, remotes: map[*registeredmem.Memory]*key{},
	}
	c.native, c.c = newState(c.queues, e.t.o.Depth)
	c.mu = lockOf(c.c)
	c.c.timeout, c.c.scratch = C.int64_t(e.t.o.Timeout), (*C.uint8_t)(&c.scratch.bytes[0])
	c.c.registry, c.c.peer_registry = C.uint64_t(e.about.registry), C.uint64_t(peer.registry)
	c.c.count_at, c.c.dump_at, c.c.inbox_key = countAt, dumpAt, C.uint32_t(c.inboxKey)
	c.c.anchor_at, c.c.anchor_key = C.uint64_t(peer.anchorBase), C.uint32_t(peer.anchor)
	for _, q := range c.queues {
		c.setScratchKey(q)
	}
	return c
}

// start connects the queue pairs.
func (c *conn) start() error {
	if !c.adds {
		if err := c.t.changer.open(c.t.reg.Device()); err != nil {
			return err
		}
	}
	if err := c.queues[0].qp.PostReceives(messages); err != nil {
		return err
	}
	for _, q := range c.queues {
		if err := q.qp.Connect(q.path(&c.t.o)); err != nil {
			return fmt.Errorf("%v: %w", q, err)
		}
	}
	c.queues[0].nic.add(c)
	return nil
}

// Ready reports whether there is room for all requests that the calls may make, and
// nothing that they would wait for. An exchange always waits. It is false more often than need
// be: before a write that is spread over queue pairs, since the update behind it waits for reads; while
// another queue pair has requests under way, which the write might overlap; and where an
// update may have to follow a read. Only the first use of another kind of memory may wait
// all the same.
func (c *conn) Ready(k connection.Kind, n uint64) bool {
	const op = "ib: look for room"
	c.mu.Lock() // its holder does not wait: only the turn's owner would
	defer c.mu.Unlock()
	switch {
	case c.usable(op) != nil:
		return true
	case k == connection.Exchange:
		return false
	case k == connection.Read:
		return c.readyToRead(op, n)
	case len(c.remotes) == 0:
		return false // what kinds of memory there are is not known
	}
	first := c.queues[0]
	for _, q := range c.queues {
		if q.done < q.posted && c.poll(op, q) != nil {
			return true
		}
		if q.done < q.waitFor || q != first && q.done < q.posted {
			return false
		}
	}
	if c.parked() && C.ib_unpark(c.c) != 0 {
		return c.usable(op) != nil
	}
	if !c.adds && c.learn(op, first) != nil {
		return true
	}
	if n > 0 { // the write might overlap what is being added to
		if first.done < first.atomics {
			return false
		}
		if applied, err := c.applied(op, c.out.added); !applied {
			return err != nil // it has asked, so that this ends though nobody flushes
		}
	}
	// A read before the update, the update, a read of the peer's count, two for a mark.
	const others = 5
	switch {
	case spread(n, 0, len(c.queues)).n < n:
		return false
	case c.pieces(n, false)+others > uint64(first.room()):
		return false
	case !c.adds && c.out.underWay() >= messages-1:
		return false
	}
	return !c.toDevices || c.adds && !c.toHosts
}

// Submit posts what an operation takes.
func (c *conn) Submit(o connection.Operation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o.Kind {
	case connection.Write:
		return c.write(o.Theirs, o.Offset, o.Own, o.OwnOffset, o.N)
	case connection.Read:
		return c.read(o.Own, o.OwnOffset, o.Theirs, o.Offset, o.N)
	case connection.Store:
		return c.store(o.Theirs, o.Offset, o.To)
	case connection.Add:
		return c.add(o.Theirs, o.Offset, o.To)
	case connection.Exchange:
		return c.exchange(o.Own, o.OwnOffset, o.Theirs, o.Offset, o.To)
	}
	return c.update(o.Theirs, o.Offset, o.From, o.To)
}

// write posts RDMA writes. Large ones are spread over all queue pairs.
func (c *conn) write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = "ib: write"
	to, err := c.remote(op, dst)
	if err != nil {
		return err
	}
	from, err := c.own(op, src)
	if err != nil {
		return err
	}
	c.knowOwn(from)
	if err := c.awaitAdded(op, to.place+dstOffset, n); err != nil {
		return err
	}
	for i, q := range c.queues {
		part := spread(n, i, len(c.queues))
		there, here := to.theirs(dst, q), from.own(q)
		for at, end := part.offset, part.offset+part.n; at < end; {
			size := end - at
			if size > q.max {
				size = min(size, uint64(C.ib_fits(c.c, C.uint32_t(i), false)))
			}
			if err := c.until(op, func() C.int {
				return C.ib_write(c.c, C.uint32_t(i), &there, C.uint64_t(dstOffset+at), &here, C.uint64_t(srcOffset+at), C.uint64_t(size))
			}); err != nil {
				return err
			}
			at += size
		}
	}
	return nil
}

// update posts a fetch-and-add, or a message with the value for the peer's process.
func (c *conn) update(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	const op = "ib: update a word"
	k, err := c.remoteWord(op, dst, dstOffset)
	if err != nil {
		return err
	}
	q := c.queues[0]
	word := k.theirs(dst, q)
	if c.adds {
		return c.until(op, func() C.int {
			return C.ib_update(c.c, &word, C.uint64_t(dstOffset), C.uint64_t(to-from))
		})
	}
	what := entry{doing: C.IB_UPDATE, there: k.part(dst, dstOffset), n: 8}
	if err := c.follow(op, &word, &what); err != nil {
		return err
	}
	return c.sendMessage(op, what, message{dst.ID(), messageStore, dstOffset, to})
}

// Close releases the queue pairs. Its owner and the transport may both call it: each returns once
// they are released, with the same error.
func (c *conn) Close() error {
	c.closeOnce.Do(func() {
		c.sayGoodbye()
		c.native.Close()
		// A call that waits has the lock until it sees this.
		c.breaks(mscclgo.Errorf(mscclgo.ErrInvalid, "ib: close", "the connection is closed"))
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.news.end()
		c.closeErr = c.release()
		c.t.forget(c) // not earlier: the transport closes the devices once it knows of nothing that uses them
	})
	return c.closeErr
}

// release releases what the connection and its endpoint hold.
func (c *conn) release() error {
	c.queues[0].nic.remove(c)
	return c.endpoint.release()
}

// remote returns the key of the peer's memory, unless this rank knows that it is closed. The
// caller holds mu.
func (c *conn) remote(op string, m *registeredmem.Memory) (*key, error) {
	if err := c.usable(op); err != nil {
		return nil, err
	}
	if err := c.belongs(op, m, c.c.peer_registry); err != nil {
		return nil, err
	}
	known := knows(&c.c.theirs, m.ID()) // as none is that the peer has closed
	if !known {
		if err := c.find(m); err != nil {
			return nil, err
		}
	}
	if err := c.unpark(op); err != nil {
		return nil, err
	}
	if err := c.greet(op); err != nil {
		return nil, err
	}
	if k := c.remotes[m]; k != nil {
		if !known {
			c.know(k, m)
		}
		return k, nil
	}
	k, err := decodeKey(m.Key(registeredmem.InfiniBand))
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is not reachable over InfiniBand: %w", m, err)
	}
	for _, q := range c.queues {
		if int(q.peer.nic) >= len(k.keys) {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v has keys of %d devices, the peer's queue pairs are on more", m, len(k.keys))
		}
	}
	if len(c.remotes) >= maxRemotes {
		clear(c.remotes)
	}
	c.remotes[m] = &k
	c.toDevices, c.toHosts = c.toDevices || k.device, c.toHosts || !k.device
	if !known {
		c.know(&k, m)
	}
	return &k, nil
}

// remoteWord is remote for a word, which must be aligned.
func (c *conn) remoteWord(op string, m *registeredmem.Memory, offset uint64) (*key, error) {
	k, err := c.remote(op, m)
	if err == nil && (k.base+offset)%8 != 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the word at offset %d of %v is not aligned to 8 bytes", offset, m)
	}
	return k, err
}

// own returns what is registered of a memory of this rank.
func (c *conn) own(op string, m *registeredmem.Memory) (*registration, error) {
	if err := c.belongs(op, m, c.c.registry); err != nil {
		return nil, err
	}
	r := c.t.registered(m.ID())
	if r == nil { // it was closed meanwhile
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed", m)
	}
	return r, nil
}

// belongs returns an error unless a memory is of the registry that an end of the connection is for.
// Another of the rank gives its memories the same numbers.
func (c *conn) belongs(op string, m *registeredmem.Memory, registry C.uint64_t) error {
	if m.Internal().Owner() != uint64(registry) {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is of another transport of the rank than the connection", m)
	}
	return nil
}

// maxRemotes bounds the number of keys that are kept.
const maxRemotes = 1024

// usable returns an error if nothing more can be queued. The caller holds mu.
func (c *conn) usable(op string) error {
	if c.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the transport is closed")
	}
	return c.failed(op)
}

// awaitAdded waits until the peer's process has applied the messages that add to what a request
// is to change.
func (c *conn) awaitAdded(op string, place, n uint64) error {
	if !c.out.addsTo(place, n) {
		return nil
	}
	return c.awaitApplied(op, c.queues[0])
}
