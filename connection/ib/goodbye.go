package ib

// #include "post.h"
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/verbs"
)

// goodbyePatience bounds how long a connection that closes tells its peer so.
const goodbyePatience = 2 * time.Second

// sayGoodbye tells the peer that this end closes, by a word in its inbox, and waits until the peer's card has taken it,
// or the peer closes too. What the peer had sent may have been taken with the acknowledgement lost: its card then gives
// that up once the queue pairs here are gone, and by the word the peer knows that nobody is lost.
func (c *conn) sayGoodbye() {
	const op = "ib: tell the peer of the close"
	if c.t.o.Lost == nil {
		return
	}
	q := c.queues[0]
	q.nic.receive(c)
	if !c.news.both() {
		return
	}
	post := func() (number uint64, err error) {
		if !c.mu.TryLock() { // its holder may wait, which Close ends
			return 0, nil
		}
		defer c.mu.Unlock()
		if err = c.usable(op); err == nil && q.room() < 2 {
			return 0, c.poll(op, q)
		}
		if err == nil {
			err = c.request(op, q, entry{doing: C.IB_GOODBYE}, verbs.Work{
				Local: c.scratch.put(q.posted%q.depth, message{memory: 1}), Remote: goodbyeAt, Size: 4, Opcode: verbs.Write,
				LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: c.inboxKey,
			})
		}
		if err == nil {
			err = c.fence(op, q)
		}
		return q.posted, err
	}
	taken := func(number uint64) (bool, error) {
		if !c.mu.TryLock() {
			return false, nil
		}
		defer c.mu.Unlock()
		if err := c.usable(op); err != nil {
			return false, err
		}
		return q.done >= number, c.poll(op, q)
	}
	number := uint64(0)
	for i, end := 0, time.Now().Add(min(c.t.o.Timeout, goodbyePatience)); !c.scratch.left() && time.Now().Before(end); i++ {
		select {
		case <-c.t.reg.Failed():
			return
		default:
		}
		var done bool
		var err error
		if number == 0 {
			number, err = post()
		} else {
			done, err = taken(number)
		}
		if done || err != nil {
			return
		}
		pause(i)
	}
}

// both reports whether both ends are connected.
func (n *news) both() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.met
}

// left reports whether the peer has said that it closes.
func (s *scratch) left() bool {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&s.inbox[goodbyeAt]))) != 0
}
