package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// soon is within what a failure must be known and waits must have ended, on a busy
// machine: far from the deadline of the waits, an hour.
const soon = 20 * time.Second

// waiting makes channels between all ranks, and has the ranks of the list launch a
// kernel that waits for rank peer, which sends no signal.
func waiting(t *testing.T, comms []*communicator.Communicator, all []*worker, peer int, list ...int) {
	t.Helper()
	each(t, len(comms), func(rank int) error {
		channels, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{PerPeer: 2})
		if err != nil {
			return err
		}
		if err := comms[rank].Barrier(t.Context()); err != nil {
			return err
		}
		for _, r := range list {
			if r == rank {
				return all[rank].launch("await", 1, 1, channels.HandleOf(1, peer))
			}
		}
		return nil
	})
	if t.Failed() {
		t.FailNow()
	}
}

// within fails the test if more time has passed than a failure may take.
func within(t *testing.T, start time.Time) {
	t.Helper()
	if took := time.Since(start); took > soon {
		t.Errorf("it took %v, more than %v", took, soon)
	}
}

// TestCheckFailsGroup has rank 0 put past the end of rank 2's buffer: all ranks hear what
// was wrong.
func TestCheckFailsGroup(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	if comms[0].Device().Info().Arch != devicecode.ArchEmu {
		t.Skip("a check that fails ends the use of a GPU by this process")
	}
	all := workers(t, comms)
	sizes := []uint64{64, 64, 48}
	each(t, 3, func(rank int) error {
		channels, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, int(sizes[rank])), communicator.MemoryChannelOptions{})
		if err != nil || rank != 0 {
			return err
		}
		beside, err := all[0].module.Kernel("beside")
		if err != nil {
			return err
		}
		return beside.Launch(all[0].stream, gpu.Blocks(1, 32), channels.HandleOf(0, 2), uint64(40), uint64(16))
	})
	const text = "block (0,0,0), thread (5,0,0): put of 16 bytes at 40 to rank 2, whose buffer has 48"
	errs := outcomes(t, 3, func(rank int) error {
		if rank == 0 {
			return comms[0].Synchronize(t.Context(), all[0].stream)
		}
		select {
		case <-comms[rank].Done():
		case <-time.After(soon):
		}
		return comms[rank].Err()
	})
	failing(t, 0, errs[0], mscclgo.ErrInvalid, "rank 0, peer 2", text)
	failing(t, 1, errs[1], mscclgo.ErrInvalid, "rank 0", text)
	failing(t, 2, errs[2], mscclgo.ErrInvalid, "rank 0", text)
}

// TestDeviceTimeout has ranks 0 and 2 wait for rank 1, which does nothing. Rank
// 0's patience ends first, and with it the group.
func TestDeviceTimeout(t *testing.T) {
	comms := groupWith(t, []communicator.Options{{Timeout: 2 * time.Second}, {Timeout: time.Hour}, {Timeout: time.Hour}})
	all := workers(t, comms)
	start := time.Now()
	waiting(t, comms, all, 1, 0, 2)
	errs := outcomes(t, 3, func(rank int) error {
		if rank == 1 {
			select {
			case <-comms[1].Done():
			case <-time.After(soon):
			}
			return comms[1].Err()
		}
		return comms[rank].Synchronize(t.Context(), all[rank].stream)
	})
	within(t, start)
	failing(t, 0, errs[0], mscclgo.ErrTimeout, "rank 0, peer 1", "channel 5")
	failing(t, 1, errs[1], mscclgo.ErrTimeout, "rank 0 considers this rank failed", "rank 1 never signalled rank 0")
	failing(t, 2, errs[2], mscclgo.ErrTimeout, "rank 2, peer 1", "rank 1 never signalled rank 0")
	if err := all[0].want(timedOut); err != nil {
		t.Error("rank 0:", err)
	}
	if err := all[2].want(aborted); err != nil {
		t.Error("rank 2:", err)
	}
	for rank, c := range comms {
		_, err := c.Share(t.Context(), upload(t, c.Device(), 0, 64))
		if err == nil || c.Err() == nil {
			t.Errorf("rank %d: share on a failed group: %v, its error: %v", rank, err, c.Err())
		}
	}
}

