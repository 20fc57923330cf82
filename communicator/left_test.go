package communicator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestWaitForRankThatLeft has ranks 0 and 2 wait in kernels, over a channel and in a barrier,
// for rank 1, which leaves in good order and so never comes: all are told long before their
// deadlines, once nothing of it is left.
func TestWaitForRankThatLeft(t *testing.T) {
	testdev.Parallel(t) // rank 1 waits for the others to close too
	const ranks = 3
	testdev.Apart(t, ranks)
	comms := group(t, ranks, communicator.Options{Timeout: 2 * time.Minute, Scratch: 4096})
	workers := workers(t, comms)
	groups := make([]devicecode.Group, ranks)
	channels := make([]*communicator.MemoryChannels, ranks)
	each(t, ranks, func(rank int) (err error) {
		c := comms[rank]
		if groups[rank], err = c.Group(t.Context()); err != nil {
			return err
		}
		channels[rank], err = c.MemoryChannels(t.Context(), upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{Name: "halo"})
		return err
	})
	if t.Failed() {
		return
	}
	start := time.Now()
	testerr.Check(t, errors.Join(workers[0].launch("await", 1, 1, channels[0].HandleOf(0, 1)),
		workers[2].launch("barriers", 1, 32, groups[2], 1)))
	testerr.Check(t, errors.Join(channels[1].Close(), comms[1].Close()))
	time.Sleep(300 * time.Millisecond)
	for _, rank := range []int{0, 2} {
		if err := comms[rank].Err(); err != nil {
			t.Errorf("while rank 1's bootstrap is open, rank %d has failed: %v", rank, err)
		}
	}
	testerr.Check(t, comms[1].Bootstrap().(interface{ Close() error }).Close())
	for _, rank := range []int{0, 2} {
		err := comms[rank].Synchronize(t.Context(), workers[rank].stream)
		failing(t, rank, err, mscclgo.ErrRemote, "peer 1", "rank 1 has left the group, and rank ", "which cannot come any more")
		if err != nil && !strings.Contains(err.Error(), "signal 1 of channel 'halo' from 1 to 0") && !strings.Contains(err.Error(), "a barrier or packet of the group from 1 to 2") {
			t.Errorf("rank %d: the wait is not named: %v", rank, err)
		}
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// TestWaitForRankThatCloses has rank 0 wait in a kernel for rank 1, which closes, and waits for rank 0 as long as
// that kernel waits: these two waits are no cycle.
func TestWaitForRankThatCloses(t *testing.T) {
	testdev.Parallel(t)
	testdev.Apart(t, 2)
	comms := group(t, 2, communicator.Options{Timeout: verdictTimeout})
	workers := workers(t, comms)
	channels := make([]*communicator.MemoryChannels, 2)
	each(t, 2, func(rank int) (err error) {
		channels[rank], err = comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{})
		return err
	})
	if t.Failed() {
		return
	}
	closed := make(chan error, 1)
	go func() { closed <- errors.Join(channels[1].Close(), comms[1].Close()) }()
	testerr.Check(t, workers[0].launch("await", 1, 1, channels[0].HandleOf(0, 1)))
	err := comms[0].Synchronize(t.Context(), workers[0].stream)
	failing(t, 0, err, mscclgo.ErrTimeout, "peer 1", "rank 1 closes the group, and rank 0 needs it: rank 0 has waited")
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestSignalOfRankThatLeft has a signal come before its rank leaves: a wait for it ends well.
func TestSignalOfRankThatLeft(t *testing.T) {
	testdev.Parallel(t)
	comms := group(t, 2, communicator.Options{Timeout: time.Minute})
	workers := workers(t, comms)
	channels := make([]*communicator.MemoryChannels, 2)
	each(t, 2, func(rank int) (err error) {
		channels[rank], err = comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{})
		return err
	})
	if t.Failed() {
		return
	}
	testerr.Check(t, errors.Join(workers[1].launch("tell", 1, 1, channels[1].HandleOf(0, 0)), workers[1].stream.Synchronize(t.Context()),
		channels[1].Close(), comms[1].Close(), comms[1].Bootstrap().(interface{ Close() error }).Close()))
	time.Sleep(300 * time.Millisecond)
	testerr.Report(t, workers[0].run(t.Context(), "await", 1, channels[0].HandleOf(0, 1)))
}
