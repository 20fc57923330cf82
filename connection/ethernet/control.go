package ethernet

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mscclgo/mscclgo"
)

// errLeft ends a connection that the peer has closed properly.
var errLeft = errors.New("it has closed the connection")

// ack acknowledges the peer's first n operations.
func (c *conn) ack(n uint64) {
	c.controlMu.Lock()
	defer c.controlMu.Unlock()
	if n <= c.ackSent || c.ended.Load() {
		return
	}
	c.ackSent = n
	f := frame{kind: kindAck, op: n}
	f.encode(c.ackFrame[:])
	if _, err := c.control.Write(c.ackFrame[:]); err != nil && !c.ended.Load() {
		c.lost(fmt.Errorf("acknowledging what it sent: %w", err))
	}
}

// bye tells the peer that the connection is closed.
func (c *conn) bye() {
	c.controlMu.Lock()
	defer c.controlMu.Unlock()
	if c.ended.Load() {
		return
	}
	f := frame{kind: kindBye, op: c.queued.Load()}
	f.encode(c.ackFrame[:])
	c.control.SetWriteDeadline(time.Now().Add(c.t.patience))
	c.control.Write(c.ackFrame[:]) // a peer that is gone does not need it
}

// readControl reads the peer's acknowledgements.
func (c *conn) readControl() {
	in := c.t.newInput(c.control)
	var head [frameSize]byte
	for {
		for n := 0; n < frameSize; {
			got, err := in.read(head[n:], nil)
			if n += got; err != nil {
				c.hungUp(err)
				return
			}
		}
		f, err := decodeFrame(head[:])
		switch {
		case err != nil:
		case f.kind == kindBye:
			c.lost(errLeft)
			return
		case f.kind == kindRefuse:
			c.fail(mscclgo.ErrRemote, c.explain(&f))
			return
		case f.kind == kindGone:
			c.gone(f.memory)
			c.progress.Add(1)
			continue
		case f.kind != kindAck:
			err = fmt.Errorf("a frame of kind %d on the control socket", f.kind)
		case f.op < c.acked.Load() || f.op > c.queued.Load():
			err = fmt.Errorf("it acknowledges %d operations, %d were sent", f.op, c.queued.Load())
		}
		if err != nil {
			c.lost(err)
			return
		}
		c.progress.Add(1)
		c.mu.Lock()
		if c.farAhead() {
			c.work.Broadcast()
		}
		c.acked.Store(f.op)
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// hungUp ends the connection because a socket has ended.
func (c *conn) hungUp(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("it hung up without closing the connection and without a reason: its process has ended")
	}
	c.lost(err)
}