// TestTimedOutWaitEndsAfterItsGroup has a kernel's wait pass its deadline: when the kernel has ended, the group
// has failed, so that proxies drop what kernels behind it ask for, or the host has had its 0.2 s for that.
func TestTimedOutWaitEndsAfterItsGroup(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	start := time.Now()
	waiting(t, comms, all, 1, 0)
	testerr.Check(t, all[0].stream.Synchronize(t.Context()))
	if took := time.Since(start); comms[0].Err() == nil && took < verdictTimeout+200*time.Millisecond {
		t.Errorf("the kernel ended after %v, before its group failed", took)
	}
	<-comms[0].Done()
	failing(t, 0, comms[0].Synchronize(t.Context(), all[0].stream), mscclgo.ErrTimeout, "rank 0, peer 1")
}

// TestBarrierTimeout is the same as TestDeviceTimeout for a barrier of the group.
func TestBarrierTimeout(t *testing.T) {
	comms := groupWith(t, []communicator.Options{{Timeout: time.Second}, {Timeout: time.Hour}})
	all := workers(t, comms)
	each(t, 2, func(rank int) error {
		g, err := comms[rank].Group(t.Context())
		if err != nil || rank == 1 {
			return err
		}
		return all[0].launch("barriers", 1, 32, g, 1)
	})
	err := comms[0].Synchronize(t.Context(), all[0].stream)
	failing(t, 0, err, mscclgo.ErrTimeout, "rank 0, peer 1", "barrier")
	testerr.Report(t, all[0].want(timedOut))
}

func TestAbort(t *testing.T) {
	comms := group(t, 3, communicator.Options{Timeout: time.Hour})
	all := workers(t, comms)
	waiting(t, comms, all, 1, 0, 2)
	start := time.Now()
	cause := errors.New("the disk is full")
	errs := outcomes(t, 3, func(rank int) error {
		if rank == 1 {
			comms[1].Abort(cause)
			comms[1].Abort(errors.New("another"))
			comms[1].Abort(nil)
			return comms[1].Err()
		}
		return comms[rank].Synchronize(t.Context(), all[rank].stream)
	})
	within(t, start)
	failing(t, 1, errs[1], mscclgo.ErrAborted, "the disk is full")
	if !errors.Is(errs[1], cause) {
		t.Errorf("the cause is lost from %v", errs[1])
	}
	for _, rank := range []int{0, 2} {
		failing(t, rank, errs[rank], mscclgo.ErrAborted, "rank 1 failed", "the disk is full")
		if err := all[rank].want(aborted); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestOneKindWhoeverAborts has rank 0's part of a call fail. One of the ranks aborts the group with the error that it got
// of the call: on both the group's error names rank 0, and is of the kind of what failed there.
func TestOneKindWhoeverAborts(t *testing.T) {
	full := mscclgo.Errorf(mscclgo.ErrSystem, "communicator: fail", "no room").At(0, mscclgo.NoRank)
	for name, fail := range map[string]func([]*communicator.Communicator, int) error{
		"share": func(comms []*communicator.Communicator, rank int) error {
			b, err := comms[rank].Device().Alloc(64)
			if err != nil {
				return err
			}
			if rank == 0 {
				b.Close()
			}
			_, err = comms[rank].Share(t.Context(), b)
			return err
		},
		"connect": func(comms []*communicator.Communicator, rank int) error {
			if rank == 0 {
				return communicator.ConnectHalf(t.Context(), comms[0], 1, 5, full)
			}
			_, err := comms[rank].Connect(t.Context(), 0, 5)
			return err
		},
		"dial": func(comms []*communicator.Communicator, rank int) error {
			if rank == 0 {
				communicator.FailDials(comms[0], full)
			}
			s, err := comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{})
			if err != nil {
				return err
			}
			defer s.Close()
			_, err = comms[rank].PortChannels(t.Context(), s, upload(t, comms[rank].Device(), 0, 64), communicator.PortChannelOptions{})
			return err
		},
	} {
		for aborts := range 2 {
			t.Run(fmt.Sprint(name, " rank ", aborts), func(t *testing.T) {
				comms := group(t, 2, overEthernet())
				errs := outcomes(t, 2, func(rank int) error { return fail(comms, rank) })
				failing(t, 1, errs[1], mscclgo.ErrRemote, "its part failed")
				comms[aborts].Abort(errs[aborts])
				for rank, c := range comms {
					<-c.Done()
					var got *mscclgo.Error
					if want := mscclgo.KindOf(errs[0]); !errors.As(c.Err(), &got) || got.Kind != want || want == mscclgo.ErrRemote || rank == 1 && got.Peer != 0 {
						t.Errorf("rank %d: %v; want %v of rank 0", rank, c.Err(), want)
					}
				}
			})
		}
	}
}

// TestCloseEndsWaits closes communicators while kernels wait.
func TestCloseEndsWaits(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: time.Hour})
	all := workers(t, comms)
	waiting(t, comms, all, 1, 0)
	start := time.Now()
	closeAll(t, comms)
	failing(t, 0, comms[0].Synchronize(t.Context(), all[0].stream), mscclgo.ErrAborted, "closed the communicator")
	within(t, start)
	testerr.Report(t, all[0].want(aborted))
}

