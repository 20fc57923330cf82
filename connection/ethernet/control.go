package ethernet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/grace"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

var (
	// errSocket ends one of whose data sockets the peer says that it broke.
	errSocket = errors.New("a data socket broke, though both processes live")
)

// ack acknowledges the peer's first n operations.
func (c *conn) ack(n uint64) {
	if err := c.sendAck(n); err != nil {
		c.ends(fmt.Errorf("acknowledging what it sent: %w", err))
	}
}

func (c *conn) sendAck(n uint64) error {
	c.controlMu.Lock()
	defer c.controlMu.Unlock()
	if n <= c.ackSent || c.Over() {
		return nil
	}
	c.ackSent = n
	f := message.Frame{Kind: message.Ack, Op: n}
	f.Encode(c.ackFrame[:])
	_, err := c.control.Write(c.ackFrame[:])
	return err
}

// Tell sends a frame on the control socket; see message.Half. The sockets stay open until the peer
// knows of the end. A connection that refuses a frame waits here for the peer to hang up: closing sockets with unread data
// would reset them, and the peer might never read why.
func (c *conn) Tell(f *message.Frame, within time.Duration) error {
	if f.Kind != message.Gone { // before the lock: its holder may wait for a peer that reads nothing
		c.control.SetWriteDeadline(time.Now().Add(within))
	}
	if err := c.write(f); err != nil {
		return err
	}
	if f.Kind == message.Refuse {
		select {
		case <-c.Ctx.Done():
		case <-time.After(within):
		}
	}
	return nil
}

// write sends a frame on the control socket.
func (c *conn) write(f *message.Frame) error {
	c.controlMu.Lock()
	defer c.controlMu.Unlock()
	if c.Over() {
		return message.ErrClosed
	}
	f.Encode(c.ackFrame[:])
	_, err := c.control.Write(c.ackFrame[:])
	if err == nil && (f.Kind == message.Bye || f.Kind == message.Failed) {
		c.parts.Store(true) // release closes the sockets, once the peer knows
	}
	return err
}

// part closes the sockets of a connection that this rank has closed, once the peer has been told.
func (c *conn) part() {
	if c.t.knows(c.Peer, c.control) {
		c.shut()
		return
	}
	c.t.parts.Go(func() { c.t.part(c.Peer, c.control, c.shut) })
}

// knows reports whether a peer that was told of an end knows of it, or never will.
func (t *Transport) knows(peer int, control net.Conn) bool {
	return handshake.Acknowledged(control) || t.opts.Dead != nil && t.opts.Dead(peer)
}

// part calls shut once a peer knows what it was told on the control socket. That takes a while where the network loses
// packets. A socket that is closed before answers the peer's bytes by a reset, and the peer takes that for a death.
// If the group has failed, the time to wait began when this rank knew so. The peer hears of that too, or is silent, and
// otherwise connections and groups that close one after the other would each wait for the whole time.
// Transport.Close waits for part.
func (t *Transport) part(peer int, control net.Conn, shut func()) {
	defer shut()
	const least, most = 100 * time.Microsecond, 20 * time.Millisecond
	end := t.rank.GroupFailed().Add(handshake.Resent)
	for pause := least; !t.knows(peer, control) && time.Now().Before(end); pause = min(2*pause, most) {
		time.Sleep(pause)
	}
}

// abandon closes the sockets of a connection that this rank has not finished dialling. Sockets that are not dialled
// are nil. The peer may have all of them by then, and would take an end without a word for a death.
func (t *Transport) abandon(peer int, sockets []net.Conn) {
	shut := func() {
		for _, nc := range sockets {
			if nc != nil {
				nc.Close()
			}
		}
	}
	if last := len(sockets) - 1; sockets[last-1] == nil { // a socket is dialled after those before it
		shut()
		return
	}
	control := sockets[0]
	err := sayBye(control, t.rank.Parting)
	t.rank.Mu.Lock()
	defer t.rank.Mu.Unlock()
	if err != nil || t.rank.Closed {
		shut()
		return
	}
	t.parts.Go(func() { t.part(peer, control, shut) })
}

// sayBye tells a peer that this rank closes a connection on whose control socket nothing was sent yet.
func sayBye(control net.Conn, within time.Duration) error {
	control.SetWriteDeadline(time.Now().Add(within))
	var head [message.FrameSize]byte
	(&message.Frame{Kind: message.Bye}).Encode(head[:])
	_, err := control.Write(head[:])
	return err
}

// readControl reads the peer's acknowledgements.
func (c *conn) readControl() {
	in := c.t.newInput(c.control)
	var head [message.FrameSize]byte
	for {
		for n := 0; n < message.FrameSize; {
			got, err := in.read(head[n:], nil)
			if n += got; err != nil {
				c.hungUp(err)
				return
			}
		}
		f, err := message.Decode(head[:])
		switch {
		case err != nil:
		case f.Kind == message.Bye:
			err = message.ErrLeft
		case f.Kind == message.Refuse:
			c.refused(&f)
			return
		case f.Kind == message.Failed:
			err = message.ErrFailed
		case f.Kind == message.Broke:
			c.Tell(&message.Frame{Kind: message.Broke}, c.t.rank.Parting) // which says that this process lives
			err = c.socketBroke()
		case f.Kind == message.Gone:
			c.Mu.Lock()
			c.Gone.Add(f.Memory)
			c.Mu.Unlock()
		case f.Kind != message.Ack:
			err = fmt.Errorf("a frame of kind %d on the control socket", f.Kind)
		default:
			err = c.claim(f.Op)
		}
		if err != nil {
			c.Lost(err)
			return
		}
		c.progress.Add(1)
	}
}

// claim takes an acknowledgement of the peer.
func (c *conn) claim(op uint64) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if op < c.claimed || op > c.Taken {
		return fmt.Errorf("it acknowledges %d operations after %d, %d were sent", op, c.claimed, c.Taken)
	}
	c.claimed = op
	c.advance()
	return nil
}

// broke ends the connection because a data socket broke. If the peer has closed it, the
// reason is on its way on the control socket, whose reader then ends the connection. A data
// socket that is closed with unread data is reset, and the reset may arrive first. If only
// the data socket broke, the peer may not have noticed: it is told, and its answer ends the
// connection.
func (c *conn) broke(err error) {
	c.Mu.Lock()
	c.socketErr = err
	c.Mu.Unlock()
	c.Tell(&message.Frame{Kind: message.Broke}, c.t.rank.Parting)
	c.ends(fmt.Errorf("a data socket broke: %w", err))
}

// socketBroke is errSocket with what this rank has seen of it, if it has.
func (c *conn) socketBroke() error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.socketErr == nil {
		return errSocket
	}
	return fmt.Errorf("%w: %v", errSocket, c.socketErr) // not as one of a process that has ended
}

// ends ends the connection because of the error of a socket, once the reader of the control
// socket had time to find the peer's reason.
func (c *conn) ends(err error) {
	for _, closed := range []error{syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF, errEnd} {
		if errors.Is(err, closed) {
			grace.Wait(c.t.rank.Parting, c.Ctx.Done(), nil)
			break
		}
	}
	c.Lost(err)
}

// hungUp ends the connection because the control socket has ended.
func (c *conn) hungUp(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("it hung up without closing the connection and without a reason: its process has ended")
	}
	c.Lost(err)
}
