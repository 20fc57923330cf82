package shm

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/procfs"
)

// conn is the driver of a connection: the sending end of a ring.
//
// Goroutines: one that fills the ring, posts what is in it and fetches what was read, and one that
// reads the peer's messages.
type conn struct {
	half
	message.Queue
	stream *gpu.Stream
	filler filler

	posted atomic.Uint64 // entries that the peer may read, ever

	// Guarded by Mu.
	spans    [entryCount]span // of the entries that are in the ring
	done     uint64           // entries that are done at the peer, as last seen
	finished uint64           // those before the first whose answer is not here yet
	freed    uint64           // bytes of the data that these had
	asked    uint64           // parts of reads that are in the ring, ever
	fetched  uint64           // those among them that are here

}

// span is what is free once an entry is done.
type span struct {
	end uint64 // of its data, counted from the first byte that ever was in the ring
	ops uint64 // operations that are done with it

	read answer // or without a memory
}

// newConn returns the sending end of a ring. It owns the socket and the ring, also when it
// fails.
func newConn(t *Transport, peer *description, sock *net.UnixConn, r *ring) (*conn, error) {
	c := new(conn)
	c.Init(&c.End, c, true)
	c.PeerInstance = peer.transport
	err := c.open(t, c, int(peer.rank), sock, r, func() {
		c.look() // a last time
		c.Changed.Broadcast()
		c.Work.Broadcast()
	})
	if err == nil {
		c.stream, err = c.NewStream()
	}
	if err == nil {
		err = c.filler.open(c)
	}
	if err == nil {
		err = c.start()
	}
	if err != nil {
		c.Leave(t.rank.Parting) // the peer is to hear of it from this rank's caller
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// start begins to send.
func (c *conn) start() error {
	return c.Begin(func() {
		c.Tasks.Go(c.move)
		c.Tasks.Go(func() {
			for c.listen(c.hear) {
			}
		})
		c.wake() // the peer is to know that its ring was taken
	})
}

// hear takes a message of the peer.
func (c *conn) hear(f *message.Frame) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	switch f.Kind {
	case message.Wake:
	case message.Gone:
		c.Gone.Add(f.Memory)
	case message.Refuse:
		c.Poll()
		if f.Op < c.done || f.Op >= c.posted.Load() {
			return fmt.Errorf("it refuses entry %d of %d, of which %d are done", f.Op, c.posted.Load(), c.done)
		}
		c.UselessLocked(c.Refused(f))
		return nil
	default:
		return fmt.Errorf("a packet of kind %d to the rank that sends", f.Kind)
	}
	c.Changed.Broadcast() // those who sleep look themselves
	c.Work.Broadcast()
	return nil
}

// Poll looks how many entries are done.
func (c *conn) Poll() {
	if c.Err != nil {
		return // the ring may be unmapped
	}
	if err := c.look(); err != nil {
		c.LostLocked(err)
	}
}

// look is Poll for callers that know that the ring is mapped.
func (c *conn) look() error {
	n, posted := c.ring.done.Load(), c.posted.Load()
	switch {
	case n == c.done:
		return nil
	case n < c.done || n > posted:
		return fmt.Errorf("it says that %d entries are done, after %d, and %d were posted", n, c.done, posted)
	}
	c.done = n
	c.finish()
	return nil
}

// finish frees the places of entries that are done, before the next answer that must be
// fetched. The caller holds Mu.
func (c *conn) finish() {
	for c.finished < c.done {
		s := &c.spans[c.finished%entryCount]
		if s.read.into != nil {
			break
		}
		c.finished, c.freed = c.finished+1, s.end
		c.Done.Store(s.ops)
	}
	c.Changed.Broadcast()
	if c.Taken != c.Queued.Load() {
		c.Work.Signal()
	}
}

// Full reports false, as the ring takes operations in turn.
func (c *conn) Full(message.Kind) bool { return false }

// Added wakes the filler.
func (c *conn) Added(*message.Op) { c.Work.Signal() }

// Missing says how many operations are done.
func (c *conn) Missing(until uint64) string {
	return fmt.Sprintf("the peer has done %d of %d operations", c.Done.Load(), until)
}

// Sleep waits until more is done or the half has ended, unless what holds.
func (c *conn) Sleep(unless func() bool) { c.sleep(&c.Changed, unless) }

// sleep is Sleep on one of the conditions. The caller holds Mu, and looks again.
func (c *conn) sleep(on *sync.Cond, unless func() bool) {
	c.ring.senderSleeps.Store(1)
	c.Poll() // the peer may have looked before the store
	if c.Err == nil && !unless() {
		on.Wait()
	}
}

// move fills the ring until the connection has ended, and waits until nothing is copied any more: a source is
// its owner's again then, too.
func (c *conn) move() {
	c.filler.run()
	c.Calm(c.stream)
}

// Watch fails the connection if the peer has done nothing for the timeout although
// something is posted.
func (c *conn) Watch(now time.Time) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Poll()
	due := c.posted.Load() - c.done
	if silent, tooLong := c.Silent(now, c.done, due > 0); tooLong {
		c.LostLocked(fmt.Errorf("it has done nothing for %v, with %d entries waiting: %s", silent, due, whyStuck(fdpass.Process(c.sock))))
	}
}

// whyStuck says why a peer's process, which is 0 if it is unknown, may do nothing.
func whyStuck(process int) string {
	switch {
	case procfs.Stopped(process):
		return fmt.Sprintf("its process is stopped (process %d): a signal, a shell or a debugger stopped it", process)
	case procfs.Runs(process):
		return fmt.Sprintf("its process (process %d) is not stopped: its device is stuck, or it gets no CPU", process)
	}
	return "its process is stopped, or its device is stuck"
}

// Close tells the peer, and releases the connection.
func (c *conn) Close() error {
	return c.CloseOnce(func() error {
		c.Leave(c.t.rank.Parting)
		c.Tasks.Wait()
		return c.release()
	})
}
