package message

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// End is how a connection, or one direction of it, ends: once, for one reason.
type End struct {
	Peer  int
	Ctx   context.Context // ends with the connection
	Drain context.Context // ends the waiting for the device
	Tasks sync.WaitGroup

	Mu  sync.Mutex
	Err error // why it ended; guarded by Mu

	rank   *Rank
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
}

// Open begins a connection to a peer. ended is called when it ends, with Mu.
func (e *End) Open(r *Rank, peer int, ended func()) {
	e.rank, e.Peer, e.ended, e.still = r, peer, ended, make(chan struct{})
	e.Ctx, e.cancel = context.WithCancel(context.Background())
	e.Drain, e.giveUp = context.WithCancel(context.Background())
}

// Reason sets why the connection ends, whatever ends it first. The first reason stays.
func (e *End) Reason(kind mscclgo.Kind, err error) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.reason == nil {
		e.as, e.reason = kind, err
	}
}

// Closing reports whether there is a reason that [End.Reason] has set. The caller holds Mu.
func (e *End) Closing() bool { return e.reason != nil }

// Fail ends the connection because of err, unless it has ended: the first error stays.
func (e *End) Fail(kind mscclgo.Kind, err error) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	e.FailLocked(kind, err)
}

// FailLocked is Fail for callers that hold Mu. It reports whether err is why the connection has ended.
func (e *End) FailLocked(kind mscclgo.Kind, err error) bool {
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

// Useless ends the connection because of the peer, so that what ranks wait for by it may never come.
func (e *End) Useless(err error) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	e.UselessLocked(err)
}

// UselessLocked is Useless for callers that hold Mu.
func (e *End) UselessLocked(err error) {
	if e.FailLocked(mscclgo.ErrRemote, err) && e.rank.lost != nil {
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

// TellGone has tell tell the peer that a memory was closed, in a goroutine of Tasks, one memory after the
// other. An error ends that: a peer that is gone, or reads nothing, is refused what it sends.
func (e *End) TellGone(memory uint32, tell func(memory uint32) error) {
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
			err = tell(next)
		}
	})
}
