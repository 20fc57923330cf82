package ib

// #include "post.h"
import "C"

import (
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// news is what two ranks tell each other of memories that were closed, by messages, with
// atomics too: a card would refuse what comes for such a memory, which ends the connection.
// Before the peer has used the connection its end may not be connected, and a message would
// fail; so each rank greets its peer with a message before its first request.
type news struct {
	mu      sync.Mutex
	gone    target.Withdrawn // memories that the peer has closed
	met     bool             // both ends are connected
	untold  []uint32
	telling bool // tasks has a goroutine that tells
	ended   bool // nothing more is told
	tasks   sync.WaitGroup

	greeted bool // guarded by the connection's lock
}

// find returns an error if the peer has said that it has closed a memory.
func (c *conn) find(m *registeredmem.Memory) error {
	n := &c.news
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone.Has(m.ID()) {
		return mscclgo.Errorf(mscclgo.ErrRemote, "ib: find the memory", "rank %d has closed memory %d; nothing was sent", c.peer, m.ID())
	}
	return nil
}

// greet tells the peer, before the first request, that this end is connected. The caller
// holds the connection's lock, and knows that the peer's end is.
func (c *conn) greet(op string) error {
	if c.news.greeted {
		return nil
	}
	c.news.greeted = true
	if err := c.sendMessage(op, entry{doing: C.IB_GREETING}, message{kind: messageHello}); err != nil {
		return err
	}
	c.c.open = 1
	c.meet()
	return nil
}

// meet has the peer told what was closed before both ends were known to be connected.
func (c *conn) meet() {
	n := &c.news
	n.mu.Lock()
	defer n.mu.Unlock()
	n.met = true
	c.beginToTell()
}

// closedAtPeer notes that the peer has closed a memory.
func (c *conn) closedAtPeer(memory uint32) {
	c.news.mu.Lock()
	defer c.news.mu.Unlock()
	c.news.gone.Add(memory)
	c.forget(memory)
}

// tellGone has the peer told that a memory was closed. It does not wait.
func (c *conn) tellGone(memory uint32) {
	n := &c.news
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || len(n.untold) == target.MaxWithdrawn {
		return
	}
	n.untold = append(n.untold, memory)
	c.beginToTell()
}

// beginToTell starts the goroutine that tells, if there is anything to tell. The caller holds
// the lock of the news.
func (c *conn) beginToTell() {
	if n := &c.news; n.met && !n.telling && !n.ended && len(n.untold) > 0 {
		n.telling = true
		n.tasks.Go(c.tell)
	}
}

// tell sends what is untold, until the connection fails or closes.
func (c *conn) tell() {
	n := &c.news
	for {
		n.mu.Lock()
		if n.ended || len(n.untold) == 0 {
			n.telling, n.untold = false, nil
			n.mu.Unlock()
			return
		}
		memory := n.untold[0]
		n.mu.Unlock()
		sent, err := c.sendGone(memory)
		n.mu.Lock()
		switch {
		case err != nil:
			n.ended = true
		case sent:
			n.untold = n.untold[1:]
		}
		n.mu.Unlock()
		if !sent {
			time.Sleep(time.Millisecond)
		}
	}
}

// sendGone tells the peer of a memory, if that takes no room that a turn counts on. It reports
// whether it has.
func (c *conn) sendGone(memory uint32) (bool, error) {
	const op = "ib: tell of a closed memory"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(op); err != nil {
		return false, err
	}
	q := c.queues[0]
	from := C.uint64_t(q.posted)
	defer func() {
		if from != c.c.news_to {
			c.c.news_from = from
		}
		c.c.news_to = C.uint64_t(q.posted)
	}()
	if room, err := c.applied(op, c.out.sent+1-messages/2); !room || err != nil {
		return false, err
	}
	if q.room() <= int(q.depth/2) {
		return false, c.poll(op, q)
	}
	err := c.sendMessage(op, entry{doing: C.IB_NEWS}, message{memory: memory, kind: messageGone})
	return err == nil, err
}

// end ends the news, and returns when none is being sent.
func (n *news) end() {
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.tasks.Wait()
}
