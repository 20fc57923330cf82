package ethernet

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// conn is the driver of a connection: what this rank sends to the peer, and what it
// receives.
//
// Goroutines: a sender and a receiver for each data socket, one that waits
// for the senders to end, one that reads acknowledgements, one that makes them.
type conn struct {
	message.End
	message.Queue
	t       *Transport
	other   *conn // the receiving half of an endpoint's connection to itself
	control net.Conn
	sockets []net.Conn // all
	rx      *receiver
	senders []*sender
	sending sync.WaitGroup // the senders' goroutines

	acked    atomic.Uint64 // operations that are done at the peer, as it says, and were sent whole
	parts    atomic.Bool   // this rank has told the peer that it ends: the sockets stay until it knows
	progress atomic.Uint64 // changes with everything that the peer takes or sends

	// Guarded by Mu.
	claimed   uint64 // operations that the peer says are done
	socketErr error  // of a data socket that broke

	reads   reading
	answers answering

	controlMu sync.Mutex // writing to the control socket
	ackSent   uint64
	ackFrame  [message.FrameSize]byte

	links []handshake.Link // of the sockets; used by watch
	lossy atomic.Int64     // since when the kernel sends again what it sends to the peer, in Unix nanoseconds, or 0
}

// newConn returns a connection over sockets whose handshakes are done; the first is
// the control socket. It owns them, also when it fails.
func newConn(t *Transport, peer int, sockets []net.Conn) (*conn, error) {
	c := &conn{t: t, control: sockets[0], sockets: sockets}
	c.Receives = true
	c.Open(&t.rank, c, peer, c.wake)
	c.Init(&c.End, c, false)
	err := c.start(sockets[1:])
	if err != nil {
		c.Leave(t.patience) // the peer is to hear of it from this rank's caller
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// tcpOf returns the TCP socket below nc.
func tcpOf(nc net.Conn) *net.TCPConn {
	for {
		wrapped, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		nc = wrapped.NetConn()
	}
	tcp, _ := nc.(*net.TCPConn)
	return tcp
}

// start allocates what the connection needs and begins to receive.
func (c *conn) start(data []net.Conn) error {
	// Each rank has half of the staging memory. Each socket has sendBatches parts to
	// send from and slotsPerSocket parts to receive into.
	part := c.t.opts.Staging / 4 / uint64(len(data)) / slotsPerSocket &^ 4095
	for _, nc := range data {
		s, err := c.newSender(nc, part)
		if err != nil {
			return err
		}
		c.senders = append(c.senders, s)
	}
	var err error
	if c.rx, err = c.newReceiver(data, part); err != nil {
		return err
	}
	return c.Begin(func() {
		for _, s := range c.senders {
			c.sending.Go(s.run)
		}
		c.Tasks.Go(c.calm)
		c.rx.start()
		c.Tasks.Go(c.readControl)
	})
}

// Full reports whether the peer has no room for another request.
func (c *conn) Full(k message.Kind) bool {
	return k.Asks() && c.reads.asked-c.reads.answered.Load() == readDepth
}

// Added notes what an operation must wait for, and wakes senders.
func (c *conn) Added(o *message.Op) {
	o.After = c.reads.asked
	if o.Kind.Asks() {
		c.ask(o)
	}
	if len(c.senders) == 1 || o.Kind != message.Data || o.N <= c.senders[0].part {
		c.Work.Signal()
	} else {
		c.Work.Broadcast()
	}
}

// Poll does nothing, as goroutines read what the peer says.
func (c *conn) Poll() {}

// Sleep waits for Changed.
func (c *conn) Sleep(func() bool) { c.Changed.Wait() }

// settled notes how many operations are done, and answered. The caller holds Mu.
func (c *conn) settled() {
	done := c.acked.Load()
	if r := &c.reads; r.answered.Load() < r.asked {
		done = min(done, r.ring[r.answered.Load()%readDepth].op)
	}
	c.Done.Store(done)
	c.Changed.Broadcast()
}

// Missing says how many operations are done, and how many reads have not ended.
func (c *conn) Missing(until uint64) string {
	text := fmt.Sprintf("the peer has done %d of %d operations", min(c.acked.Load(), until), until)
	if n := c.reads.missing(until); n > 0 {
		text += fmt.Sprintf(", %d of them reads whose bytes are not all here", n)
	}
	return text
}

// calm waits until the connection has ended, no sender reads what it sends, and their streams have
// done what they were given: a source is its owner's again then. Memory that is received into is
// held until then.
func (c *conn) calm() {
	c.sending.Wait()
	var streams []*gpu.Stream
	for _, s := range c.senders {
		streams = append(streams, s.stream)
	}
	c.Calm(streams...)
}

// wake has all that wait see that the connection has ended. The caller holds Mu.
func (c *conn) wake() {
	if c.parts.Load() {
		c.interrupt()
	} else {
		c.shut()
	}
	c.Changed.Broadcast()
	c.Work.Broadcast()
	if c.rx != nil {
		c.rx.wake()
	}
}

// shut closes the sockets.
func (c *conn) shut() {
	for _, nc := range c.sockets {
		// Close of a TLS connection would write.
		if tcp := tcpOf(nc); tcp != nil {
			tcp.Close()
		}
	}
}

// interrupt ends all reading and writing, and closes no socket.
func (c *conn) interrupt() {
	for _, nc := range c.sockets {
		if tcp := tcpOf(nc); tcp != nil {
			tcp.SetDeadline(time.Unix(1, 0))
		}
	}
}

// Watch fails the connection if the peer has neither taken nor sent anything for the
// timeout although something is due.
func (c *conn) Watch(now time.Time) {
	c.watchLinks(now)
	if silent, tooLong := c.Silent(now, c.progress.Load(), c.awaitsPeer()); tooLong {
		c.Mu.Lock()
		operations, reads := c.Queued.Load()-c.acked.Load(), c.reads.asked-c.reads.answered.Load()
		c.Mu.Unlock()
		c.Lost(fmt.Errorf("it has neither acknowledged nor sent anything for %v, with %d operations waiting and %d reads not here; its process is stuck, or the network is down", silent, operations, reads))
	}
}

// awaitsPeer reports whether something is due that the peer does, and not only what this
// rank's device does.
func (c *conn) awaitsPeer() bool {
	stalled := c.rx.stalled() // then bytes that have come are not read
	c.Mu.Lock()
	defer c.Mu.Unlock()
	sent := c.sent()
	writing := func(s *sender) bool { return s.writing.Load() }
	return c.acked.Load() < sent || slices.ContainsFunc(c.senders, writing) || !stalled && (c.rx.midFrame() || c.reads.underWay(sent))
}

// Close tells the peer, and releases the connection.
func (c *conn) Close() error {
	return c.CloseOnce(func() error {
		c.Leave(c.t.patience)
		err := c.release()
		if c.other != nil {
			err = errors.Join(err, c.other.Close())
		}
		return err
	})
}

// release frees everything once the connection has ended.
func (c *conn) release() error {
	if c.parts.Load() {
		c.Tasks.Wait()
		c.part()
	} else {
		c.shut()
		c.Tasks.Wait()
	}
	return c.Release()
}
