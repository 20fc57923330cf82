package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// officeGroup is group over a bootstrap of the test's own.
func officeGroup(t *testing.T, n int, opts communicator.Options) (*office, []*communicator.Communicator) {
	t.Helper()
	o := newOffice(n)
	boots := make([]communicator.Bootstrap, n)
	devices := make([]*gpu.Device, n)
	for i := range boots {
		boots[i], devices[i] = clerk{o, i}, testdev.Open(t, i)
	}
	return o, groupOver(t, boots, devices, slices.Repeat([]communicator.Options{opts}, n))
}

// TestOwnBootstrap gathers by memory channels in a group that has no more than
// messages.
func TestOwnBootstrap(t *testing.T) {
	const part = 1000
	_, comms := officeGroup(t, 3, communicator.Options{})
	all := workers(t, comms)
	each(t, len(comms), func(rank int) error {
		c := comms[rank]
		data := make([]byte, len(comms)*part)
		copy(data[rank*part:], bytes.Repeat([]byte{byte(rank + 1)}, part))
		local, err := gpu.Upload(c.Device(), data)
		if err != nil {
			return err
		}
		channels, err := c.MemoryChannels(t.Context(), local, communicator.MemoryChannelOptions{})
		if err != nil {
			return err
		}
		if err := all[rank].run(t.Context(), "gather", 64, channels.Handles, len(comms), rank, 0, part); err != nil {
			return err
		}
		if err := gathered(local, len(comms)); err != nil {
			return err
		}
		conn, err := c.Connect(t.Context(), rank, 1)
		if err != nil {
			return err
		}
		return errors.Join(conn.Close(), c.Barrier(t.Context()), channels.Close(), local.Close())
	})
}

