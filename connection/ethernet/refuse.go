package ethernet

import (
	"errors"
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// partingTime is how long a connection that has refused a frame stays open for the peer
// to read why, which hangs up then.
const partingTime = time.Second

// refuse ends the connection because of a frame, once the peer knows why.
func (c *conn) refuse(f *frame, err error) {
	out, kind := *f, mscclgo.ErrRemote
	out.kind, out.refused, out.reason = kindRefuse, f.kind, target.Protocol
	var why *target.Refusal
	switch {
	case errors.Is(err, errDevice):
		kind, out.reason = mscclgo.ErrSystem, target.Failed
	case errors.As(err, &why):
		out.reason = why.Reason
	}
	if kind == mscclgo.ErrRemote {
		err = peerLost(err)
	}
	c.Reason(kind, err) // the peer will hang up because of that
	// An acknowledgement may be stuck in the socket.
	c.control.SetWriteDeadline(time.Now().Add(c.t.parting))
	if c.tell(&out) {
		// Closing a data socket that has unread data would reset it, and the peer might
		// see that first.
		select {
		case <-c.Ctx.Done():
		case <-time.After(c.t.parting):
		}
	}
	c.Fail(kind, err)
}

// tell sends a frame on the control socket, and reports whether it could.
func (c *conn) tell(f *frame) bool {
	c.controlMu.Lock()
	defer c.controlMu.Unlock()
	if c.Over() {
		return false
	}
	f.encode(c.ackFrame[:])
	_, err := c.control.Write(c.ackFrame[:])
	return err == nil
}

// explain returns why the peer refused a frame of this rank.
func (c *conn) explain(f *frame) error {
	switch {
	case f.refused == kindAnswer:
		return fmt.Errorf("rank %d refused a part of what it had read: %v", c.Peer, f.reason)
	case f.op < c.acked.Load() && !c.awaits(f) || f.op >= c.Queued.Load():
		return fmt.Errorf("the peer is lost: it refuses operation %d of %d, of which %d are done", f.op, c.Queued.Load(), c.acked.Load())
	case f.refused == kindGet:
		return fmt.Errorf("rank %d refused a read of %d bytes at %d of memory %d: %v", c.Peer, f.length, f.offset, f.memory, f.reason)
	case f.refused == kindAdd:
		return fmt.Errorf("rank %d refused an addition at %d of memory %d: %v", c.Peer, f.offset, f.memory, f.reason)
	case f.refused == kindExchange:
		return fmt.Errorf("rank %d refused an exchange at %d of memory %d: %v", c.Peer, f.offset, f.memory, f.reason)
	case f.refused == kindUpdate:
		return fmt.Errorf("rank %d refused a new value of the word at %d of memory %d: %v", c.Peer, f.offset, f.memory, f.reason)
	case f.length < f.total:
		return fmt.Errorf("rank %d refused %d bytes at %d, part of a write of %d, to memory %d: %v", c.Peer, f.length, f.offset, f.total, f.memory, f.reason)
	}
	return fmt.Errorf("rank %d refused a write of %d bytes at %d to memory %d: %v", c.Peer, f.length, f.offset, f.memory, f.reason)
}

// awaits reports whether a frame of the peer's is about a read that waits for its answer,
// which may be refused once all before it is done.
func (c *conn) awaits(f *frame) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	_, ok := c.reads.awaits(f.op)
	return ok && f.refused == kindGet
}

// tellGone tells the peer that a memory was closed. It does not wait.
func (c *conn) tellGone(memory uint32) {
	c.TellGone(memory, func(memory uint32) error {
		if !c.tell(&frame{kind: kindGone, memory: memory}) {
			return message.ErrClosed
		}
		return nil
	})
}
