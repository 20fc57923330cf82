package cudaipc

import (
	"context"
	"errors"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// conn is a connection. mu makes the order of the stream's queue that of the
// calls. It is held while something waits for the device only where the ring of
// words is full.
type conn struct {
	reg    *registeredmem.Registry
	peer   int
	stream *gpu.Stream
	words  *wordRing    // nil where the stream can store values itself
	path   *native.Path // nil where it cannot
	leave  func()       // the registry
	ended  chan struct{}

	mu     sync.Mutex
	closed bool
	marks  []*mark // not in use
}

// What is done, for errors.
const (
	opWrite  = "cudaipc: write"
	opUpdate = "cudaipc: update a word"
	opMark   = "cudaipc: mark"
	opReach  = "cudaipc: reach a mark"
)

// newConn makes a connection; storeValues says that the device's streams have
// 64-bit writes.
func newConn(reg *registeredmem.Registry, peer int, storeValues bool) (*conn, error) {
	c := &conn{reg: reg, peer: peer, ended: make(chan struct{})}
	const op = "cudaipc: connect"
	var err error
	if c.stream, err = reg.Device().NewStream(); err != nil {
		return nil, c.wrap(op, err)
	}
	if storeValues {
		c.path = &native.Path{Queue: native.QueueOf(c.stream), Registry: native.InstanceOf(reg), Rank: reg.Rank(), Peer: peer}
	} else {
		if c.words, err = newWordRing(reg.Device(), c.stream, reg.Timeout()); err != nil {
			return nil, c.wrap(op, errors.Join(err, c.stream.Close()))
		}
	}
	c.leave = reg.Join(c)
	return c, nil
}

// Transport gives CudaIPC.
func (c *conn) Transport() registeredmem.Transports { return registeredmem.CudaIPC }

// Write queues a copy on the connection's stream.
func (c *conn) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = opWrite
	c.mu.Lock() // before it finds the memories open, as Settle must see the copy then
	defer c.mu.Unlock()
	if c.closed {
		return c.invalid(op, "the connection is closed")
	}
	to, err := c.buffer(op, dst, c.peer, dstOffset, n)
	if err != nil {
		return err
	}
	from, err := c.buffer(op, src, c.reg.Rank(), srcOffset, n)
	if err != nil {
		return err
	}
	return c.wrap(op, c.stream.Copy(to, dstOffset, from, srcOffset, n))
}

// UpdateAndSync queues the store of a value on the connection's stream, which
// the stream makes visible at system scope behind all its copies
// (cuStreamWriteValue64 without CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER).
func (c *conn) UpdateAndSync(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	const op = opUpdate
	if to < from {
		return c.invalid(op, "the value must not fall, and %d is below %d", to, from)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.invalid(op, "the connection is closed")
	}
	buf, err := c.buffer(op, dst, c.peer, dstOffset, 8)
	if err != nil {
		return err
	}
	if (uint64(buf.Ptr())+dstOffset)%8 != 0 {
		return c.invalid(op, "the word at offset %d of %v is not aligned to 8 bytes", dstOffset, dst)
	}
	if c.words != nil {
		return c.wrap(op, c.words.write(buf, dstOffset, to))
	}
	return c.wrap(op, c.stream.WriteValue64(buf, dstOffset, to))
}

// Settle is a flush, or waits for who closes the connection.
func (c *conn) Settle(ctx context.Context) error {
	const op = "cudaipc: wait for what uses a memory"
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		select {
		case <-c.ended:
			return nil
		case <-ctx.Done():
			return mscclgo.FromContext(ctx, op, "the connection is being closed").At(c.reg.Rank(), c.peer)
		}
	}
	if idle, err := c.stream.Query(); idle || err != nil {
		c.mu.Unlock()
		return c.wrap(op, err)
	}
	m, err := c.record(op)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	err = m.event.Synchronize(ctx)
	return c.wrap(op, errors.Join(err, c.keep(m)))
}

// Flush waits for a mark behind all that was queued before, so that what others
// queue meanwhile does not hold it up.
func (c *conn) Flush(ctx context.Context) error {
	const op = "cudaipc: flush"
	m, err := c.mark(op)
	if err != nil {
		return err
	}
	err = m.event.Synchronize(ctx)
	return c.wrap(op, errors.Join(err, c.keep(m)))
}

// Close waits for the stream and releases it.
func (c *conn) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	if c.path != nil {
		c.path.Queue.Close()
	}
	// From here on nobody else touches the stream.
	ctx, cancel := context.WithTimeout(context.Background(), c.reg.Timeout())
	defer cancel()
	err := c.stream.Synchronize(ctx)
	c.leave()
	close(c.ended)
	if c.words != nil && !errors.Is(err, mscclgo.ErrTimeout) {
		// Past the time-out the ring stays: a copy that waits may yet read it.
		err = errors.Join(err, c.words.close())
	}
	for _, m := range c.marks {
		err = errors.Join(err, m.event.Close())
	}
	return c.wrap("cudaipc: close", errors.Join(err, c.stream.Close()))
}

// buffer gives the buffer of a memory that must be of this connection's
// registry and of that rank, and hold n bytes at the offset.
func (c *conn) buffer(op string, m *registeredmem.Memory, rank int, offset, n uint64) (*gpu.Buffer, error) {
	switch {
	case m == nil:
		return nil, c.invalid(op, "the memory of rank %d is nil", rank)
	case m.Registry() != c.reg:
		return nil, c.invalid(op, "%v is in another registry; this one must register or import it", m)
	case m.Rank() != rank:
		return nil, c.invalid(op, "%v stands where one of rank %d must be", m, rank)
	case offset > m.Size() || n > m.Size()-offset:
		return nil, c.invalid(op, "%d bytes at offset %d are outside %v", n, offset, m)
	}
	buf := m.Buffer()
	if buf == nil {
		return nil, c.invalid(op, "%v is closed", m)
	}
	return buf, nil
}

func (c *conn) invalid(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(c.reg.Rank(), c.peer)
}

// wrap gives err, if it is one, the operation and the ranks, and keeps its kind.
func (c *conn) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return mscclgo.Errorf(mscclgo.KindOf(err), op, "%w", err).At(c.reg.Rank(), c.peer)
}
