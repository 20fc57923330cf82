package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
func (h *half) open(t *Transport, as message.Half, peer int, sock *net.UnixConn, r *ring, ended func()) (err error) {
	h.t, h.sock, h.ring = t, sock, r
	h.Pinned(r)
	h.Open(&t.rank, as, peer, func() {
		ended()
		sock.SetDeadline(time.Unix(1, 0)) // what was sent stays readable at the peer
	})
	h.raw, err = sock.SyscallConn()
	return err
}

var (
	// errNotTaken ends one that the peer asked for and does not have.
	errNotTaken = fmt.Errorf("its Connect ended before it had the ring: %w", message.ErrLeft)
	// errDied ends one whose peer hangs up.
	errDied = errors.New("it hung up without closing the connection and without a reason: its process has ended")
)

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
		h.Lost(err)
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

// Tell sends a message; see message.Half. What was sent stays readable at the peer.
func (h *half) Tell(f *message.Frame, within time.Duration) error {
	h.Mu.Lock()
	if h.Err != nil || f.Kind == message.Gone && h.Leaving() {
		h.Mu.Unlock()
		return message.ErrClosed
	}
	h.sock.SetWriteDeadline(time.Now().Add(within)) // also of a message that waits for room
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

// release frees everything once the half has ended and its goroutines have.
func (h *half) release() error {
	h.sock.Close()
	return h.Release()
}
