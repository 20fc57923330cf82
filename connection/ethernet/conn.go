package ethernet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/quiet"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// inlineLimit is the most bytes that the queue keeps of one operation, in ordinary
// memory: 4 MiB in all if every operation has as many.
const inlineLimit = 4 << 10

// queueDepth is the number of operations that may wait to be sent; a power of two.
// The next one waits for room.
const queueDepth = 1024

// conn is the driver of a connection: what this rank sends to the peer, and what it
// receives.
//
// Goroutines: one that sends and one that receives for each data socket, one that waits
// for the ends of those that send, one that reads acknowledgements, one that makes them.
type conn struct {
	t            *Transport
	peer         int
	peerInstance [idSize]byte // of the transport that the peer's memories are registered with
	other        *conn        // the receiving half of an endpoint's connection to itself
	control      net.Conn
	sockets      []net.Conn // all
	rx           *receiver
	senders      []*sender
	sending      sync.WaitGroup // the senders' goroutines
	still        quiet.Point    // reached once the connection has ended and reads no source any more
	staging      []*gpu.Buffer

	ctx    context.Context // ends when the connection fails or closes
	cancel context.CancelFunc
	drain  context.Context // ends the waiting for the device
	giveUp context.CancelFunc
	timer  *time.Timer // calls giveUp, once the connection has ended
	tasks  sync.WaitGroup

	queued   atomic.Uint64 // operations added to the queue, ever
	acked    atomic.Uint64 // operations that are done at the peer, as it says, and were sent whole
	closing  atomic.Bool   // Close has begun
	parts    atomic.Bool   // this rank has told the peer that it ends: the sockets stay until it knows
	ended    atomic.Bool   // err is set
	progress atomic.Uint64 // changes with everything that the peer takes or sends

	mu      sync.Mutex
	changed sync.Cond // acks, room in the queue, the end
	work    sync.Cond // something was queued, or the end
	queue   [queueDepth]op
	taken   uint64       // operations that senders have taken whole, ever
	claimed uint64       // operations that the peer says are done
	err     error        // why the connection ended
	kind    mscclgo.Kind // of err

	refused     error // why this rank refused what the peer sent; becomes err
	refusedKind mscclgo.Kind
	socketErr   error            // of a data socket that broke
	peerGone    target.Withdrawn // memories that the peer has closed
	untold      []uint32         // memories of this rank that were closed, while the peer is being told

	reads   reading
	answers answering

	controlMu sync.Mutex // writing to the control socket
	ackSent   uint64
	ackFrame  [frameSize]byte

	links     []handshake.Link // of the sockets; used by watch
	lossy     atomic.Int64     // since when the kernel sends again what it sends to the peer, in Unix nanoseconds, or 0
	seen      uint64           // progress at seenAt; used by watch
	seenAt    time.Time
	closeOnce sync.Once
	closeErr  error
}

// op is an operation in the queue.
type op struct {
	kind   frameKind
	memory uint32
	offset uint64
	// Of a write: its size, how much of it senders have taken, and its source.
	n, given  uint64
	src       *gpu.Buffer // nil: the bytes are in data
	srcOffset uint64
	data      []byte // belongs to the place in the queue, which uses it again
	// Of an update, and the value of an addition and an exchange.
	oldValue, value uint64
	// Of a read and an exchange: n bytes come here.
	to       *target.Memory
	toOffset uint64

	reads uint64 // so many, of all that ever were queued, must be answered before it is sent
}

// newConn returns a connection over sockets whose handshakes are done; the first is
// the control socket. It owns them, also when it fails.
func newConn(t *Transport, peer int, sockets []net.Conn) (*conn, error) {
	c := &conn{t: t, peer: peer, control: sockets[0], sockets: sockets, still: quiet.New()}
	c.changed.L, c.work.L = &c.mu, &c.mu
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.drain, c.giveUp = context.WithCancel(context.Background())
	err := c.start(sockets[1:])
	if err != nil {
		c.bye() // the peer is to hear of it from this rank's caller
		c.fail(mscclgo.ErrSystem, err)
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
	t := c.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return t.invalid("ethernet: connect", "the transport is closed")
	}
	t.conns[c] = struct{}{}
	for _, s := range c.senders {
		c.sending.Go(s.run)
	}
	c.tasks.Go(c.calm)
	c.rx.start()
	c.tasks.Go(c.readControl)
	return nil
}

