package communicator

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// failure is the group's failure state on this rank: words in pinned memory, and the
// goroutine that connects them to the bootstrap. Kernels learn from the words that the
// group failed, and report waits that timed out.
type failure struct {
	boot     fullBootstrap
	status   *gpu.Buffer // a devicecode.GroupStatus in pinned memory
	observer *observer
	stop     chan struct{}
	done     chan struct{}

	judging sync.Mutex  // held while a wait that failed is judged
	failed  atomic.Bool // cause is set

	tracer atomic.Pointer[tracer] // of the timeline, or nil

	mu      sync.Mutex
	cause   error
	proxies *native.Flag // once it is set, they drop what kernels ask for
}

// The channel numbers of waits that belong to no channel. For the host group and the
// one of runners, the peer is an index into the host's ranks; for a ring of triggers, this rank. A wait for room in
// the queue to a peer has layout.RoomChannel, one for a send or receive
// layout.MessageChannel.
const (
	groupChannel     = 0
	hostGroupChannel = 1<<31 - 1
	ringChannel      = 1<<31 - 2
	runnersChannel   = 1<<31 - 5
)

// reportInterval is how often the host looks for reports of kernels while no call
// of the user's does so.
const reportInterval = 20 * time.Millisecond

// settling is how long the ranks have to report what they wait for once a wait has
// failed: a few intervals.
const settling = 3 * reportInterval

const waitOp = "communicator: device wait"

func newFailure(c *Communicator) (*failure, error) {
	if c.status == nil {
		var err error
		if c.status, err = c.dev.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{}))); err != nil {
			return nil, err
		}
	}
	clear(c.status.Bytes()) // all kernels that looked there have ended
	f := &failure{boot: c.boot, status: c.status, stop: make(chan struct{}), done: make(chan struct{})}
	f.observer = newObserver(c.Rank(), c.Size(), time.Now, c.options.branch, observed{
		timeout: c.options.Timeout, heartbeat: c.options.HeartbeatTimeout, deadlocks: c.options.FindDeadlocks, boot: c.boot, left: c.boot.Internal().Left, dev: c.dev,
		launches: c.launches, calls: &c.calls, nameOf: c.nameOf, lossy: c.lossyLinks, delay: f.putOff, fail: f.fail,
	})
	f.observer.still.group = uint64(c.status.Ptr())
	go f.watch()
	return f, nil
}

// with calls do with the status as the host sees it, unless that is freed with the device, or no longer f's.
func (f *failure) with(do func(words *layout.GroupStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if words := (*layout.GroupStatus)(unsafe.Pointer(unsafe.SliceData(f.status.Bytes()))); words != nil {
		do(words)
	}
}

// watch ends the waits when the bootstrap fails, and fails the group when a wait
// timed out or a rank gives no sign of life.
func (f *failure) watch() {
	defer close(f.done)
	defer f.observer.quiet()
	tick := time.NewTicker(reportInterval)
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-f.boot.Done():
			f.fail(f.boot.Err())
			return
		case <-tick.C:
			if v, dead := f.observer.tick(f.notes); dead {
				f.blame(mscclgo.ErrRemote, "communicator: watch the group", v, mscclgo.NoRank)
			} else if v, dead := f.observer.deadlock(); dead {
				f.blame(mscclgo.ErrTimeout, waitOp, v, mscclgo.NoRank)
			}
			f.look()
		}
	}
}