// TestOwnBootstrapRankEnds has the last rank end while kernels wait for it, in a
// group whose tree of news has three levels.
func TestOwnBootstrapRankEnds(t *testing.T) {
	const n = 11
	o, comms := officeGroup(t, n, communicator.Options{Timeout: time.Hour})
	all := workers(t, comms)
	waiting(t, comms, all, n-1, 0, 4)
	start := time.Now()
	close(o.gone[n-1])
	for rank, err := range outcomes(t, n, func(rank int) error {
		if rank == n-1 {
			return nil
		}
		<-comms[rank].Done()
		return comms[rank].Synchronize(t.Context(), all[rank].stream)
	}) {
		if rank < n-1 {
			failing(t, rank, err, mscclgo.ErrRemote, "rank 10 failed: ", "the rank has ended")
		}
	}
	within(t, start)
	comms[n-1].Abort(errors.New("no rank is left")) // so that its Close does not wait
	for _, rank := range []int{0, 4} {
		if err := all[rank].want(aborted); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestOwnBootstrapAbort(t *testing.T) {
	const n = 11
	_, comms := officeGroup(t, n, communicator.Options{Timeout: time.Hour})
	cause := errors.New("the disk is full")
	comms[n-1].Abort(cause)
	for rank, err := range outcomes(t, n, func(rank int) error {
		<-comms[rank].Done()
		return comms[rank].Err()
	}) {
		if rank < n-1 {
			failing(t, rank, err, mscclgo.ErrAborted, fmt.Sprintf("rank %d, peer 10", rank), "the disk is full")
		} else if !errors.Is(err, cause) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestOwnBootstrapBlame has rank 0 wait for rank 10, which the news names to all.
func TestOwnBootstrapBlame(t *testing.T) {
	const n = 11
	_, comms := officeGroup(t, n, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	waiting(t, comms, all, n-1, 0)
	for rank, err := range culprits(t, comms, all) {
		switch says := "rank 10 never signalled rank 0"; rank {
		case 0:
			failing(t, rank, err, mscclgo.ErrTimeout, "rank 0, peer 10", says)
		case n - 1:
			failing(t, rank, err, mscclgo.ErrTimeout, "rank 0 considers this rank failed", says)
		default:
			failing(t, rank, err, mscclgo.ErrTimeout, fmt.Sprintf("rank %d, peer 10", rank), says)
		}
	}
}

// TestOwnBootstrapAbortDuringCalls has the ranks wait for rank 2 in each method that
// exchanges messages when it gives up.
func TestOwnBootstrapAbortDuringCalls(t *testing.T) {
	for name, call := range map[string]func(context.Context, *communicator.Communicator) error{
		"AllGather": func(ctx context.Context, c *communicator.Communicator) error {
			_, err := c.AllGather(ctx, nil)
			return err
		},
		"Barrier": func(ctx context.Context, c *communicator.Communicator) error { return c.Barrier(ctx) },
		"Connect": func(ctx context.Context, c *communicator.Communicator) error {
			_, err := c.Connect(ctx, 2, 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, comms := officeGroup(t, 3, communicator.Options{Timeout: time.Hour})
			start := time.Now()
			for rank, err := range outcomes(t, 3, func(rank int) error {
				if rank == 2 {
					time.Sleep(50 * time.Millisecond)
					comms[rank].Abort(errors.New("the disk is full"))
					return nil
				}
				return call(t.Context(), comms[rank])
			}) {
				if rank != 2 {
					failing(t, rank, err, mscclgo.ErrAborted, fmt.Sprintf("rank %d, peer 2", rank), "the disk is full")
				}
			}
			within(t, start)
		})
	}
}

// TestOwnBootstrapErrors has errors of the context and of the bootstrap that are not of
// this module.
func TestOwnBootstrapErrors(t *testing.T) {
	o, comms := officeGroup(t, 3, communicator.Options{Timeout: time.Second})
	for rank, err := range outcomes(t, 2, func(rank int) error { return comms[rank].Barrier(t.Context()) }) {
		failing(t, rank, err, mscclgo.ErrTimeout, "barrier", fmt.Sprintf("rank %d, peer 2", rank), "rank 2 did not come")
	}
	_, err := comms[0].Connect(t.Context(), 1, 1)
	failing(t, 0, err, mscclgo.ErrTimeout, "rank 0, peer 1")
	close(o.gone[2])
	err = comms[0].Barrier(t.Context())
	// The news may have come before the call.
	failing(t, 0, err, mscclgo.ErrRemote, "(rank 0, peer 2)", "the rank has ended")
}

// TestOwnBootstrapNotJoined has one rank give up while it joins.
func TestOwnBootstrapNotJoined(t *testing.T) {
	o := newOffice(3)
	devices := make([]*gpu.Device, o.size)
	for i := range devices {
		devices[i] = testdev.Open(t, i)
	}
	start := time.Now()
	for rank, err := range outcomes(t, o.size, func(rank int) error {
		ctx, cancel := context.WithCancel(t.Context())
		if rank == 1 {
			cancel()
		}
		defer cancel()
		_, err := communicator.New(ctx, clerk{o, rank}, devices[rank], communicator.Options{Timeout: time.Hour})
		return err
	}) {
		kind := mscclgo.ErrRemote
		if rank == 1 {
			kind = mscclgo.ErrAborted
		}
		failing(t, rank, err, kind, "rank 1", "canceled")
	}
	within(t, start)
}

// broken is a clerk whose number or size is wrong.
type broken struct {
	clerk
	rank, size int
}

func (b broken) Rank() int { return b.rank }
func (b broken) Size() int { return b.size }

func TestOwnBootstrapWrong(t *testing.T) {
	o := newOffice(2)
	for name, boot := range map[string]communicator.Bootstrap{
		"negative rank":    broken{clerk{o, 0}, -1, 2},
		"rank beyond size": broken{clerk{o, 0}, 2, 2},
		"no ranks":         broken{clerk{o, 0}, 0, 0},
	} {
		_, err := communicator.New(t.Context(), boot, testdev.Open(t, 0), communicator.Options{Timeout: time.Second})
		if !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// faulty is a clerk whose next call of Send calls a function first, once one is set, and fails if that does.
type faulty struct {
	clerk
	next *atomic.Pointer[func() error]
}

func (f faulty) Send(ctx context.Context, peer int, tag uint64, data []byte) error {
	if do := f.next.Swap(nil); do != nil {
		if err := (*do)(); err != nil {
			return err
		}
	}
	return f.clerk.Send(ctx, peer, tag, data)
}

// faultyGroup is officeGroup with a rank 1 that is faulty.
func faultyGroup(t *testing.T) (comms []*communicator.Communicator, next *atomic.Pointer[func() error]) {
	t.Helper()
	o, next := newOffice(3), new(atomic.Pointer[func() error])
	comms = groupOver(t, []communicator.Bootstrap{clerk{o, 0}, faulty{clerk{o, 1}, next}, clerk{o, 2}}, devices(t, 3),
		slices.Repeat([]communicator.Options{{Timeout: time.Hour}}, 3))
	return comms, next
}

// TestOwnBootstrapFails has a rank's Send fail while the others wait for what it sends: all hear why.
func TestOwnBootstrapFails(t *testing.T) {
	comms, next := faultyGroup(t)
	broken := func() error { return errors.New("the queue is full") }
	next.Store(&broken)
	start := time.Now()
	for rank, err := range outcomes(t, 3, func(rank int) error { return comms[rank].Barrier(t.Context()) }) {
		if rank == 0 {
			failing(t, rank, err, mscclgo.ErrRemote, "rank 1 considers this rank failed", "the queue is full")
			continue
		}
		failing(t, rank, err, mscclgo.ErrRemote, fmt.Sprintf("rank %d, peer 0", rank), "rank 0 failed", "the queue is full")
	}
	within(t, start)
}

// TestOwnBootstrapLeavesCall has a rank's context end before it has sent what the others wait for:
// they leave the call too, at once, and the group goes on.
func TestOwnBootstrapLeavesCall(t *testing.T) {
	_, comms := officeGroup(t, 3, communicator.Options{Timeout: time.Hour})
	for leaves := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		start, over := time.Now(), make(chan bool)
		if leaves == 1 {
			cancel()
		}
		for rank, err := range outcomes(t, 3, func(rank int) error {
			switch {
			case rank == leaves:
				if rank == 0 { // which waits for rank 2
					time.AfterFunc(50*time.Millisecond, cancel)
				}
				defer close(over)
				return comms[rank].Barrier(ctx)
			case rank == 2 && leaves == 0:
				<-over
			}
			return comms[rank].Barrier(t.Context())
		}) {
			if rank == leaves {
				failing(t, rank, err, mscclgo.ErrAborted, fmt.Sprintf("rank %d", rank), "context canceled")
			} else {
				failing(t, rank, err, mscclgo.ErrRemote, fmt.Sprintf("rank %d, peer %d", rank, leaves), fmt.Sprintf("rank %d left call ", leaves), "context canceled")
			}
		}
		within(t, start)
		each(t, 3, func(rank int) error { return comms[rank].Barrier(t.Context()) })
		cancel()
	}
}

// agreeing is a clerk that calls a function when it has received what the second exchange of a call came to.
type agreeing struct {
	clerk
	call    string
	came    *atomic.Int32
	receive func()
}

func (a agreeing) Recv(ctx context.Context, peer int, tag uint64) ([]byte, error) {
	data, err := a.clerk.Recv(ctx, peer, tag)
	if bytes.Contains(data, []byte(a.call)) && a.came.Add(1) == 2 {
		a.receive()
	}
	return data, err
}

// TestHalfMade has a rank give up while the ranks agree that pipes and channels are made, which the others then have:
// its ends keep their memory, as the others' kernels may write there, until the communicator is closed.
func TestHalfMade(t *testing.T) {
	const n = 3
	for name, create := range map[string]func(context.Context, *communicator.Communicator) error{
		"make pipes": func(ctx context.Context, c *communicator.Communicator) error {
			o := toAllOthers(c.Rank(), n)
			o.Shared = true
			_, err := c.Pipes(ctx, o)
			return err
		},
		"connect memory channels": func(ctx context.Context, c *communicator.Communicator) error {
			_, err := c.MemoryChannels(ctx, upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over, others := make(chan bool), make(chan bool, n)
			o := newOffice(n)
			comms := groupOver(t, []communicator.Bootstrap{
				clerk{o, 0},
				agreeing{clerk{o, 1}, name, new(atomic.Int32), func() {
					for range n - 1 {
						<-others
					}
					cancel()
					<-over
				}},
				clerk{o, 2},
			}, devices(t, n), slices.Repeat([]communicator.Options{{}}, n))
			before := communicator.ArenaBytes(comms[1])
			each(t, n, func(rank int) error {
				if rank != 1 {
					defer func() { others <- true }()
					return create(t.Context(), comms[rank])
				}
				defer close(over)
				failing(t, rank, create(ctx, comms[rank]), mscclgo.ErrAborted, "rank 1")
				return nil
			})
			if communicator.ArenaBytes(comms[1]) == before {
				t.Error("its semaphores are free")
			}
			stats := func(rank int) uint64 {
				s, err := comms[rank].PipePool()
				testerr.Report(t, err)
				return s.Taken
			}
			if is, want := stats(1), stats(0); is != want {
				t.Errorf("its ends have %d bytes of the pool, want %d", is, want)
			}
		})
	}
}

// TestHalfMadeAfterClose has a call give up before the communicator is closed, and one that was still under way give
// up after that: what they have made is closed with the communicator, and at once.
func TestHalfMadeAfterClose(t *testing.T) {
	comms := group(t, 1, communicator.Options{})
	closed := 0
	close := func() error { closed++; return nil }
	if err := communicator.GiveUp(comms[0], close); err != nil || closed != 0 {
		t.Errorf("before the communicator is closed: %v, and %d are", err, closed)
	}
	if err := comms[0].Close(); err != nil || closed != 1 {
		t.Errorf("the communicator is closed: %v, and %d are", err, closed)
	}
	if err := communicator.GiveUp(comms[0], close); err != nil || closed != 2 {
		t.Errorf("after that: %v, and %d are closed", err, closed)
	}
}

func TestSmallMessages(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	each(t, len(comms), func(rank int) error {
		mine := fmt.Append(nil, "from ", rank)
		all, err := comms[rank].AllGather(t.Context(), mine)
		if err != nil {
			return err
		}
		one, err := comms[rank].Broadcast(t.Context(), 2, mine)
		if err != nil {
			return err
		}
		want := []string{"from 0", "from 1", "from 2", "from 2"}
		var got []string
		for _, b := range append(all, one) {
			got = append(got, string(b))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rank %d (-want +got):\n%s", rank, diff)
		}
		return nil
	})
	for rank, err := range outcomes(t, 3, func(rank int) error {
		_, err := comms[rank].Broadcast(t.Context(), 3, nil)
		return err
	}) {
		failing(t, rank, err, mscclgo.ErrInvalid, "root is rank 3")
	}
}