// TestPeerLeaves has one rank close early. It does not hang for the others, and
// they hear that it is gone, whether they were in a call or come to it later.
func TestPeerLeaves(t *testing.T) {
	for _, wait := range []time.Duration{0, 400 * time.Millisecond} {
		t.Run(wait.String(), func(t *testing.T) { peerLeaves(t, wait) })
	}
}

func peerLeaves(t *testing.T, wait time.Duration) {
	comms := groupWith(t, []communicator.Options{{Timeout: time.Minute}, {Timeout: time.Second}})
	start := time.Now()
	errs := outcomes(t, 2, func(rank int) error {
		if rank == 1 {
			return errors.Join(comms[1].Close(), comms[1].Bootstrap().(io.Closer).Close())
		}
		time.Sleep(wait)
		_, err := comms[0].Share(t.Context(), upload(t, comms[0].Device(), 0, 64))
		return err
	})
	failing(t, 0, errs[0], mscclgo.ErrRemote, "peer 1")
	if errs[1] != nil {
		t.Errorf("rank 1: %v", errs[1])
	}
	within(t, start)
}

func TestUseAfterClose(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	all := workers(t, comms)
	channels := make([]*communicator.MemoryChannels, 2)
	shared := make([]*communicator.PeerMemory, 2)
	each(t, 2, func(rank int) (err error) {
		c := comms[rank]
		if _, err = c.Group(t.Context()); err != nil {
			return err
		}
		if shared[rank], err = c.Share(t.Context(), upload(t, c.Device(), 0, 64)); err != nil {
			return err
		}
		channels[rank], err = c.MemoryChannels(t.Context(), upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{})
		return err
	})
	// Twice each, at the same time.
	closeAll(t, append(comms, comms...))
	for rank, c := range comms {
		b := upload(t, c.Device(), 0, 64)
		for name, call := range map[string]func() error{
			"Share": func() error { _, err := c.Share(t.Context(), b); return err },
			"MemoryChannels": func() error {
				_, err := c.MemoryChannels(t.Context(), b, communicator.MemoryChannelOptions{})
				return err
			},
			"Group":   func() error { _, err := c.Group(t.Context()); return err },
			"Connect": func() error { _, err := c.Connect(t.Context(), 1-rank, 0); return err },
			"Barrier": func() error { return c.Barrier(t.Context()) },
		} {
			if err := call(); !errors.Is(err, mscclgo.ErrInvalid) {
				t.Errorf("rank %d: %s after Close: %v", rank, name, err)
			}
		}
		c.Abort(errors.New("too late"))
		if err := c.Err(); err != nil {
			t.Errorf("rank %d: the group failed: %v", rank, err)
		}
		failing(t, rank, c.Synchronize(t.Context(), all[rank].stream), mscclgo.ErrAborted, "closed the communicator")
		if err := errors.Join(channels[rank].Close(), shared[rank].Close(), c.Close()); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestContextEnds has rank 1 give a collective call up. What follows does not
// pair its next call with the one that the other makes good.
func TestContextEnds(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: 3 * time.Second})
	share := func(ctx context.Context, rank int) error {
		_, err := comms[rank].Share(ctx, upload(t, comms[rank].Device(), 0, 64))
		return err
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	failing(t, 1, share(short, 1), mscclgo.ErrTimeout, "rank 1")
	for rank, err := range outcomes(t, 2, func(rank int) error { return share(t.Context(), rank) }) {
		if err == nil {
			t.Errorf("rank %d: rank 1's second call went with rank 0's first", rank)
		}
	}
}

func TestOptions(t *testing.T) {
	const faulty = 1
	for name, wrong := range map[string]communicator.Options{
		"negative timeout": {Timeout: -1},
		"endless scratch":  {Scratch: 1<<40 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			boots := ranks(t, 2)
			devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
			errs := outcomes(t, 2, func(rank int) error {
				o := communicator.Options{}
				if rank == faulty {
					o = wrong
				}
				_, err := communicator.New(t.Context(), boots[rank], devices[rank], o)
				return err
			})
			failing(t, 0, errs[0], mscclgo.ErrRemote, "peer 1")
			failing(t, 1, errs[1], mscclgo.ErrInvalid, "rank 1")
		})
	}
	t.Run("no device", func(t *testing.T) {
		_, err := communicator.New(t.Context(), ranks(t, 1)[0], nil, communicator.Options{})
		failing(t, 0, err, mscclgo.ErrInvalid, "device is nil")
	})
	t.Run("no bootstrap", func(t *testing.T) {
		_, err := communicator.New(t.Context(), nil, testdev.Open(t, 0), communicator.Options{})
		failing(t, 0, err, mscclgo.ErrInvalid, "bootstrap is nil")
	})
	t.Run("closed device", func(t *testing.T) {
		d := testdev.Open(t, 0)
		testerr.Check(t, d.Close())
		_, err := communicator.New(t.Context(), ranks(t, 1)[0], d, communicator.Options{})
		failing(t, 0, err, mscclgo.ErrInvalid, "closed")
	})
}

