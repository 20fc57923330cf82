package message

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
)

// ErrClosed ends a connection that this rank has closed.
var ErrClosed = errors.New("the connection is closed")

// ErrLeft ends one that the peer has closed in good order.
var ErrLeft = errors.New("it has closed the connection")

// ErrFailed ends one whose peer says that it cannot go on.
var ErrFailed = errors.New("its device or system failed, though its process lives, and it knows more")

// Half is a connection, or one direction of it, with its [End].
type Half interface {
	// Tell sends a frame outside the order of operations, for so long at most. Of the end it returns once the
	// peer will hear. It returns an error if the half has ended.
	Tell(f *Frame, within time.Duration) error
	// Watch ends the half if the peer is silent; see [End.Silent].
	Watch(now time.Time)
	// Close closes the half; see [End.CloseOnce].
	Close() error
}

// End is how a connection, or one direction of it, ends: once, for one reason.
type End struct {
	Peer     int
	Receives bool            // the peer writes to memory of this rank's
	Ctx      context.Context // ends with the connection
	Drain    context.Context // ends the waiting for the device
	Tasks    sync.WaitGroup

	Mu  sync.Mutex
	Err error // why it ended; guarded by Mu

	rank   *Rank
	half   Half
	kind   mscclgo.Kind // of Err
	over   atomic.Bool  // Err is set
	reason error        // what Err will be, whatever ends the connection; guarded by Mu
	as     mscclgo.Kind // of reason
	ended  func()       // wakes all that wait; called once, with Mu
	cancel context.CancelFunc
	giveUp context.CancelFunc
	timer  *time.Timer // calls giveUp, once the connection has ended
	still  chan struct{}
	untold []uint32 // memories that were closed, while the peer is being told; guarded by Mu
	onDevice

	seen   uint64 // progress at seenAt; used by Silent
	seenAt time.Time

	closeOnce sync.Once
	closeErr  error
}

// Open makes the end of a half of a connection to a peer. ended is called when it ends, with Mu.
func (e *End) Open(r *Rank, half Half, peer int, ended func()) {
	e.rank, e.half, e.Peer, e.ended, e.still = r, half, peer, ended, make(chan struct{})
	e.Ctx, e.cancel = context.WithCancel(context.Background())
	e.Drain, e.giveUp = context.WithCancel(context.Background())
}

// Begin has start begin the half's goroutines, unless the transport is closed.
func (e *End) Begin(start func()) error {
	r := e.rank
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if r.Closed {
		return r.Invalid(r.Name+": connect", "the transport is closed")
	}
	r.ends[e] = struct{}{}
	start()
	return nil
}

// CloseOnce has release close the half, once: every call returns once that is done, with the same error.
func (e *End) CloseOnce(release func() error) error {
	e.closeOnce.Do(func() {
		e.closeErr = release()
		e.rank.Mu.Lock()
		defer e.rank.Mu.Unlock()
		delete(e.rank.ends, e)
	})
	return e.closeErr
}

// Reason sets why the connection ends, whatever ends it first. It reports false if there is a reason already.
func (e *End) Reason(kind mscclgo.Kind, err error) bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.reason != nil || e.Err != nil {
		return false
	}
	e.as, e.reason = kind, err
	return true
}

// Leaving reports whether this rank closes the connection, or has refused what the peer sent. The caller holds Mu.
func (e *End) Leaving() bool { return e.reason != nil }

// Leave ends the connection in good order, of which it tells the peer.
func (e *End) Leave(within time.Duration) {
	e.Reason(mscclgo.ErrInvalid, ErrClosed)
	e.half.Tell(&Frame{Kind: Bye}, within) // a peer that is gone does not need it
	e.Fail(mscclgo.ErrInvalid, ErrClosed)
}

// Broken ends the connection because this rank's device or system failed, of which it tells the peer.
func (e *End) Broken(err error) {
	e.half.Tell(&Frame{Kind: Failed}, e.rank.Parting) // a peer that is gone does not need it
	e.Fail(mscclgo.ErrSystem, err)
}

// Refuse ends the connection because of a frame of the peer's, which it tells why.
func (e *End) Refuse(f *Frame, err error) {
	out, kind, useless := *f, mscclgo.ErrRemote, false
	out.Kind, out.Refused = Refuse, f.Kind
	var why *target.Refusal
	switch {
	case errors.Is(err, ErrDevice):
		kind, out.Reason = mscclgo.ErrSystem, target.Failed
	case errors.As(err, &why): // the peer may not have heard yet that a memory was closed
		out.Reason, err = why.Reason, peerLost(err)
	default:
		out.Reason, err, useless = target.Protocol, peerLost(err), true
	}
	if !e.Reason(kind, err) { // the peer will hang up because of that
		return
	}
	e.rank.Log.Warn(e.rank.Name+": refused what a peer sent", "peer", e.Peer, "error", err)
	e.half.Tell(&out, e.rank.Parting)
	e.Fail(kind, err)
	if useless {
		e.tellLost(err)
	}
}

