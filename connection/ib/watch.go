package ib

import (
	"errors"

	"github.com/mscclgo/mscclgo"
	"golang.org/x/sys/unix"
)

// watch waits for messages of peers, which it carries out, and for events of the
// device, until the device is closed.
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

// events deals with what happened to the device.
func (t *Transport) events(n *nic) {
	for {
		e, ok, err := n.ctx.Event()
		if err != nil || !ok {
			return
		}
		t.o.Logger.Info("an event of an RDMA device", "rank", t.reg.Rank(), "device", n.name, "event", e.Text, "port", e.Port, "queue pair", e.QueuePair)
		if !e.Failure {
			continue // of a link that is down a request in vain tells in time, and it may come back
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

// add has the device's messages for c carried out.
func (n *nic) add(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = struct{}{}
	c.receive() // arms it
}

// remove undoes add. Afterwards nothing is carried out any more.
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
