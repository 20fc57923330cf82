package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
)

// half is what the sending and the receiving end of a ring have in common: the socket, and
// how they end.
type half struct {
	message.End
	t    *Transport
	sock *net.UnixConn
	raw  syscall.RawConn
	ring *ring

	// What listen has. awaited is whether the peer has sent nothing yet, of a receiving half: it may not know
	// of it.
	awaited bool
	packet  [message.FrameSize + 1]byte // one more shows what is too long
	heard   message.Frame
}

// open fills a half. It owns sock and ring, also when it fails. ended wakes all that wait, with Mu.
func (h *half) open(t *Transport, peer int, sock *net.UnixConn, r *ring, ended func()) (err error) {
	h.t, h.sock, h.ring = t, sock, r
	h.Pinned(r)
	h.Open(&t.rank, peer, func() {
		ended()
		sock.SetDeadline(time.Unix(1, 0)) // what was sent stays readable at the peer
	})
	h.raw, err = sock.SyscallConn()
	return err
}

var (
	// errNotTaken ends one that the peer asked for and does not have.
	errNotTaken = errors.New("its Connect ended before it had the ring")
	// errDied ends one whose peer hangs up.
	errDied = errors.New("it hung up without closing the connection and without a reason: its process has ended")
)

// lost ends the half because the peer has left, failed or broken the protocol.
func (h *half) lost(err error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.lostLocked(err)
}

// lostLocked is lost for callers that hold Mu.
func (h *half) lostLocked(err error) {
	if err == message.ErrLeft || err == errNotTaken {
		h.FailLocked(mscclgo.ErrRemote, err)
		return
	}
	h.UselessLocked(fmt.Errorf("the peer is lost: %w", err))
}

// broken ends the half because this rank's device or system failed, of which it tells the peer.
func (h *half) broken(err error) {
	if !h.Over() {
		h.tell(&message.Frame{Kind: message.Failed}, partingTime) // a peer that is gone does not need it
	}
	h.Fail(mscclgo.ErrSystem, err)
}

// listen waits for a message of the peer and passes it to take. It reports false, and ends the half, where there
// is none any more. One goroutine calls it.
func (h *half) listen(take func(*message.Frame) error) bool {
	n, err := h.sock.Read(h.packet[:])
	if errors.Is(err, syscall.ECONNRESET) { // it had not read all when it hung up; what it sent before can still be read
		n, err = h.sock.Read(h.packet[:])
	}
	switch {
	case err == nil:
		h.awaited = false
		err = h.receive(n, take)
	case !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET):
	case h.awaited:
		err = errNotTaken
	default:
		err = errDied
	}
	if err != nil {
		h.lost(err)
	}
	return err == nil
}

// receive passes a message of n bytes to take.
func (h *half) receive(n int, take func(*message.Frame) error) (err error) {
	h.heard, err = message.Decode(h.packet[:n])
	switch {
	case err != nil:
		return err
	case h.heard.Kind == message.Bye:
		return message.ErrLeft
	case h.heard.Kind == message.Failed:
		return message.ErrFailed
	}
	return take(&h.heard)
}

// tell sends a message, unless this rank closes the half. It waits for room in the socket for
// so long at most.
func (h *half) tell(f *message.Frame, patience time.Duration) error {
	h.Mu.Lock()
	if h.Closing() {
		h.Mu.Unlock()
		return message.ErrClosed
	}
	h.sock.SetWriteDeadline(time.Now().Add(patience))
	h.Mu.Unlock()
	_, err := h.sock.Write(f.Bytes())
	return err
}

var wake = (&message.Frame{Kind: message.Wake}).Bytes()

// sendWake is a function, so that none is made for each wake.
func sendWake(fd uintptr) {
	unix.SendmsgN(int(fd), wake, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// wake wakes the peer. It does not wait: if there is no room in the socket, then the peer
// has messages to read, which wake it too.
func (h *half) wake() { h.raw.Control(sendWake) }

// partingTime is how long a message at the end of a connection may wait for room.
const partingTime = time.Second

// leave ends the half in good order.
func (h *half) leave() {
	h.Reason(mscclgo.ErrInvalid, message.ErrClosed)
	if !h.Over() {
		h.Mu.Lock()
		if h.Err == nil {
			h.sock.SetWriteDeadline(time.Now().Add(partingTime)) // also of a message that waits for room
		}
		h.Mu.Unlock()
		h.sock.Write((&message.Frame{Kind: message.Bye}).Bytes()) // a peer that is gone does not need it
	}
	h.Fail(mscclgo.ErrInvalid, message.ErrClosed)
}

// release frees everything once the half has ended and its goroutines have.
func (h *half) release() error {
	h.sock.Close()
	return h.Release()
}
