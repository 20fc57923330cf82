package communicator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// failure is this rank's side of the group's failure state: the pinned words
// through which kernels learn that the group failed and report that a wait of
// theirs timed out, and the goroutine that ties them to the bootstrap.
type failure struct {
	boot   fullBootstrap
	status *gpu.Buffer // a devicecode.GroupStatus in pinned memory
	stop   chan struct{}
	done   chan struct{}

	failed atomic.Bool // cause is set

	mu     sync.Mutex
	mates  []int // the ranks of the host group
	cause  error
	closed bool // status is freed
}

// The channel numbers by which waits of no channel are reported. For the host
// group the peer is an index among its ranks.
const (
	groupChannel     = 0
	hostGroupChannel = 1<<31 - 1
)

// reportInterval is how often the host looks for reports of kernels when no
// call of the user's makes it look.
const reportInterval = 20 * time.Millisecond

func newFailure(boot fullBootstrap, dev *gpu.Device) (*failure, error) {
	status, err := dev.AllocHost(uint64(unsafe.Sizeof(devicecode.GroupStatus{})))
	if err != nil {
		return nil, err
	}
	f := &failure{boot: boot, status: status, stop: make(chan struct{}), done: make(chan struct{})}
	go f.watch()
	return f, nil
}

// words gives the status as the host sees it. The caller holds mu and knows that
// it is not closed.
func (f *failure) words() *devicecode.GroupStatus {
	return (*devicecode.GroupStatus)(unsafe.Pointer(unsafe.SliceData(f.status.Bytes())))
}

// watch turns a failed bootstrap into aborted waits, and a wait that timed out
// into a failed group.
func (f *failure) watch() {
	defer close(f.done)
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
			f.look()
		}
	}
}

// look checks whether a kernel has reported a failed wait.
func (f *failure) look() {
	channel, peer, failed := devicecode.ParseFailedWait(f.firstFailed())
	if !failed || f.err() != nil {
		return
	}
	what := fmt.Sprintf("a channel's semaphore or packets (channel %d)", channel)
	switch channel {
	case groupChannel:
		what = "a barrier or a packet"
	case hostGroupChannel:
		what = "a barrier or a packet of the host's ranks"
		peer = f.mate(peer)
	}
	f.fail(mscclgo.Errorf(mscclgo.ErrTimeout, "communicator: device wait", "a kernel waited past its deadline on %s; the peer's kernel did not run, failed or did something else", what).At(f.boot.Rank(), peer))
}

// setMates says which the ranks of the host group are.
func (f *failure) setMates(ranks []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mates = ranks
}

// mate gives the rank of an index among the host group's.
func (f *failure) mate(i int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i < 0 || i >= len(f.mates) {
		return mscclgo.NoRank
	}
	return f.mates[i]
}

// fail makes err the group's error unless it has one, ends the waits of kernels
// and tells the other ranks.
func (f *failure) fail(err error) {
	f.mu.Lock()
	first := f.cause == nil
	if first {
		f.cause = err
		f.failed.Store(true)
	}
	f.mu.Unlock()
	f.abort()
	if first {
		f.boot.Abort(err)
	}
}

// abort ends the waits of kernels.
func (f *failure) abort() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		atomic.StoreUint32(&f.words().Aborted, 1)
	}
}

// firstFailed gives what a kernel reported, or 0.
func (f *failure) firstFailed() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0
	}
	return atomic.LoadUint64(&f.words().FirstFailed)
}

// err gives the group's error, nil while it is well. It does not wait for watch
// to hear of the bootstrap's.
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

// close is called once.
func (f *failure) close() error {
	close(f.stop)
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return f.status.Close()
}

// Err gives the error that made the group fail, or nil while it is well.
func (c *Communicator) Err() error { return c.failure.err() }

// Done is closed when the group has failed, and not by Close.
func (c *Communicator) Done() <-chan struct{} { return c.boot.Done() }

// Abort makes the group fail with err: waits of kernels on all ranks end as
// aborted, and calls on all ranks give an error that names this one. A group
// that has failed keeps its first error, and a closed communicator does nothing.
func (c *Communicator) Abort(err error) {
	const op = "communicator: abort"
	if err == nil {
		err = errors.New("no cause was given")
	}
	if c.usable(op) == nil {
		c.failure.fail(mscclgo.Errorf(mscclgo.ErrAborted, op, "%w", err).At(c.Rank(), mscclgo.NoRank))
	}
}

// Synchronize waits until the stream's work is done and no wait in it failed.
//
// Errors: the group's error when it failed meanwhile, which tells which peer was
// awaited in vain; ErrTimeout and ErrAborted when ctx ends first, which leaves
// the work running; ErrSystem when the work failed.
func (c *Communicator) Synchronize(ctx context.Context, s *gpu.Stream) error {
	err := s.Synchronize(ctx)
	c.failure.look()
	if cause := c.failure.err(); cause != nil {
		return errors.Join(cause, err)
	}
	return err
}
