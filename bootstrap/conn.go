package bootstrap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/internal/handshake"
)

// lingerTime bounds how long a connection that ends in good order waits until the
// other end has read everything.
const lingerTime = 2 * time.Second

// A conn is one connection: to a peer, or between a process and a rendezvous. Either side sends
// on it: frames are queued, and a goroutine writes them in order, and ends with the last. Two ranks that dial each other
// at the same time have two; each then sends on one and reads both.
type conn struct {
	nc     net.Conn
	owner  sync.Locker // held to answer that this end lives
	peer   *peer       // nil at a rendezvous
	dialed bool

	// Under the owner's lock:
	up      bool // both sides have seen the handshake's end
	link    handshake.Link
	lossy   time.Time // what link said last
	silence silence   // of the other end

	// signs counts up when the other end sends something, and while it takes a long message.
	signs atomic.Uint64
	// stays is until when it is read, in Unix nanoseconds, though a deadline has passed, where the
	// peer's host has not acknowledged all; 0 for not at all.
	stays atomic.Int64

	mu      sync.Mutex
	queue   []*outgoing
	writing bool          // a goroutine writes what is queued; for ever once nothing more will be
	ending  bool          // nothing more will be queued; write what is queued, then half-close
	broken  error         // writing failed, or reading ended
	written chan struct{} // closed when nothing more will be written
}

// An outgoing frame waits to be written, or is being written.
type outgoing struct {
	frame
	size int           // of the payload
	done chan struct{} // closed when written or dropped
	err  error         // set before done is closed
	// cancelled means that the sender no longer wants it sent and may have changed the
	// payload, which is gone. conn.mu guards both.
	cancelled bool
}

// maxPiece is how many bytes are written at once. They are copied, so that a write that
// does not end holds no more.
const maxPiece = 64 << 10

var (
	errConnEnded  = errors.New("the connection is closing")
	errConnBroken = errors.New("the connection broke")
)

func newConn(nc net.Conn, owner sync.Locker, p *peer, dialed bool) *conn {
	return &conn{nc: nc, owner: owner, peer: p, dialed: dialed, silence: silence{far: elsewhere(nc) != nil}, written: make(chan struct{})}
}

// enqueue queues a frame, whose payload stays as it is until it is done or cancelled. If
// the connection has ended, the frame is done at once with an error.
func (c *conn) enqueue(f frame) *outgoing {
	o := &outgoing{frame: f, size: len(f.payload), done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.broken != nil:
		o.err = c.broken
	case c.ending:
		o.err = errConnEnded
	}
	if o.err != nil {
		close(o.done)
		return o
	}
	c.queue = append(c.queue, o)
	c.startWriting()
	return o
}

// startWriting has a goroutine write what is queued, or note that it was the last, unless one does. The caller holds mu.
func (c *conn) startWriting() {
	if !c.writing {
		c.writing = true
		go c.write()
	}
}

// cancel keeps o from being sent and lets go of its payload. If a part has been sent, the
// peer receives zeros for the rest, and drops it.
func (c *conn) cancel(o *outgoing) {
	c.mu.Lock()
	o.cancelled, o.payload = true, nil
	c.mu.Unlock()
}

// end closes the sending half once the queue is written.
func (c *conn) end() {
	c.mu.Lock()
	c.ending = true
	c.startWriting()
	c.mu.Unlock()
}

// endWithin ends the connection as end does, and when the other end has read that, or after a time.
func (c *conn) endWithin(d time.Duration) {
	c.nc.SetDeadline(time.Now().Add(d))
	c.end()
}

// fail drops everything that is queued.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
	}
	for _, o := range c.queue {
		o.err = err
		close(o.done)
	}
	c.queue = nil
	c.startWriting()
}

// next returns the frame to write. If there is none, the writer ends, and last reports whether there will be none.
func (c *conn) next() (o *outgoing, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		o := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		if !o.cancelled {
			return o, false
		}
		close(o.done)
	}
	c.writing = c.ending || c.broken != nil
	return nil, c.writing
}

