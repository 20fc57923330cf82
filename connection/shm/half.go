package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// half is what the sending and the receiving end of a ring have in common: the socket, the
// stream, and how they end.
type half struct {
	t      *Transport
	peer   int
	sock   *net.UnixConn
	raw    syscall.RawConn
	ring   *ring
	stream *gpu.Stream

	ctx    context.Context // ends when the connection fails or closes
	cancel context.CancelFunc
	drain  context.Context // ends the waiting for the device
	giveUp context.CancelFunc
	timer  *time.Timer // calls giveUp, once the connection has ended
	tasks  sync.WaitGroup

	// awaited is whether the peer has sent nothing yet, of a receiving half: it may not know of it. Only
	// listen uses it once it runs.
	awaited bool

	mu      sync.Mutex
	ended   func() // wakes waiters; called once, with mu
	err     error  // why it ended
	kind    mscclgo.Kind
	closing bool // this rank closes it
}

// open fills a half. It owns sock and ring, also when it fails.
func (h *half) open(t *Transport, peer int, sock *net.UnixConn, r *ring) (err error) {
	h.t, h.peer, h.sock, h.ring = t, peer, sock, r
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.drain, h.giveUp = context.WithCancel(context.Background())
	if h.raw, err = sock.SyscallConn(); err == nil {
		h.stream, err = t.reg.Device().NewStream()
	}
	return err
}

var (
	// errLeft ends a half whose peer has closed it properly.
	errLeft = errors.New("it has closed the connection")
	// errClosed ends one that this rank has closed.
	errClosed = errors.New("the connection is closed")
	// errNotTaken ends one that the peer asked for and does not have.
	errNotTaken = errors.New("its Connect ended before it had the ring")
	// errDied ends one whose peer hangs up.
	errDied = errors.New("it hung up without closing the connection and without a reason: its process has ended")
	// errFailed ends one whose peer says that it cannot go on.
	errFailed = errors.New("its device or system failed, though its process lives, and it knows more")
)

// fail ends the half because of err, unless it has ended: the first reason stays.
func (h *half) fail(kind mscclgo.Kind, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failLocked(kind, err)
}

// failLocked is fail for callers that hold mu.
func (h *half) failLocked(kind mscclgo.Kind, err error) {
	if h.err != nil {
		return
	}
	if h.closing {
		kind, err = mscclgo.ErrInvalid, errClosed
	}
	h.ended()
	h.kind, h.err = kind, err
	h.cancel()
	h.timer = time.AfterFunc(h.t.reg.Timeout(), h.giveUp)
	h.sock.SetDeadline(time.Unix(1, 0)) // what was sent stays readable at the peer
}

// lost ends the half because the peer has left, failed or broken the protocol.
func (h *half) lost(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lostLocked(err)
}

// lostLocked is lost for callers that hold mu.
func (h *half) lostLocked(err error) {
	if err == errLeft || err == errNotTaken {
		h.failLocked(mscclgo.ErrRemote, err)
		return
	}
	h.uselessLocked(fmt.Errorf("the peer is lost: %w", err))
}

// uselessLocked ends the half because of the peer, so that what ranks wait for by it may never come. The caller
// holds mu.
func (h *half) uselessLocked(err error) {
	told := h.err != nil || h.closing
	h.failLocked(mscclgo.ErrRemote, err)
	if !told && h.t.opts.Lost != nil {
		go h.t.opts.Lost(h.peer, mscclgo.Errorf(mscclgo.ErrRemote, "shm: connection", "%w", h.err).At(h.t.reg.Rank(), h.peer))
	}
}

// broken ends the half because this rank's device or system failed, of which it tells the peer.
func (h *half) broken(err error) {
	if !h.over() {
		h.tell(&message{kind: messageFailed}, partingTime) // a peer that is gone does not need it
	}
	h.fail(mscclgo.ErrSystem, err)
}

// failure returns why the half has ended. The caller holds mu.
func (h *half) failure() error { return mscclgo.Errorf(h.kind, "shm", "%w", h.err) }

// over reports whether the half has ended.
func (h *half) over() bool { return h.ctx.Err() != nil }

// listen passes the peer's messages to take until the half ends.
func (h *half) listen(take func(*message) error) {
	packet := make([]byte, messageSize+1) // one more shows what is too long
	m := new(message)
	reset := false
	for {
		n, err := h.sock.Read(packet)
		switch {
		case errors.Is(err, syscall.ECONNRESET) && !reset:
			// It had not read all when it hung up. What it sent before can still be read.
			reset = true
			continue
		case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
			if h.awaited {
				err = errNotTaken
			} else {
				err = errDied
			}
			h.lost(err)
			return
		case err != nil:
			h.lost(err)
			return
		}
		h.awaited = false
		*m, err = decodeMessage(packet[:n])
		switch {
		case err != nil:
		case m.kind == messageBye:
			err = errLeft
		case m.kind == messageFailed:
			err = errFailed
		}
		if err == nil {
			err = take(m)
		}
		if err != nil {
			h.lost(err)
			return
		}
	}
}

// tell sends a message, unless this rank closes the half. It waits for room in the socket for
// so long at most.
func (h *half) tell(m *message, patience time.Duration) error {
	h.mu.Lock()
	if h.closing {
		h.mu.Unlock()
		return errClosed
	}
	h.sock.SetWriteDeadline(time.Now().Add(patience))
	h.mu.Unlock()
	_, err := h.sock.Write(m.encode())
	return err
}

var wake = (&message{kind: messageWake}).encode()

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
	h.mu.Lock()
	h.closing = true
	over := h.err != nil
	if !over {
		h.sock.SetWriteDeadline(time.Now().Add(partingTime)) // also of a message that waits for room
	}
	h.mu.Unlock()
	if !over {
		h.sock.Write((&message{kind: messageBye}).encode()) // a peer that is gone does not need it
	}
	h.fail(mscclgo.ErrInvalid, errClosed)
}

// release frees everything once the half has ended and its goroutines have. other is another
// stream that uses the ring, or nil.
func (h *half) release(events []*gpu.Event, other *gpu.Stream) error {
	h.sock.Close()
	var synced, closed error
	for _, s := range []*gpu.Stream{h.stream, other} {
		if s != nil {
			synced = errors.Join(synced, s.Synchronize(h.drain))
			closed = errors.Join(closed, s.Close())
		}
	}
	h.timer.Stop()
	h.giveUp()
	errs := []error{synced, closed}
	for _, e := range events {
		errs = append(errs, e.Close())
	}
	if !errors.Is(synced, mscclgo.ErrTimeout) && !errors.Is(synced, mscclgo.ErrAborted) { // else the ring stays, since a copy may still use it
		errs = append(errs, h.ring.close())
	}
	if err := errors.Join(errs...); err != nil {
		return h.t.wrap("shm: close", h.peer, err)
	}
	return nil
}
