package ib

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// conn is the driver of a connection. mu is held during a wait only if a queue or the
// peer's inbox is full, an update must follow writes of other queue pairs, or a word is
// exchanged.
type conn struct {
	t        *Transport
	endpoint *Endpoint
	queues   []*queue // the endpoint's, as far as both ends have them
	scratch  *scratch // the endpoint's
	peer     int
	adds     bool   // updates are atomics, rather than messages
	inboxKey uint32 // the remote key of the peer's inbox

	broken atomic.Pointer[mscclgo.Error] // why the connection has failed

	mu      sync.Mutex
	closed  bool
	remotes map[*registeredmem.Memory]*key
	// Whether memory of devices and memory of hosts was used: an update then may have to
	// wait.
	toDevices, toHosts bool
	touched            touched
	// Where the first queue changed memory of devices since a mark last read there, and
	// whether it changed memory of hosts.
	unread     touched
	unreadHost bool
	out        outbox
	landing    landing
	lookedAt   uint64 // how much was posted on the first queue at the last look
	work       []verbs.Work
	done       [32]verbs.Completion

	received uint32 // messages applied; guarded by the device's lock

	news news
}

// touched is where the first queue last changed device memory, unless it was read
// since.
type touched struct {
	yes bool
	key uint32
	at  uint64
}

func newConn(e *Endpoint, count int, peer description) *conn {
	return &conn{
		t: e.t, endpoint: e, queues: e.queues[:count], scratch: e.scratch, peer: int(peer.rank),
		adds: e.t.atomics() && peer.atomics, inboxKey: peer.inbox,
		remotes: map[*registeredmem.Memory]*key{}, work: make([]verbs.Work, 0, e.t.o.Depth),
	}
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
// nothing that they would wait for. It is false more often than need be: before a write
// that is spread over queue pairs, since the update behind it waits for reads; while
// another queue pair has requests under way, which the write might overlap; and where an
// update may have to follow a read. Only the first use of another kind of memory may wait
// all the same.
func (c *conn) Ready(n uint64) bool {
	const op = "ib: look for room"
	c.mu.Lock() // its holder does not wait: only the turn's owner would
	defer c.mu.Unlock()
	if c.usable(op) != nil {
		return true
	}
	if len(c.remotes) == 0 {
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
	case uint64(first.room()) < others || n/first.max >= uint64(first.room())-others:
		return false
	case !c.adds && c.out.underWay() >= messages-1:
		return false
	}
	return !c.toDevices || c.adds && !c.toHosts
}

// Write posts RDMA writes. Large ones are spread over all queue pairs.
func (c *conn) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = "ib: write"
	c.mu.Lock()
	defer c.mu.Unlock()
	to, err := c.remote(op, dst)
	if err != nil {
		return err
	}
	from := c.t.registered(src.ID())
	if from == nil { // it was closed meanwhile
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed", src)
	}
	for i, q := range c.queues {
		part := spread(n, i, len(c.queues))
		if part.n == 0 {
			continue
		}
		remoteKey, localKey := to.keys[q.peer.nic], from.mrs[q.nic.index].LocalKey()
		what := entry{doing: "write", memory: dst, offset: dstOffset + part.offset, n: part.n, local: src, localOffset: srcOffset + part.offset}
		if err := c.awaitConflicts(op, q, &what); err != nil {
			return err
		}
		c.work = c.work[:0]
		for at := part.offset; at < part.offset+part.n; {
			size := min(q.max, part.offset+part.n-at)
			if err := c.reserve(op, q, 1); err != nil {
				return err
			}
			w := verbs.Work{
				Local: from.base + srcOffset + at, Remote: to.base + dstOffset + at, Size: uint32(size),
				LocalKey: localKey, RemoteKey: remoteKey, Opcode: verbs.Write,
			}
			w.ID, w.Flags = q.add(what, false)
			c.work = append(c.work, w)
			at += size
		}
		if i > 0 {
			// Its answer means that all of this queue pair's writes are in place.
			if err := c.reserve(op, q, 1); err != nil {
				return err
			}
			c.work = append(c.work, c.readBack(q, remoteKey, to.base+dstOffset+part.offset+part.n-1, what))
		} else {
			c.changed(to, touched{true, remoteKey, to.base + dstOffset + part.offset + part.n - 1})
		}
		if err := c.post(op, q); err != nil {
			return err
		}
	}
	return nil
}