// pinned returns staging memory, which release frees.
func (c *conn) pinned(size uint64) (*gpu.Buffer, error) {
	b, err := c.t.reg.Device().AllocHost(size)
	if err == nil {
		c.staging = append(c.staging, b)
	}
	return b, err
}

// Ready reports whether the queue has room for two operations. A mark needs none.
func (c *conn) Ready(uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil || c.queued.Load()-c.taken <= queueDepth-2
}

// Write queues the sending of n bytes.
func (c *conn) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	from := src.Buffer()
	if from == nil { // it was closed meanwhile
		return mscclgo.Errorf(mscclgo.ErrInvalid, "ethernet: find the bytes", "%v is closed", src)
	}
	return c.enqueue(dst, op{kind: kindData, offset: dstOffset, n: n, src: from, srcOffset: srcOffset})
}

// InlineLimit returns 4 KiB.
func (c *conn) InlineLimit() uint64 { return inlineLimit }

// WriteBytes queues the sending of data, of which the queue keeps a copy.
func (c *conn) WriteBytes(dst *registeredmem.Memory, dstOffset uint64, data []byte) error {
	return c.enqueue(dst, op{kind: kindData, offset: dstOffset, n: uint64(len(data)), data: data})
}

// Update queues the sending of a word's new value, which the peer stores behind
// all that was queued before.
func (c *conn) Update(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	return c.enqueue(dst, op{kind: kindUpdate, offset: dstOffset, oldValue: from, value: to})
}

// Store queues the sending of a word's value, as Update does.
func (c *conn) Store(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	return c.Update(dst, dstOffset, 0, value)
}

// enqueue adds an operation on a memory of the peer's, with a copy of its data, to the
// queue. It waits while the queue is full.
func (c *conn) enqueue(remote *registeredmem.Memory, o op) error {
	if !bytes.Equal(remote.Key(registeredmem.Ethernet), c.peerInstance[:]) {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "ethernet: find the memory", "%v is of another transport of the rank than the connection", remote)
	}
	o.memory = remote.ID()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.full(o.kind) && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return c.failure()
	}
	if c.peerGone.Has(o.memory) {
		return mscclgo.Errorf(mscclgo.ErrRemote, "ethernet: find the memory", "rank %d has closed memory %d; nothing was sent", c.peer, o.memory)
	}
	place := &c.queue[c.queued.Load()%queueDepth]
	o.data = append(place.data[:0], o.data...)
	o.reads = c.reads.asked
	if o.kind.asks() {
		c.ask(&o)
	}
	*place = o
	c.queued.Add(1)
	if len(c.senders) == 1 || o.kind != kindData || o.n <= c.senders[0].part {
		c.work.Signal()
	} else {
		c.work.Broadcast()
	}
	return nil
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
	c.still.Reach(c.drain, streams...)
}

// Quiet waits until no source is read any more.
func (c *conn) Quiet(ctx context.Context) error { return c.still.Wait(ctx, "ethernet: wait") }

// fail ends the connection, and reports whether that is because of err: the first reason
// stays, and a refusal of what the peer sent comes first.
func (c *conn) fail(kind mscclgo.Kind, err error) (because bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	if c.refused != nil {
		kind, err = c.refusedKind, c.refused // the peer hung up because of that
	}
	c.kind, c.err = kind, err
	c.ended.Store(true)
	c.cancel()
	c.timer = time.AfterFunc(c.t.reg.Timeout(), c.giveUp)
	if c.parts.Load() {
		c.interrupt()
	} else {
		c.shut()
	}
	c.changed.Broadcast()
	c.work.Broadcast()
	if c.rx != nil {
		c.rx.wake()
	}
	return c.refused == nil
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

// lost ends the connection because the peer failed or broke the protocol. A peer that this
// rank has told of its Close hangs up, which is no loss.
func (c *conn) lost(err error) {
	if c.closing.Load() {
		c.fail(mscclgo.ErrInvalid, errClosed)
		return
	}
	if err == errLeft {
		c.fail(mscclgo.ErrRemote, peerLost(err))
		return
	}
	c.useless(peerLost(err))
}

// useless ends the connection because of the peer, so that what ranks wait for by it may never come.
func (c *conn) useless(err error) {
	if c.fail(mscclgo.ErrRemote, err) && c.t.opts.Lost != nil && !c.closing.Load() {
		go c.t.opts.Lost(c.peer, mscclgo.Errorf(mscclgo.ErrRemote, "ethernet: connection", "%w", err).At(c.t.reg.Rank(), c.peer))
	}
}

func peerLost(err error) error {
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: it has given no reason, so its process has ended", err)
	}
	return fmt.Errorf("the peer is lost: %w", err)
}

