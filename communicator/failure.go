package communicator

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// failure is this rank's side of the group's failure state: the pinned words
// through which kernels learn that the group failed and report that a wait of
// theirs timed out, and the goroutine that ties them to the bootstrap.
type failure struct {
	boot   *bootstrap.Bootstrap
	status *gpu.Buffer // a devicecode.GroupStatus in pinned memory
	stop   chan struct{}
	done   chan struct{}

	mu    sync.Mutex
	cause error
}

// reportInterval is how often the host looks for reports of kernels when no
// call of the user's makes it look.
const reportInterval = 20 * time.Millisecond

func newFailure(boot *bootstrap.Bootstrap, dev *gpu.Device) (*failure, error) {
	status, err := dev.AllocHost(uint64(unsafe.Sizeof(devicecode.GroupStatus{})))
	if err != nil {
		return nil, err
	}
	f := &failure{boot: boot, status: status, stop: make(chan struct{}), done: make(chan struct{})}
	go f.watch()
	return f, nil
}

// words gives the status as the host sees it.
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
	channel, peer, failed := devicecode.ParseFailedWait(atomic.LoadUint64(&f.words().FirstFailed))
	if !failed {
		return
	}
	what := "a kernel waited past its deadline on a barrier or a packet"
	if channel != 0 {
		what = "a kernel waited past its deadline on a channel's semaphore or packets"
	}
	f.fail(mscclgo.Errorf(mscclgo.ErrTimeout, "communicator: device wait", "%s (channel %d); the peer's kernel did not run, failed or did something else", what, channel).At(f.boot.Rank(), peer))
}

// fail makes err the group's error unless it has one, ends the waits of kernels
// and tells the other ranks.
func (f *failure) fail(err error) {
	f.mu.Lock()
	first := f.cause == nil
	if first {
		f.cause = err
	}
	f.mu.Unlock()
	f.abort()
	if first {
		f.boot.Abort(err)
	}
}

// abort ends the waits of kernels.
func (f *failure) abort() { atomic.StoreUint32(&f.words().Aborted, 1) }

// err gives the group's error, nil while it is well.
func (f *failure) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cause
}

func (f *failure) close() error {
	close(f.stop)
	<-f.done
	return f.status.Close()
}

// Err gives the error that made the group fail, or nil while it is well.
func (c *Communicator) Err() error { return c.failure.err() }

// Done is closed when the group's connections failed or were closed.
func (c *Communicator) Done() <-chan struct{} { return c.boot.Done() }

// Abort makes the group fail with err: waits of kernels on all ranks end as
// aborted, and calls on all ranks give an error that names this one.
func (c *Communicator) Abort(err error) {
	c.failure.fail(mscclgo.Errorf(mscclgo.ErrAborted, "communicator: abort", "%w", err).At(c.Rank(), mscclgo.NoRank))
}

// Synchronize waits until the stream's work is done and no wait in it failed.
//
// Errors: the group's error when it failed meanwhile, which tells which peer was
// awaited in vain; ErrTimeout and ErrAborted when ctx ends first, which leaves
// the work running; ErrSystem when the work failed.
func (c *Communicator) Synchronize(ctx context.Context, s *gpu.Stream) error {
	err := s.Synchronize(ctx)
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return err
	}
	c.failure.look()
	if cause := c.failure.err(); cause != nil {
		return errors.Join(cause, err)
	}
	return err
}