// write sends what is queued, and half-closes the connection behind the last.
func (c *conn) write() {
	o, last := c.next()
	for ; o != nil; o, last = c.next() {
		o.err = c.writeFrame(o)
		close(o.done)
		if o.err != nil {
			// The reader finds out too, and knows whether it matters. It has not read all that
			// came: the other end may have said why the group failed, and then hung up.
			c.fail(fmt.Errorf("%w: %w", errConnBroken, o.err))
			patience := lingerTime
			if _, own := c.nc.(*carried); own {
				patience = newsPatience
			}
			c.nc.SetReadDeadline(time.Now().Add(patience))
			close(c.written)
			return
		}
	}
	if last {
		c.nc.(interface{ CloseWrite() error }).CloseWrite() // of TCP, or TLS over it
		close(c.written)
	}
}

// writeFrame writes o piece by piece, and zeros for the rest of a payload that is cancelled.
func (c *conn) writeFrame(o *outgoing) error {
	out := bufio.NewWriterSize(c.nc, min(frameHeaderSize+o.size+1, maxPiece))
	head := header(o.kind, o.tag, o.size) // not of o.frame, whose payload cancel may change
	out.Write(head[:])
	for sent := 0; sent < o.size; {
		piece := out.AvailableBuffer()[:min(out.Available(), o.size-sent)]
		c.mu.Lock()
		if o.cancelled {
			clear(piece)
		} else {
			copy(piece, o.payload[sent:])
		}
		c.mu.Unlock()
		out.Write(piece) // which is where it is to be already
		sent += len(piece)
		if out.Available() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
			c.signs.Add(1) // so many do not fit into the sockets' buffers
		}
	}
	if o.size > 0 {
		c.mu.Lock()
		end := byte(frameWhole)
		if o.cancelled {
			end = frameGivenUp
		}
		c.mu.Unlock()
		out.WriteByte(end)
	}
	return out.Flush()
}

// read passes every frame to handle, but signs of life and questions for one, until the stream ends
// or handle refuses one. It returns io.EOF if the stream ended between two frames.
func (c *conn) read(handle func(frame) error) error {
	in := bufio.NewReaderSize(signReader{c}, 16<<10)
	for {
		f, err := readFrame(in)
		switch {
		case err != nil:
		case f.kind == frameAlive: // that it came was counted
		case f.kind == frameAsk:
			c.owner.Lock() // so that an end which hangs there gives no sign
			c.enqueue(frame{kind: frameAlive})
			c.owner.Unlock()
		default:
			err = handle(f)
		}
		if err != nil {
			return err
		}
	}
}

// ask asks the other end for a sign of life, and reports whether there was none for the time-out. It is called at least
// beatShare times in that. The caller holds the owner's lock.
func (c *conn) ask(now time.Time, timeout time.Duration) (silent bool) {
	c.enqueue(frame{kind: frameAsk})
	return c.silence.lasts(now, c.signs.Load(), timeout)
}

// signReader reads from a connection and counts that.
type signReader struct{ c *conn }

func (r signReader) Read(b []byte) (int, error) {
	n, err := r.c.nc.Read(b)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && r.c.staysOn() {
		r.c.nc.SetReadDeadline(time.Now().Add(stayStep))
		n, err = r.c.nc.Read(b)
	}
	r.c.signs.Add(1)
	return n, err
}

// stayStep is how often a connection that stays looks whether it still must.
const stayStep = 20 * time.Millisecond

// leave has c end. It is read for a while, until the other end has read everything and closes it. It is read for
// longer if the network has lost the last words of this rank, which it said at the time said.
func (c *conn) leave(said time.Time) {
	c.stays.Store(said.Add(handshake.Resent).UnixNano())
	c.nc.SetDeadline(time.Now().Add(lingerTime))
}

func (c *conn) staysOn() bool {
	return time.Now().UnixNano() < c.stays.Load() && !handshake.Acknowledged(c.nc)
}

// serve reads until the connection ends, and closes it. It returns what ended the reading.
func (c *conn) serve(handle func(frame) error) error {
	err := c.read(handle)
	if err != io.EOF {
		c.mu.Lock()
		if c.broken != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.broken
		}
		c.mu.Unlock()
		c.fail(errConnBroken)
		c.nc.Close()
	}
	// The other end sends no more, and gets what is queued for it.
	c.end()
	c.nc.SetWriteDeadline(time.Now().Add(lingerTime))
	<-c.written
	c.nc.Close()
	return err
}