// changed notes where the first queue has changed a memory.
func (c *conn) changed(m *key, at touched) {
	if m.device {
		c.touched, c.unread = at, at
	} else {
		c.unreadHost = true
	}
}

// settle makes sure that a completion will cover all requests posted on the first queue so
// far, and mean that what they write is in place. It reads where the queue wrote last, and
// of hosts the peer's inbox, which is always there.
func (c *conn) settle() error {
	const op = "ib: mark"
	q := c.queues[0]
	if !c.unread.yes && !c.unreadHost {
		return c.fence(q)
	}
	if err := c.reserve(op, q, 2); err != nil {
		return err
	}
	c.work = c.work[:0]
	read := func(remoteKey uint32, at uint64) {
		w := verbs.Work{Local: touchedAt, Remote: at, Size: 1, LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: remoteKey, Opcode: verbs.Read}
		w.ID, w.Flags = q.add(entry{doing: "read before a mark"}, true)
		c.work = append(c.work, w)
	}
	if c.unread.yes {
		read(c.unread.key, c.unread.at)
	}
	if c.unreadHost {
		read(c.inboxKey, countAt)
	}
	c.unread, c.unreadHost = touched{}, false
	return c.post(op, q)
}

// readBack returns a request that reads a byte at the peer. Once it is complete, the
// writes before it are in place. Updates wait for it: a fence would have the device
// wait instead, but Soft-RoCE (Linux 6.1) may hang after a fence.
func (c *conn) readBack(q *queue, remoteKey uint32, at uint64, what entry) verbs.Work {
	w := verbs.Work{Local: touchedAt, Remote: at, Size: 1, LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: remoteKey, Opcode: verbs.Read}
	what.doing, what.local = "read after a write", nil
	w.ID, w.Flags = q.add(what, true)
	q.waitFor = q.posted
	return w
}

// Update posts a fetch-and-add, or a message with the value for the peer's process.
func (c *conn) Update(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	const op = "ib: update a word"
	c.mu.Lock()
	defer c.mu.Unlock()
	k, err := c.remoteWord(op, dst, dstOffset)
	if err != nil {
		return err
	}
	what := entry{doing: "update", memory: dst, offset: dstOffset, n: 8}
	if err := c.follow(op, k, what); err != nil {
		return err
	}
	if !c.adds {
		return c.sendMessage(op, what, message{dst.ID(), messageStore, dstOffset, to})
	}
	return c.fetchAdd(op, k, what, to-from)
}

// follow waits until what is posted next on the first queue comes behind all that was posted
// before, for the peer's process too.
func (c *conn) follow(op string, k *key, what entry) error {
	q := c.queues[0]
	atDevice := c.adds && k.device // ordered with writes to the device's memory
	if c.touched.yes && !atDevice {
		if err := c.reserve(op, q, 1); err != nil {
			return err
		}
		c.work = append(c.work[:0], c.readBack(q, c.touched.key, c.touched.at, what))
		if err := c.post(op, q); err != nil {
			return err
		}
		c.touched.yes = false
	}
	for _, q := range c.queues {
		if err := c.await(op, q, q.waitFor); err != nil {
			return err
		}
	}
	return nil
}

// fetchAdd posts an atomic addition.
func (c *conn) fetchAdd(op string, k *key, what entry, value uint64) error {
	q := c.queues[0]
	if err := c.reserve(op, q, 1); err != nil {
		return err
	}
	w := verbs.Work{
		Opcode: verbs.FetchAdd, Size: 8, Local: fetchedAt, LocalKey: c.scratch.mrs[q.nic.index].LocalKey(),
		Remote: k.base + what.offset, RemoteKey: k.keys[q.peer.nic], Value: value,
	}
	w.ID, w.Flags = q.add(what, true)
	c.work = append(c.work[:0], w)
	c.changed(k, touched{true, w.RemoteKey, w.Remote})
	return c.post(op, q)
}

