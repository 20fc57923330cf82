package ib

// #include "post.h"
import "C"

import (
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"golang.org/x/sys/unix"
)

// watch applies the messages of peers, handles the events of the device and looks after
// idle connections until the device is closed.
func (t *Transport) watch(n *nic) {
	fds := []unix.PollFd{
		{Fd: int32(n.wake), Events: unix.POLLIN},
		{Fd: int32(n.channel.FD()), Events: unix.POLLIN},
		{Fd: int32(n.ctx.EventFD()), Events: unix.POLLIN},
	}
	between := max(t.o.Timeout/2, minBetween)
	var glanced time.Time
	for next := time.Now().Add(between); ; {
		for i := range fds {
			fds[i].Revents = 0
		}
		left := time.Until(next)
		if left <= 0 {
			n.forAll((*conn).look)
			left = between
			next = time.Now().Add(between)
		}
		if t.o.Lost != nil {
			if time.Since(glanced) >= glanceEvery {
				n.forAll((*conn).glance)
				glanced = time.Now()
			}
			left = min(left, glanceEvery)
		}
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			n.failAll(mscclgo.Errorf(mscclgo.ErrSystem, "ib: wait for "+n.name, "%w", err))
			return
		}
		if fds[0].Revents != 0 {
			return
		}
		if fds[2].Revents != 0 {
			t.events(n)
		}
		if fds[1].Revents == 0 {
			continue
		}
		if err := n.channel.Take(); err != nil {
			n.failAll(mscclgo.Errorf(mscclgo.ErrSystem, "ib: wait for messages", "%w", err))
			return
		}
		n.mu.Lock()
		for c := range n.conns {
			c.receive()
		}
		n.mu.Unlock()
	}
}

// events handles the events of the device.
func (t *Transport) events(n *nic) {
	for {
		e, ok, err := n.ctx.Event()
		if err != nil || !ok {
			return
		}
		t.o.Logger.Info("an event of an RDMA device", "rank", t.reg.Rank(), "device", n.name, "event", e.Text, "port", e.Port, "queue pair", e.QueuePair)
		if !e.Failure {
			continue // a link that is down may come back, and else a request fails in time
		}
		failure := mscclgo.Errorf(mscclgo.ErrSystem, "ib: event of "+n.name, "%s (queue pair %d)", e.Text, e.QueuePair)
		if e.QueuePair == 0 {
			n.failAll(failure)
			continue
		}
		t.mu.RLock()
		for one := range t.live {
			if c, ok := one.(*conn); ok {
				for _, q := range c.queues {
					if q.nic == n && q.about.number == e.QueuePair {
						c.fail(failure)
					}
				}
			}
		}
		t.mu.RUnlock()
	}
}

// minBetween is the least time between two looks at the connections of a device.
const minBetween = 2 * time.Second

// glanceEvery is how often there is a look at what is under way, for a failure that is to be told.
const glanceEvery = 100 * time.Millisecond

// forAll does something with all connections.
func (n *nic) forAll(do func(*conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		do(c)
	}
}

// glance notices a request that has failed while nobody calls: a failure has a completion in any case.
func (c *conn) glance() {
	const op = "ib: look for a failure"
	if !c.mu.TryLock() {
		return // a call polls
	}
	defer c.mu.Unlock()
	if c.usable(op) == nil {
		_ = c.pollAll(op) // which tells
	}
}

// look notices that the peer is gone while nobody calls. It polls for what is under way. If
// nothing was posted since the last look and no completion is due, it posts an empty write:
// the peer's card acknowledges it, and with it all before. Before the first request is done
// the peer may not be connected yet.
func (c *conn) look() {
	const op = "ib: look after an idle connection"
	if !c.mu.TryLock() {
		return // a call polls
	}
	defer c.mu.Unlock()
	if c.usable(op) != nil {
		return
	}
	first := c.queues[0]
	idle := first.posted == c.lookedAt && first.done > 0
	for _, q := range c.queues {
		if q.done < q.signaled {
			idle = false
		}
		if q.done < q.posted && c.poll(op, q) != nil {
			return
		}
	}
	if idle && first.room() > 0 {
		c.request(op, first, entry{doing: C.IB_EMPTY}, verbs.Work{Opcode: verbs.Write})
	}
	c.lookedAt = first.posted
}

// add has the messages for c applied.
func (n *nic) add(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = struct{}{}
	c.receive() // arms it
}

// receive applies the messages for c that have arrived, which its device's goroutine may not have seen yet.
func (n *nic) receive(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.receive()
}

// remove undoes add. Once it has returned, no message is applied.
func (n *nic) remove(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

func (n *nic) failAll(err *mscclgo.Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		one := *err
		c.fail(&one)
	}
}
