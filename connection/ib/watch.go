package ib

import (
	"errors"

	"github.com/mscclgo/mscclgo"
	"golang.org/x/sys/unix"
)

// watch applies the messages of peers and handles the events of the device until the
// device is closed.
func (t *Transport) watch(n *nic) {
	fds := []unix.PollFd{
		{Fd: int32(n.wake), Events: unix.POLLIN},
		{Fd: int32(n.channel.FD()), Events: unix.POLLIN},
		{Fd: int32(n.ctx.EventFD()), Events: unix.POLLIN},
	}
	for {
		for i := range fds {
			fds[i].Revents = 0
		}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
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

// add has the messages for c applied.
func (n *nic) add(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = struct{}{}
	c.receive() // arms it
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
