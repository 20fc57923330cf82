package ib

// #include "post.h"
import "C"

import (
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
)

// message is an update, an addition or an exchange without atomics: what becomes of a word of the
// peer's memory. Others are news; see there.
// It is written to a slot of the peer's inbox with an immediate value, and the peer's
// process applies it.
//
// Each takes one of the peer's posted receives and one slot. The peer counts the
// messages that it has applied, after it has posted the receives again, and this side
// reads the count, so that there are never more messages under way than receives and
// slots. So a receiver is always ready. For one that is not, the specification has retries,
// and Soft-RoCE (Linux 6.1) hangs.
type message struct {
	memory uint32
	kind   messageKind
	offset uint64
	value  uint64
}

// messageKind is what is done to the word, or told.
type messageKind uint32

const (
	messageStore    messageKind = 0
	messageAdd      messageKind = 1
	messageExchange messageKind = 2 // the word was what the receiver leaves for the sender
	messageHello    messageKind = 3 // the sender is connected
	messageGone     messageKind = 4 // the sender has closed one of its own memories
)

const (
	messageSize = C.IB_OUT_BYTES
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
	at    time.Time // when that was asked for

	changes uint32 // all messages that change words are below

	added  uint32               // all messages that add are below
	places [messages]addedPlace // of these, by slot
}

// addedPlace is where a message adds, among all memory of the peer; of others it is zero.
type addedPlace struct {
	adds  bool
	place uint64
}

// adding reports whether messages that add may not be applied yet.
func (o *outbox) adding() bool { return int32(o.added-o.taken) > 0 }

// forget has the counts not be more than half of all numbers apart once nothing is being added.
func (o *outbox) forget() {
	if !o.adding() {
		o.added = o.taken
	}
}

// addsTo reports whether one of these may add to what a request changes.
func (o *outbox) addsTo(place, n uint64) bool {
	if !o.adding() {
		return false
	}
	for i := o.taken; i != o.sent; i++ {
		p := &o.places[i%messages]
		if p.adds && p.place < place+n && place < p.place+8 {
			return true
		}
	}
	return false
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
			if err := c.ask(op, q); err != nil {
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
	defer o.forget()
	taken := c.scratch.taken()
	switch {
	case o.sent-taken > o.underWay():
		return c.fail(mscclgo.Errorf(mscclgo.ErrRemote, op, "the peer counts %d updates, %d were sent", taken, o.sent))
	case taken != o.taken || o.since.IsZero():
		o.taken, o.since = taken, time.Now()
	case o.at.Sub(o.since) > c.t.o.Timeout: // the count may be old, where nobody has looked since
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
	return false, c.ask(op, q)
}

// ask posts a read of the peer's count.
func (c *conn) ask(op string, q *queue) error {
	w := verbs.Work{
		Local: takenAt, Remote: countAt, Size: 4, Opcode: verbs.Read,
		LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: c.inboxKey,
	}
	err := c.request(op, q, entry{doing: C.IB_APPLIED}, w)
	c.out.asked, c.out.at = q.posted, time.Now()
	return err
}

// sendMessage posts a message behind all that was posted before, once the peer has room.
func (c *conn) sendMessage(op string, what entry, m message) error {
	q := c.queues[0]
	if err := c.credit(op, q); err != nil {
		return err
	}
	if err := c.reserve(op, q, 2); err != nil {
		return err
	}
	if err := c.request(op, q, what, c.send(q, m)); err != nil {
		return err
	}
	if c.out.asked == 0 && c.out.underWay() >= messages/2 {
		return c.ask(op, q) // early, so that nothing waits
	}
	return nil
}

// send returns the next request, which sends a message, for which the peer has room. Its slot
// here belonged to a request that is done, since the queue has room.
func (c *conn) send(q *queue, m message) verbs.Work {
	w := verbs.Work{
		Local:  c.scratch.put(q.posted%q.depth, m),
		Remote: uint64(c.out.sent%messages) * messageSize, Size: messageSize, Value: uint64(c.out.sent), Opcode: verbs.WriteImm,
		LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: c.inboxKey,
	}
	if c.out.underWay() == 0 {
		c.out.since = time.Time{}
	}
	c.out.places[c.out.sent%messages] = addedPlace{}
	c.out.sent++
	if m.kind <= messageExchange {
		c.out.changes = c.out.sent
	}
	return w
}

// receive applies the messages that have arrived and requests an event for the next.
// The caller holds the device's lock.
//
// No message is missed: one that arrives before the queue is armed is polled here, and
// one that arrives later makes an event.
func (c *conn) receive() {
	if c.broken.Load() != nil {
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
				c.fail(c.explain(c.queues[0], &entry{doing: C.IB_RECEIVE}, d.Status, d.Vendor))
				return
			}
			if err := c.apply(d.Immediate); err != nil {
				c.fail(mscclgo.Errorf(kindOfChange(err, mscclgo.ErrRemote), "ib: apply an update", "%w", err))
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
	slot := number % messages
	m := c.scratch.get(slot)
	switch m.kind {
	case messageHello:
		c.meet()
		return nil
	case messageGone:
		c.closedAtPeer(m.memory)
		return nil
	}
	old, err := c.t.change(m)
	if err == nil && m.kind == messageExchange {
		c.scratch.putOld(slot, old)
	}
	return err
}
