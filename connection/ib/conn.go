package ib

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
	"golang.org/x/sys/unix"
)

// conn is a connection. mu makes the order of the queues that of the calls. It is
// held while something waits only where a queue is full, or an update must follow
// what other queue pairs carry.
type conn struct {
	t        *Transport
	endpoint *Endpoint
	queues   []*queue // those of the endpoint that are used
	peer     int
	adds     bool // updates are atomics, not messages

	scratch    []byte      // see the offsets below
	scratchMRs []*verbs.MR // it, registered with the device of each queue

	broken atomic.Pointer[mscclgo.Error] // why nothing goes on

	mu       sync.Mutex
	closed   bool
	remotes  map[*registeredmem.Memory]*key
	dirty    bool   // device memory was written by the first queue since the last update
	dirtyKey uint32 // there
	dirtyAt  uint64
	work     []verbs.Work
	done     [32]verbs.Completion
	marks    []*mark // not in use
}

// What is in a connection's scratch memory: a word for what atomics and reads
// return and nobody looks at, messages on their way out, room for those that
// come.
const (
	messageSize = 24
	outAt       = 64
)

func (c *conn) inAt() uint64 { return outAt + messageSize*c.queues[0].depth }

func newConn(e *Endpoint, count int, peer description) (c *conn, err error) {
	t := e.t
	c = &conn{
		t: t, endpoint: e, queues: e.queues[:count], peer: int(peer.rank), adds: t.atomics() && peer.atomics,
		remotes: map[*registeredmem.Memory]*key{}, work: make([]verbs.Work, 0, t.o.Depth),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release())
		}
	}()
	size := int(c.inAt()) + messageSize*messages
	if c.scratch, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "ib: allocate", "no %d bytes: %w", size, err)
	}
	for _, q := range c.queues {
		mr, err := q.nic.pd.Register(uintptr(unsafe.Pointer(&c.scratch[0])), uint64(size), 0, verbs.LocalWrite)
		if err != nil {
			return c, err
		}
		c.scratchMRs = append(c.scratchMRs, mr)
	}
	return c, nil
}