// Close releases the queue pairs.
func (c *conn) Close() error {
	// A call that waits has the lock until it sees this.
	c.broken.CompareAndSwap(nil, mscclgo.Errorf(mscclgo.ErrInvalid, "ib: close", "the connection is closed"))
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	c.news.end()
	c.t.forget(c)
	return c.release()
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
	if err := c.find(m); err != nil {
		return nil, err
	}
	if err := c.greet(op); err != nil {
		return nil, err
	}
	if k := c.remotes[m]; k != nil {
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

// maxRemotes bounds the number of keys that are kept.
const maxRemotes = 1024

// usable returns an error if nothing more can be queued. The caller holds mu.
func (c *conn) usable(op string) error {
	if c.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the transport is closed")
	}
	return c.failed(op)
}

// awaitConflicts waits until all is done that a write or read on q must follow and might
// overtake.
func (c *conn) awaitConflicts(op string, q *queue, next *entry) error {
	if !next.read && c.out.addsTo(next) {
		if err := c.awaitApplied(op, c.queues[0]); err != nil {
			return err
		}
	}
	for _, other := range c.queues {
		end := other.conflict(next, other == q)
		if end > other.signaled {
			if err := c.fence(other); err != nil {
				return err
			}
		}
		if err := c.await(op, other, end); err != nil {
			return err
		}
	}
	return nil
}

// reserve waits until q has room for n more requests. It posts the gathered ones
// first.
func (c *conn) reserve(op string, q *queue, n int) error {
	if q.room() >= n {
		return nil
	}
	if err := c.post(op, q); err != nil {
		return err
	}
	return c.await(op, q, q.posted-q.depth+uint64(n))
}

// await polls until all requests below a number are done.
func (c *conn) await(op string, q *queue, number uint64) error {
	for i := 0; q.done < number; i++ {
		if err := c.poll(op, q); err != nil {
			return err
		}
		if q.done < number {
			pause(i)
		}
	}
	return nil
}

// fence makes sure that a completion will cover all requests posted so far, if
// necessary by an empty write.
func (c *conn) fence(q *queue) error {
	const op = "ib: mark"
	if q.signaled == q.posted {
		return nil
	}
	if err := c.reserve(op, q, 1); err != nil {
		return err
	}
	w := verbs.Work{Opcode: verbs.Write}
	w.ID, w.Flags = q.add(entry{doing: "empty write"}, true)
	c.work = append(c.work[:0], w)
	return c.post(op, q)
}

// post posts the gathered requests.
func (c *conn) post(op string, q *queue) error {
	if len(c.work) == 0 {
		return nil
	}
	_, err := q.qp.Post(c.work)
	c.work = c.work[:0]
	if err != nil {
		// It is not known which of the requests were posted.
		return c.fail(mscclgo.Errorf(mscclgo.ErrSystem, op, "%v: %w", q, err))
	}
	return nil
}

// poll takes the completions of q. It fails the connection if there are none for the
// transport's timeout, since not every device gives up by itself.
func (c *conn) poll(op string, q *queue) error {
	if err := c.failed(op); err != nil {
		return err
	}
	n, err := q.cq.Poll(c.done[:])
	if err != nil {
		return c.fail(mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err))
	}
	for i := range c.done[:n] {
		d := &c.done[i]
		what, ok := q.complete(d.ID)
		switch {
		case d.Status != verbs.StatusSuccess:
			return c.fail(c.explain(q, what, d))
		case !ok:
			return c.fail(mscclgo.Errorf(mscclgo.ErrSystem, op, "a completion of request %d, which is not under way on %v", d.ID, q))
		}
	}
	if silent := q.silence(n); silent > c.t.o.Timeout {
		return c.fail(mscclgo.Errorf(mscclgo.ErrRemote, op, "the peer has acknowledged nothing for %v; the oldest request is a %v on %v", silent.Round(time.Millisecond), q.oldest(), q))
	}
	return nil
}

// pause yields between two polls, for longer after many of them.
func pause(i int) {
	if i < 2000 {
		runtime.Gosched()
		return
	}
	time.Sleep(50 * time.Microsecond)
}
