package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"golang.org/x/sys/unix"
)

// lookAnyway is after how many milliseconds without an event messages are looked
// for all the same: Soft-RoCE may lose one that crosses the wish for it.
const lookAnyway = 20

// watch waits for messages of peers, which it carries out, and for events of the
// device, until the device is closed.
func (t *Transport) watch(n *nic) {
	fds := []unix.PollFd{
		{Fd: int32(n.wake), Events: unix.POLLIN},
		{Fd: int32(n.channel.FD()), Events: unix.POLLIN},
		{Fd: int32(n.ctx.EventFD()), Events: unix.POLLIN},
	}
	for {
		some, err := unix.Poll(fds, lookAnyway)
		if err != nil && !errors.Is(err, unix.EINTR) {
			n.failAll(mscclgo.Errorf(mscclgo.ErrSystem, "ib: wait for "+n.name, "%w", err))
			return
		}
		if fds[0].Revents != 0 {
			return
		}
		if fds[2].Revents != 0 {
			t.events(n)
		}
		if some > 0 && fds[1].Revents == 0 {
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

// expect gives the device room for one message.
func (c *conn) expect(slot uint64) error {
	return c.queues[0].qp.PostReceive(slot, c.inAt()+messageSize*slot, messageSize, c.scratchMRs[0].LocalKey())
}

// receive carries out the messages that have come and asks for an event for the
// next. The device's lock is held.
func (c *conn) receive() {
	q := c.endpoint.receive
	if c.adds || c.broken.Load() != nil {
		return
	}
	if err := q.Arm(); err != nil {
		c.fail(mscclgo.Errorf(mscclgo.ErrSystem, "ib: receive", "%w", err))
		return
	}
	var done [16]verbs.Completion
	for {
		n, err := q.Poll(done[:])
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
				return // the request that failed tells why
			}
			if d.Status != verbs.StatusSuccess {
				c.fail(c.explain(c.queues[0], entry{doing: "receive"}, d))
				return
			}
			if err := c.carryOut(d); err != nil {
				c.fail(mscclgo.Errorf(mscclgo.ErrRemote, "ib: carry out an update", "%w", err))
				c.queues[0].qp.Fail() // so that the peer learns of it too
				return
			}
		}
	}
}

// carryOut does what a message asks for.
func (c *conn) carryOut(d *verbs.Completion) error {
	if d.Size != messageSize || d.ID >= messages {
		return fmt.Errorf("a message of %d bytes in place %d", d.Size, d.ID)
	}
	in := c.scratch[c.inAt()+messageSize*d.ID:]
	id, offset, value := binary.LittleEndian.Uint64(in), binary.LittleEndian.Uint64(in[8:]), binary.LittleEndian.Uint64(in[16:])
	if err := c.t.store(id, offset, value); err != nil {
		return err
	}
	return c.expect(d.ID)
}

// store gives a word of one of this rank's memories a value, with release
// semantics. Withdraw waits for it.
func (t *Transport) store(id, offset, value uint64) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.memories[uint32(id)]
	if r == nil || id != uint64(uint32(id)) {
		return fmt.Errorf("there is no memory %d, or it is closed", id)
	}
	if size := r.memory.Size(); (r.base+offset)%8 != 0 || offset > size || size-offset < 8 {
		return fmt.Errorf("offset %d is not that of a word of %v", offset, r.memory)
	}
	buf := r.memory.Buffer()
	if buf == nil {
		return fmt.Errorf("%v is closed", r.memory)
	}
	if b := buf.Bytes(); b != nil {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[offset])), value)
		return nil
	}
	word, err := buf.Slice(offset, 8)
	if err != nil {
		return err
	}
	return gpu.CopyIn(word, []uint64{value})
}