// look fails the group if a kernel has reported a check or a wait that failed.
func (f *failure) look() {
	var text string
	var peer int
	var faulted bool
	var first uint64
	f.with(func(words *layout.GroupStatus) {
		text, peer, faulted = words.Checked()
		first = atomic.LoadUint64(&words.FirstFailed)
	})
	if faulted {
		if f.err() == nil {
			f.fail(mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: check in a kernel", "%s", text).At(f.boot.Rank(), peer))
		}
		return
	}
	channel, peer, failed := layout.ParseFailedWait(first)
	if !failed || f.err() != nil {
		return
	}
	f.judging.Lock() // for one caller to judge, and the others to wait for that
	defer f.judging.Unlock()
	wait := f.observer.ask()
	f.observer.tick(f.notes)
	select {
	case <-f.boot.Done(): // another rank was first
	case <-time.After(wait):
	}
	if f.err() != nil {
		return
	}
	f.observer.tick(f.notes)
	v, awaited := f.observer.judgeWait(channel, peer)
	f.blame(mscclgo.ErrTimeout, waitOp, v, awaited)
}

// blame fails the group by a verdict. peer is the rank that the error names where the
// verdict names none, or this one.
func (f *failure) blame(kind mscclgo.Kind, op string, v watch.Verdict, peer int) {
	rank := f.boot.Rank()
	if v.Culprit != mscclgo.NoRank && v.Culprit != rank {
		peer = v.Culprit
	} else if v.Culprit == rank || peer == rank {
		peer = mscclgo.NoRank
	}
	f.failBy(v.Culprit, mscclgo.Errorf(kind, op, "%w", f.observer.judged(v, peer, v.Text, nil)).At(rank, peer))
}

// notes returns what kernels have written about their waits.
func (f *failure) notes() *deviceNotes {
	notes := &deviceNotes{}
	f.with(func(words *layout.GroupStatus) {
		for i := range notes.waits {
			from := &words.Notes[i]
			notes.waits[i] = layout.WaitNote{What: atomic.LoadUint64(&from.What), Start: atomic.LoadUint64(&from.Start), Last: atomic.LoadUint64(&from.Last), Expected: atomic.LoadUint64(&from.Expected)}
		}
		notes.failed = atomic.LoadUint64(&words.FirstFailed) != 0
	})
	return notes
}

// fail makes err the group's error unless it has one, ends the waits in kernels and
// notifies the other ranks.
func (f *failure) fail(err error) { f.failBy(mscclgo.NoRank, err) }

// failBy is fail, with the rank that is to blame, if it is known. If the bootstrap has failed
// and watch has not come to it yet, that is the cause: what fails here now may come of it.
func (f *failure) failBy(culprit int, err error) {
	self := f.boot.Rank()
	if earlier := f.boot.Err(); earlier != nil {
		culprit, self, err = mscclgo.NoRank, mscclgo.NoRank, earlier // which may name nobody
	}
	number, err := f.observer.branch.blame(err, culprit, self)
	f.mu.Lock()
	first := f.cause == nil
	if first {
		f.cause = err
		if f.proxies != nil {
			f.proxies.Set() // before kernels end, and others begin that were queued behind them
		}
		f.observer.branch.failed(err, number, f.observer.now())
		f.failed.Store(true)
		f.tracer.Load().failed() // before anyone hears of the cause, who waits for its file
	}
	f.mu.Unlock()
	f.abort()
	if !first {
		return
	}
	if culprit != mscclgo.NoRank {
		f.boot.Internal().Blame(culprit, err)
		return
	}
	f.boot.Abort(err)
}

// stops has a failure of the group set the flag of its proxies, before the abort word.
func (f *failure) stops(proxies *native.Flag) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.proxies = proxies; f.cause != nil {
		proxies.Set()
	}
}

// abort ends the waits in kernels.
func (f *failure) abort() {
	f.with(func(words *layout.GroupStatus) { atomic.StoreUint32(&words.Aborted, 1) })
}

// err returns the group's error, or nil if it has not failed. It does not wait for
// watch to notice the bootstrap's error.
func (f *failure) err() error {
	f.mu.Lock()
	cause := f.cause
	f.mu.Unlock()
	if cause == nil && f.boot.Err() != nil {
		f.fail(f.boot.Err())
		return f.err()
	}
	return cause
}

// close ends watch, and has f use the status no more, which stays the caller's. It is called once.
func (f *failure) close() {
	close(f.stop)
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = nil
}

// shortShare is the part of Options.Timeout after which a lack of descriptors or memory that
// keeps a peer waiting fails the group: the peers would blame each other.
const shortShare = 4

