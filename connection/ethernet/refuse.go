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
func (c *conn) refuse(f *message.Frame, err error) {
	out, kind := *f, mscclgo.ErrRemote
	out.Kind, out.Refused, out.Reason = message.Refuse, f.Kind, target.Protocol
	var why *target.Refusal
	switch {
	case errors.Is(err, message.ErrDevice):
		kind, out.Reason = mscclgo.ErrSystem, target.Failed
	case errors.As(err, &why):
		out.Reason = why.Reason
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
func (c *conn) tell(f *message.Frame) bool {
	c.controlMu.Lock()
	defer c.controlMu.Unlock()
	if c.Over() {
		return false
	}
	f.Encode(c.ackFrame[:])
	_, err := c.control.Write(c.ackFrame[:])
	return err == nil
}

// explain returns why the peer refused a frame of this rank.
func (c *conn) explain(f *message.Frame) error {
	if f.Refused != message.Answer && (f.Op < c.acked.Load() && !c.awaits(f) || f.Op >= c.Queued.Load()) {
		return fmt.Errorf("the peer is lost: it refuses operation %d of %d, of which %d are done", f.Op, c.Queued.Load(), c.acked.Load())
	}
	return c.Refused(f)
}

// awaits reports whether a frame of the peer's is about a read that waits for its answer,
// which may be refused once all before it is done.
func (c *conn) awaits(f *message.Frame) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	_, ok := c.reads.awaits(f.Op)
	return ok && f.Refused == message.Read
}

// tellGone tells the peer that a memory was closed. It does not wait.
func (c *conn) tellGone(memory uint32) {
	c.TellGone(memory, func(memory uint32) error {
		if !c.tell(&message.Frame{Kind: message.Gone, Memory: memory}) {
			return message.ErrClosed
		}
		return nil
	})
}