// start connects the queue pairs and waits until the peer's answer.
func (c *conn) start(ctx context.Context) error {
	first := c.queues[0]
	if !c.adds {
		for i := range uint64(messages) {
			if err := c.expect(i); err != nil {
				return err
			}
		}
	}
	for _, q := range c.queues {
		if err := q.qp.Connect(q.path(&c.t.o)); err != nil {
			return err
		}
	}
	first.nic.add(c)
	for _, q := range c.queues {
		if err := c.greet(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// greet waits until the peer's queue pair answers a write of nothing. While the
// peer has not connected its own there is no answer, and the queue pair fails and
// is connected anew.
func (c *conn) greet(ctx context.Context, q *queue) error {
	for {
		c.mu.Lock()
		err := c.fence(q)
		c.mu.Unlock()
		for i := 0; err == nil && q.done < q.posted; i++ {
			if ctx.Err() != nil {
				return mscclgo.FromContext(ctx, "ib: greet the peer", q.String()+" had no answer; the peer has not connected, or the network does not lead there")
			}
			c.mu.Lock()
			err = c.poll(q)
			c.mu.Unlock()
			if err == nil {
				pause(i)
			}
		}
		if err == nil {
			return nil
		}
		var failed *completionError
		if !errors.As(err, &failed) || !failed.unanswered() || ctx.Err() != nil {
			return err
		}
		if q == c.queues[0] && !c.adds {
			q.nic.remove(c) // the messages that it waits for are dropped and posted anew
		}
		c.broken.Store(nil)
		q.ledger = newLedger(int(q.depth))
		if err := q.qp.Reset(q.nic.port, q.nic.allows()); err != nil {
			return err
		}
		if q == c.queues[0] && !c.adds {
			for i := range uint64(messages) {
				if err := c.expect(i); err != nil {
					return err
				}
			}
			q.nic.add(c)
		}
		if err := q.qp.Connect(q.path(&c.t.o)); err != nil {
			return err
		}
	}
}

// Transport gives InfiniBand.
func (c *conn) Transport() registeredmem.Transports { return registeredmem.InfiniBand }

// Write posts RDMA writes, over all queue pairs if it is large.
func (c *conn) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = "ib: write"
	c.mu.Lock()
	defer c.mu.Unlock()
	to, err := c.remote(op, dst, dstOffset, n)
	if err != nil {
		return err
	}
	from, err := c.local(op, src, srcOffset, n)
	if err != nil {
		return err
	}
	for i, q := range c.queues {
		part := spread(n, i, len(c.queues))
		if part.n == 0 {
			continue
		}
		remoteKey, localKey := to.keys[q.peer.nic], from.mrs[q.nic.index].LocalKey()
		what := entry{"write", dst, dstOffset, n}
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
			// Its answer says that all of this queue pair's writes are in place.
			if err := c.reserve(op, q, 1); err != nil {
				return err
			}
			c.work = append(c.work, c.readBack(q, i, remoteKey, to.base+dstOffset+part.offset+part.n-1, what))
			q.waitFor = q.posted
		} else if to.device {
			c.dirty, c.dirtyKey, c.dirtyAt = true, remoteKey, to.base+dstOffset+part.offset+part.n-1
		}
		if err := c.post(op, q); err != nil {
			return err
		}
	}
	return nil
}

// readBack gives the request that reads a byte at the peer, to know that the
// writes before it are in place.
func (c *conn) readBack(q *queue, i int, remoteKey uint32, at uint64, what entry) verbs.Work {
	w := verbs.Work{Local: 8, Remote: at, Size: 1, LocalKey: c.scratchMRs[i].LocalKey(), RemoteKey: remoteKey, Opcode: verbs.Read}
	what.doing = "read after a write"
	w.ID, w.Flags = q.add(what, i > 0)
	return w
}

// UpdateAndSync posts a fetch-and-add, or a message with the value for the peer's
// process.
func (c *conn) UpdateAndSync(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	const op = "ib: update a word"
	if to < from {
		return c.invalid(op, "the value must not fall, and %d is below %d", to, from)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k, err := c.remote(op, dst, dstOffset, 8)
	if err != nil {
		return err
	}
	if (k.base+dstOffset)%8 != 0 {
		return c.invalid(op, "the word at offset %d of %v is not aligned to 8 bytes", dstOffset, dst)
	}
	for _, q := range c.queues[1:] {
		if err := c.await(op, q, q.waitFor); err != nil {
			return err
		}
	}
	q := c.queues[0]
	if err := c.reserve(op, q, 2); err != nil {
		return err
	}
	c.work = c.work[:0]
	var fence verbs.Flags
	if c.dirty && !(c.adds && k.device) {
		c.work = append(c.work, c.readBack(q, 0, c.dirtyKey, c.dirtyAt, entry{"read before an update", dst, dstOffset, 8}))
		fence = verbs.Fence
	}
	c.dirty = false
	w := verbs.Work{LocalKey: c.scratchMRs[0].LocalKey()}
	var flags verbs.Flags
	w.ID, flags = q.add(entry{"update", dst, dstOffset, 8}, true)
	w.Flags = flags | fence
	if c.adds {
		w.Opcode, w.Size, w.Remote, w.RemoteKey, w.Add = verbs.FetchAdd, 8, k.base+dstOffset, k.keys[q.peer.nic], to-from
	} else {
		// The slot is free: the request that had it is done, or there were no room.
		w.Opcode, w.Size, w.Local = verbs.Send, messageSize, outAt+messageSize*(w.ID%q.depth)
		out := c.scratch[w.Local:]
		binary.LittleEndian.PutUint64(out, uint64(dst.ID()))
		binary.LittleEndian.PutUint64(out[8:], dstOffset)
		binary.LittleEndian.PutUint64(out[16:], to)
	}
	c.work = append(c.work, w)
	return c.post(op, q)
}

// Flush waits for a mark behind all that was queued before, and lets others queue
// meanwhile.
func (c *conn) Flush(ctx context.Context) error {
	const op = "ib: flush"
	m, err := c.mark(op)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		switch done, err := m.Done(); {
		case err != nil:
			return err
		case done:
			return nil
		case ctx.Err() != nil:
			return mscclgo.FromContext(ctx, op, "the peer has not acknowledged all that was queued").At(c.t.reg.Rank(), c.peer)
		}
		pause(i)
	}
}

// Close waits for what is queued and releases the queue pairs.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	var err error
	if c.broken.Load() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), c.t.reg.Timeout())
		defer cancel()
		if err = c.Flush(ctx); c.broken.Load() != nil || errors.Is(err, mscclgo.ErrInvalid) {
			err = nil // it failed, as others were told, or another Close was first
		}
	}
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	c.t.forget(c)
	return wrap("ib: close", errors.Join(err, c.release()), c.t.reg.Rank(), c.peer)
}

// release gives back what the connection and its endpoint hold.
func (c *conn) release() error {
	c.queues[0].nic.remove(c)
	errs := []error{c.endpoint.release()}
	for _, mr := range c.scratchMRs {
		errs = append(errs, mr.Close())
	}
	if c.scratch != nil {
		errs = append(errs, unix.Munmap(c.scratch))
	}
	return errors.Join(errs...)
}