// short fails the group because this rank cannot accept the peers that ask it for memory.
func (c *Communicator) short(err error) {
	if !c.isClosed() && c.failure.err() == nil {
		c.failure.fail(mscclgo.Errorf(mscclgo.ErrSystem, "communicator: answer peers", "this rank has accepted none for %v: %w", c.options.Timeout/shortShare, err).At(c.Rank(), mscclgo.NoRank))
	}
}

// Err returns why the group failed, or nil if it has not. The error has the same kind on all ranks.
func (c *Communicator) Err() error { return c.failure.err() }

// Done returns a channel that is closed when the group fails, and not by Close.
func (c *Communicator) Done() <-chan struct{} { return c.boot.Done() }

// Abort fails the group with err: waits in kernels of all ranks end as aborted, and calls on all
// ranks return an error with err's text. It names the Peer of an ErrTimeout or ErrRemote as the rank
// to blame, and otherwise this rank. Its kind is err's on all ranks, or ErrAborted if err is no Error. If err
// is the ErrRemote of a call in which another rank's part failed, it gets the kind of that rank's error.
// A group that has failed keeps its first error. On a closed communicator Abort does nothing.
//
// err may be an error of another group of this rank, whose ranks have other numbers: its Peer is
// translated to this group's number. That works if both groups came from one by [Communicator.Split],
// and if err is, or wraps, the failure of such a group, or an error that its collective calls,
// Connect or package collective returned on this rank. The Peer of any other error is taken for
// a number of this group, also if [Communicator.Reform] has made one of the groups.
func (c *Communicator) Abort(err error) {
	const op = "communicator: abort"
	if err == nil {
		err = errors.New("no cause was given")
	}
	if c.usable(op) != nil {
		return
	}
	kind := watch.KindOr(err, mscclgo.ErrAborted)
	if culprit, ours := c.ofOther(kind, op, err); ours != nil {
		if culprit == mscclgo.NoRank {
			culprit = c.Rank()
		}
		c.failure.failBy(culprit, ours)
	} else {
		c.failure.fail(mscclgo.Errorf(kind, op, "%w", err).At(c.Rank(), watch.FactOf(err, c.Rank(), c.Size()).Peer()))
	}
}

// Synchronize waits until the stream's work is done, and reports a wait in it that
// failed.
//
// Errors: the group's error if it has failed, which names the peer of a wait that
// timed out; ErrTimeout and ErrAborted when ctx ends first, while the work goes on;
// ErrAborted when the communicator is closed, which ends waits; ErrSystem when the work
// failed; ErrInvalid for a nil stream.
func (c *Communicator) Synchronize(ctx context.Context, s *gpu.Stream) error {
	if s == nil {
		return c.invalid("communicator: synchronize", "the stream is nil")
	}
	return c.explain(s.Synchronize(ctx))
}

// explain adds the group's error, or that its end has ended waits, to what waiting for a stream
// returned.
func (c *Communicator) explain(err error) error {
	c.failure.look()
	if cause := c.failure.err(); cause != nil {
		c.failure.tracer.Load().settled()
		if errors.Is(err, cause) { // which a stream of NewStream has added
			return err
		}
		return errors.Join(cause, err)
	}
	if err == nil && c.ended.Load() {
		return mscclgo.Errorf(mscclgo.ErrAborted, "communicator: synchronize", "this rank has closed the communicator, which ends the waits in its work").At(c.Rank(), mscclgo.NoRank)
	}
	return err
}

// NewStream creates a stream of the communicator's device whose [gpu.Stream.Synchronize] is
// [Communicator.Synchronize]: it reports waits of kernels that failed. After
// [Communicator.Reform] it is a stream of the new communicator. The caller closes it.
//
// Errors: ErrInvalid when the communicator is closed.
func (c *Communicator) NewStream() (*gpu.Stream, error) {
	if err := c.usable("communicator: new stream"); err != nil {
		return nil, err
	}
	s, err := c.dev.NewStream()
	if err != nil {
		return nil, err
	}
	latest := c.latest
	s.Internal().Explain(func(err error) error { return latest.Load().explain(err) })
	return s, nil
}