// broken ends the connection because this rank's device or system failed, of which it tells the peer.
func (c *conn) broken(err error) {
	// Before the lock: its holder may wait for a peer that reads nothing.
	c.control.SetWriteDeadline(time.Now().Add(c.t.parting))
	if c.tell(&frame{kind: kindFailed}) {
		c.parts.Store(true) // release closes the sockets, once the peer knows
	}
	c.fail(mscclgo.ErrSystem, err)
}

// watch fails the connection if the peer has neither taken nor sent anything for the
// timeout although something is due. Transport.watch calls it.
func (c *conn) watch(now time.Time) {
	c.watchLinks(now)
	progress := c.progress.Load()
	if !c.awaitsPeer() || progress != c.seen || c.seenAt.IsZero() {
		c.seen, c.seenAt = progress, now
		return
	}
	if silent := now.Sub(c.seenAt); silent >= c.t.opts.Timeout {
		c.mu.Lock()
		operations, reads := c.queued.Load()-c.acked.Load(), c.reads.asked-c.reads.answered.Load()
		c.mu.Unlock()
		c.lost(fmt.Errorf("it has neither acknowledged nor sent anything for %v, with %d operations waiting and %d reads not here; its process is stuck, or the network is down", silent.Round(time.Millisecond), operations, reads))
	}
}

// awaitsPeer reports whether something is due that the peer does, and not only what this
// rank's device does.
func (c *conn) awaitsPeer() bool {
	stalled := c.rx.stalled() // then bytes that have come are not read
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent()
	writing := func(s *sender) bool { return s.writing.Load() }
	return c.acked.Load() < sent || slices.ContainsFunc(c.senders, writing) || !stalled && (c.rx.midFrame() || c.reads.underWay(sent))
}

// Close tells the peer, and releases the connection.
func (c *conn) Close() error {
	c.closeOnce.Do(func() {
		c.bye()
		c.fail(mscclgo.ErrInvalid, errClosed)
		c.closeErr = c.release()
		if c.other != nil {
			c.closeErr = errors.Join(c.closeErr, c.other.Close())
		}
	})
	return c.closeErr
}

// release frees everything once the connection has ended.
func (c *conn) release() error {
	if c.parts.Load() {
		c.tasks.Wait()
		c.part()
	} else {
		c.shut()
		c.tasks.Wait()
	}
	var errs []error
	if c.rx != nil {
		errs = append(errs, c.rx.close())
	}
	for _, s := range c.senders {
		errs = append(errs, s.close())
	}
	c.timer.Stop()
	c.giveUp()
	err := errors.Join(errs...)
	if !errors.Is(err, mscclgo.ErrTimeout) && !errors.Is(err, mscclgo.ErrAborted) {
		// After a timeout the staging memory stays, since a copy may still read it.
		for _, b := range c.staging {
			errs = append(errs, b.Close())
		}
	}
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
	if err = errors.Join(errs...); err != nil {
		return c.wrap("ethernet: close", err)
	}
	return nil
}

// failure returns why the connection has ended. The caller holds mu.
func (c *conn) failure() error { return mscclgo.Errorf(c.kind, "ethernet", "%w", c.err) }

// wrap returns err with the operation and the ranks. It keeps the kind.
func (c *conn) wrap(what string, err error) error {
	return c.t.wrap(mscclgo.ErrSystem, what, c.peer, err)
}