// TestFailWhileInUse aborts and closes while others use the communicator.
func TestFailWhileInUse(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: 5 * time.Second})
	all := workers(t, comms)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for rank, c := range comms {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := c.Synchronize(t.Context(), all[rank].stream)
				if cause := c.Err(); err != nil && cause == nil {
					t.Errorf("rank %d: Synchronize returned %v and the group has not failed", rank, err)
				}
			}
		})
		wg.Go(func() {
			for c.Barrier(t.Context()) == nil {
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	comms[0].Abort(errors.New("enough"))
	closeAll(t, comms)
	close(stop)
	wg.Wait()
	if err := comms[0].Err(); !errors.Is(err, mscclgo.ErrAborted) {
		t.Errorf("rank 0: %v", err)
	}
}

// TestDeviceClosedFirst closes the devices before the communicators, whose status words
// are memory of the devices.
func TestDeviceClosedFirst(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	for _, c := range comms {
		testerr.Report(t, c.Device().Close())
	}
	cause := errors.New("the disk is full")
	comms[0].Abort(cause)
	if err := comms[0].Err(); !errors.Is(err, cause) {
		t.Error(err)
	}
}

// TestCloseDuringCalls closes communicators while another goroutine makes calls, which
// fail, and find nothing that is freed. Only the race detector sees all that can go
// wrong.
func TestCloseDuringCalls(t *testing.T) {
	for round := range 10 {
		comms := group(t, 2, communicator.Options{Scratch: 4096})
		for rank, err := range outcomes(t, 2, func(rank int) error {
			c := comms[rank]
			time.AfterFunc(time.Duration(round)*time.Millisecond, func() { c.Close() })
			for {
				if _, err := c.HostGroup(t.Context()); err != nil {
					return err
				}
				local, err := c.Device().Alloc(4096)
				if err != nil {
					return err
				}
				channels, err := c.MemoryChannels(t.Context(), local, communicator.MemoryChannelOptions{})
				if err != nil {
					return errors.Join(err, local.Close())
				}
				if err := errors.Join(channels.Close(), local.Close()); err != nil {
					return err
				}
			}
		}) {
			if e := (*mscclgo.Error)(nil); !errors.As(err, &e) {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		closeAll(t, comms)
	}
}