// peerLost returns err of a connection that ended because the peer failed or broke the protocol.
func peerLost(err error) error {
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: it has given no reason, so its process has ended", err)
	}
	return fmt.Errorf("the peer is lost: %w", err)
}

// Lost ends the connection because the peer has left, failed or broken the protocol.
func (e *End) Lost(err error) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	e.LostLocked(err)
}

// LostLocked is Lost for callers that hold Mu.
func (e *End) LostLocked(err error) {
	if errors.Is(err, ErrLeft) {
		e.failLocked(mscclgo.ErrRemote, peerLost(err))
		return
	}
	e.UselessLocked(peerLost(err))
}

// Fail ends the connection because of err, unless it has ended: the first error stays.
func (e *End) Fail(kind mscclgo.Kind, err error) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	e.failLocked(kind, err)
}

// failLocked is Fail for callers that hold Mu. It reports whether err is why the connection has ended.
func (e *End) failLocked(kind mscclgo.Kind, err error) bool {
	if e.Err != nil {
		return false
	}
	if e.reason != nil {
		kind, err = e.as, e.reason
	}
	e.kind, e.Err = kind, err
	e.over.Store(true)
	e.cancel()
	e.timer = time.AfterFunc(e.rank.Registry.Timeout(), e.giveUp)
	e.ended()
	return e.reason == nil
}

// UselessLocked ends the connection because of the peer, so that what ranks wait for by it may never come. The caller
// holds Mu.
func (e *End) UselessLocked(err error) {
	if e.failLocked(mscclgo.ErrRemote, err) {
		e.tellLost(err)
	}
}

// tellLost tells the rank that the peer is lost.
func (e *End) tellLost(err error) {
	if e.rank.lost != nil {
		go e.rank.lost(e.Peer, mscclgo.Errorf(mscclgo.ErrRemote, e.rank.Name+": connection", "%w", err).At(e.rank.Registry.Rank(), e.Peer))
	}
}

// Refused returns what a refusal of the peer's says.
func (e *End) Refused(f *Frame) error {
	return fmt.Errorf("rank %d refused %s: %v", e.Peer, f.refused(), f.Reason)
}

// Over reports whether the connection has ended.
func (e *End) Over() bool { return e.over.Load() }

// Failure returns why the connection has ended. The caller holds Mu.
func (e *End) Failure() error { return mscclgo.Errorf(e.kind, e.rank.Name, "%w", e.Err) }

// Calm waits for streams, to which nothing is given any more, so that Quiet returns. Quiet does not if Drain ends
// first: a device that is stuck may copy yet. It is called once.
func (e *End) Calm(streams ...*gpu.Stream) {
	for _, s := range streams {
		if err := s.Synchronize(e.Drain); errors.Is(err, mscclgo.ErrAborted) {
			return
		}
	}
	close(e.still)
}

// Quiet waits until nothing is copied any more; see connection.QuietDriver.
func (e *End) Quiet(ctx context.Context) error {
	select {
	case <-e.still:
		return nil
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, e.rank.Name+": wait", "the device still copies what was queued before the connection failed")
	}
}

// Silent reports how long the peer has made no progress, a count, though something of it is due, and whether it may
// not be silent any longer. One goroutine calls it.
func (e *End) Silent(now time.Time, progress uint64, due bool) (silent time.Duration, tooLong bool) {
	if !due || progress != e.seen || e.seenAt.IsZero() {
		e.seen, e.seenAt = progress, now
	}
	silent = now.Sub(e.seenAt)
	return silent.Round(time.Millisecond), due && silent >= e.rank.Timeout
}

// tellGone tells the peer that a memory was closed, in a goroutine of Tasks, one memory after the
// other. An error ends that: a peer that is gone, or reads nothing, is refused what it sends.
func (e *End) tellGone(memory uint32) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.Err != nil || len(e.untold) == target.MaxWithdrawn {
		return
	}
	e.untold = append(e.untold, memory)
	if len(e.untold) > 1 {
		return
	}
	e.Tasks.Go(func() {
		var err error
		for at := 0; ; at++ {
			e.Mu.Lock()
			if at == len(e.untold) || e.Err != nil || err != nil {
				e.untold = nil
				e.Mu.Unlock()
				return
			}
			next := e.untold[at]
			e.Mu.Unlock()
			err = e.half.Tell(&Frame{Kind: Gone, Memory: next}, e.rank.Timeout)
		}
	})
}