// remote gives what names the peer's memory, in which the range must be. The
// caller holds mu.
func (c *conn) remote(op string, m *registeredmem.Memory, offset, n uint64) (*key, error) {
	if err := c.check(op, m, c.peer, offset, n); err != nil {
		return nil, err
	}
	if k := c.remotes[m]; k != nil {
		return k, nil
	}
	k, err := decodeKey(m.Key(registeredmem.InfiniBand))
	if err != nil {
		return nil, c.invalid(op, "%v is not reachable over InfiniBand: %w", m, err)
	}
	for _, q := range c.queues {
		if int(q.peer.nic) >= len(k.keys) {
			return nil, c.invalid(op, "%v has keys of %d devices, the peer's queue pairs are on more", m, len(k.keys))
		}
	}
	if len(c.remotes) >= maxRemotes {
		clear(c.remotes)
	}
	c.remotes[m] = &k
	return &k, nil
}

// maxRemotes is how many of the peer's memories are remembered at most.
const maxRemotes = 1024

// local finds this rank's memory, in which the range must be.
func (c *conn) local(op string, m *registeredmem.Memory, offset, n uint64) (*registration, error) {
	if err := c.check(op, m, c.t.reg.Rank(), offset, n); err != nil {
		return nil, err
	}
	r := c.t.registered(m.ID())
	if r == nil {
		return nil, c.invalid(op, "%v is closed", m)
	}
	return r, nil
}

func (c *conn) check(op string, m *registeredmem.Memory, rank int, offset, n uint64) error {
	switch {
	case c.closed:
		return c.invalid(op, "the connection is closed")
	case m == nil:
		return c.invalid(op, "the memory of rank %d is nil", rank)
	case m.Registry() != c.t.reg:
		return c.invalid(op, "%v is in another registry; this one must register or import it", m)
	case m.Rank() != rank:
		return c.invalid(op, "%v stands where one of rank %d must be", m, rank)
	case offset > m.Size() || n > m.Size()-offset:
		return c.invalid(op, "%d bytes at offset %d are outside %v", n, offset, m)
	}
	return c.failed(op)
}

// reserve waits until q has room for n requests more. What is gathered for it is
// posted first.
func (c *conn) reserve(op string, q *queue, n int) error {
	if q.room() >= n {
		return nil
	}
	if err := c.post(op, q); err != nil {
		return err
	}
	return c.await(op, q, q.posted-q.depth+uint64(n))
}

// await polls until all requests below a number are done, for the transport's
// time-out at most.
func (c *conn) await(op string, q *queue, number uint64) error {
	var end time.Time
	for i := 0; q.done < number; i++ {
		if err := c.poll(q); err != nil {
			return err
		}
		if q.done >= number {
			break
		}
		if now := time.Now(); end.IsZero() {
			end = now.Add(c.t.o.Timeout)
		} else if now.After(end) {
			return mscclgo.Errorf(mscclgo.ErrTimeout, op, "%v did not get done in %v with what was queued before", q, c.t.o.Timeout).At(c.t.reg.Rank(), c.peer)
		}
		pause(i)
	}
	return nil
}

// fence sees to it that a completion will tell of all requests posted so far, if
// need be by a write of nothing.
func (c *conn) fence(q *queue) error {
	const op = "ib: mark"
	if q.posted > 0 && q.signaled == q.posted {
		return nil
	}
	if err := c.reserve(op, q, 1); err != nil {
		return err
	}
	w := verbs.Work{Opcode: verbs.Write}
	w.ID, w.Flags = q.add(entry{doing: "write of nothing"}, true)
	c.work = append(c.work[:0], w)
	return c.post(op, q)
}

// post gives the device what was gathered in work.
func (c *conn) post(op string, q *queue) error {
	if len(c.work) == 0 {
		return nil
	}
	_, err := q.qp.Post(c.work)
	c.work = c.work[:0]
	if err != nil {
		// The account does not fit any more.
		return c.fail(mscclgo.Errorf(mscclgo.ErrSystem, op, "%v: %w", q, err))
	}
	return nil
}

// poll takes what completions q has.
func (c *conn) poll(q *queue) error {
	if err := c.failed("ib: poll"); err != nil {
		return err
	}
	n, err := q.cq.Poll(c.done[:])
	if err != nil {
		return c.fail(mscclgo.Errorf(mscclgo.ErrSystem, "ib: poll", "%w", err))
	}
	for i := range c.done[:n] {
		d := &c.done[i]
		what, ok := q.complete(d.ID)
		switch {
		case d.Status != verbs.StatusSuccess:
			return c.fail(c.explain(q, what, d))
		case !ok:
			return c.fail(mscclgo.Errorf(mscclgo.ErrSystem, "ib: poll", "a completion of request %d, which is not under way on %v", d.ID, q))
		}
	}
	return nil
}

// pause lets others go on between two polls, for longer the longer nothing comes.
func pause(i int) {
	if i < 2000 {
		runtime.Gosched()
		return
	}
	time.Sleep(50 * time.Microsecond)
}
