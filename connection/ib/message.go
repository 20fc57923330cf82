package ib

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/verbs"
)

// message is an update without atomics: the new value of a word of the peer's memory.
// It is written to a slot of the peer's inbox with an immediate value, and the peer's
// process applies it.
//
// Each takes one of the peer's posted receives and one slot. The peer counts the
// messages that it has applied, after it has posted the receives again, and this side
// reads the count, so that there are never more messages under way than receives and
// slots. A receiver that is not ready, for which the specification has retries but on
// which Soft-RoCE (Linux 6.1) hangs, therefore does not occur.
type message struct {
	memory uint32
	offset uint64
	value  uint64
}

const (
	messageSize = 24
	// messages is how many may be under way.
	messages = 256
)

// outbox counts the messages that this side sends, modulo 2^32: every bus reads 4 bytes
// without tearing.
type outbox struct {
	sent  uint32
	taken uint32    // applied, as last read from the peer
	since time.Time // when it was first read as taken, or zero
	asked uint64    // once requests below are done there is a newer count; 0: none is being read
}

func (o *outbox) underWay() uint32 { return o.sent - o.taken }

// credit waits until the peer has room for a message.
func (c *conn) credit(op string, q *queue) error {
	for i := 0; ; i++ {
		if err := c.learn(op, q); err != nil {
			return err
		}
		if c.out.underWay() < messages {
			return nil
		}
		if c.out.asked == 0 {
			pause(i)
			if err := c.reserve(op, q, 1); err != nil {
				return err
			}
			c.work = append(c.work[:0], c.ask(q))
			if err := c.post(op, q); err != nil {
				return err
			}
		}
		if err := c.await(op, q, c.out.asked); err != nil {
			return err
		}
	}
}

// learn takes the peer's count, if it has been read. It fails the connection if the
// peer applies nothing for the transport's timeout.
func (c *conn) learn(op string, q *queue) error {
	o := &c.out
	if o.asked == 0 || q.done < o.asked {
		return nil
	}
	o.asked = 0
	taken, now := c.scratch.taken(), time.Now()
	switch {
	case o.sent-taken > o.underWay():
		return c.fail(mscclgo.Errorf(mscclgo.ErrRemote, op, "the peer counts %d updates, %d were sent", taken, o.sent))
	case taken != o.taken || o.since.IsZero():
		o.taken, o.since = taken, now
	case now.Sub(o.since) > c.t.o.Timeout:
		return c.fail(mscclgo.Errorf(mscclgo.ErrRemote, op, "the peer's process has applied none of %d updates in %v", o.underWay(), c.t.o.Timeout))
	}
	return nil
}

// applied reports whether the peer has applied the messages below a number. If that
// is not known it reads the peer's count, without waiting.
func (c *conn) applied(op string, number uint32) (bool, error) {
	behind := func() bool { return int32(number-c.out.taken) > 0 }
	if !behind() {
		return true, nil
	}
	q := c.queues[0]
	if err := c.usable(op); err != nil {
		return false, err
	}
	if err := c.poll(op, q); err != nil {
		return false, err
	}
	if err := c.learn(op, q); err != nil || !behind() {
		return err == nil, err
	}
	if c.out.asked > 0 || q.room() == 0 {
		return false, nil
	}
	c.work = append(c.work[:0], c.ask(q))
	return false, c.post(op, q)
}

// ask returns the request that reads the peer's count.
func (c *conn) ask(q *queue) verbs.Work {
	w := verbs.Work{
		Local: takenAt, Remote: countAt, Size: 4, Opcode: verbs.Read,
		LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: c.inboxKey,
	}
	w.ID, w.Flags = q.add(entry{doing: "read of the number of updates applied"}, true)
	c.out.asked = q.posted
	return w
}

// send returns the request that sends a message, for which the peer has room. Its slot
// here belonged to a request that is done, since the queue has room.
func (c *conn) send(q *queue, id uint64, m message) verbs.Work {
	w := verbs.Work{
		Local:  c.scratch.put(id%q.depth, m),
		Remote: uint64(c.out.sent%messages) * messageSize, Size: messageSize, Value: uint64(c.out.sent), Opcode: verbs.WriteImm,
		LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: c.inboxKey,
	}
	if c.out.underWay() == 0 {
		c.out.since = time.Time{}
	}
	c.out.sent++
	return w
}

// receive applies the messages that have arrived and requests an event for the next.
// The caller holds the device's lock.
//
// No message is missed: one that arrives before the queue is armed is polled here, and
// one that arrives later makes an event.
func (c *conn) receive() {
	if c.adds || c.broken.Load() != nil {
		return
	}
	if err := c.endpoint.receive.Arm(); err != nil {
		c.fail(mscclgo.Errorf(mscclgo.ErrSystem, "ib: receive", "%w", err))
		return
	}
	var done [32]verbs.Completion
	for {
		n, err := c.endpoint.receive.Poll(done[:])
		if err != nil {
			c.fail(mscclgo.Errorf(mscclgo.ErrSystem, "ib: receive", "%w", err))
			return
		}
		if n == 0 {
			return
		}
		for i := range done[:n] {
			d := &done[i]
			if d.Status == verbs.StatusFlushed {
				return // the request that failed has the reason
			}
			if d.Status != verbs.StatusSuccess {
				c.fail(c.explain(c.queues[0], entry{doing: "receive"}, d))
				return
			}
			if err := c.apply(d.Immediate); err != nil {
				c.fail(mscclgo.Errorf(mscclgo.ErrRemote, "ib: apply an update", "%w", err))
				c.queues[0].qp.Fail() // so that the peer's requests fail too
				return
			}
		}
		if err := c.queues[0].qp.PostReceives(n); err != nil {
			c.fail(mscclgo.Errorf(mscclgo.ErrSystem, "ib: receive", "%w", err))
			return
		}
		c.scratch.count(c.received)
	}
}

// apply applies the next message, which must have that number.
func (c *conn) apply(number uint32) error {
	if number != c.received {
		return fmt.Errorf("update %d came where %d was due", number, c.received)
	}
	c.received++
	return c.t.store(c.scratch.get(number % messages))
}

// store stores a word of one of this rank's memories with release semantics. Withdraw
// waits for it.
func (t *Transport) store(m message) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.memories[m.memory]
	if r == nil {
		return fmt.Errorf("there is no memory %d, or it is closed", m.memory)
	}
	if size := r.memory.Size(); (r.base+m.offset)%8 != 0 || m.offset > size || size-m.offset < 8 {
		return fmt.Errorf("offset %d is not that of a word of %v", m.offset, r.memory)
	}
	buf := r.memory.Buffer()
	if buf == nil {
		return fmt.Errorf("%v is closed", r.memory)
	}
	if b := buf.HostBytes(); b != nil {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[m.offset])), m.value)
		return nil
	}
	word, err := buf.Slice(m.offset, 8)
	if err != nil {
		return err
	}
	return gpu.CopyIn(word, []uint64{m.value})
}
