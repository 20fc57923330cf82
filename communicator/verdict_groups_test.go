package communicator_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// handle returns the handle of a new memory channel of c to a peer.
func handle(t *testing.T, c *communicator.Communicator, name string, peer int) (gpu.Ptr, error) {
	channels, err := c.MemoryChannels(t.Context(), upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{Name: name})
	if err != nil {
		return 0, err
	}
	return channels.HandleOf(0, peer), nil
}

// swapInPart has a rank swap in the group of its color with a peer there, by a kernel that ends.
func swapInPart(t *testing.T, w *worker, color, peer int) error {
	part, err := w.comm.Split(t.Context(), color, w.comm.Rank())
	if err != nil || part == nil {
		return err
	}
	t.Cleanup(func() { part.Close() })
	h, err := handle(t, part, "part", peer)
	if err != nil {
		return err
	}
	return errors.Join(w.launch("swap", 1, 1, h, false), part.Synchronize(t.Context(), w.stream))
}

// TestMissingSignalBesideParts has rank 0 wait for rank 1, which has ended the same kernel in another
// group as often, and waits itself for rank 2, which sends nothing.
func TestMissingSignalBesideParts(t *testing.T) {
	comms := group(t, 3, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	each(t, 3, func(rank int) error {
		if err := swapInPart(t, all[rank], min(rank, 1)-1, 2-rank); err != nil {
			return err
		}
		first, err := handle(t, comms[rank], "first", 1-min(rank, 1))
		if err != nil {
			return err
		}
		second, err := handle(t, comms[rank], "second", 2)
		switch {
		case err != nil || rank == 2:
			return err
		case rank == 1:
			return all[rank].launch("await", 1, 1, second)
		}
		return all[rank].launch("swap", 1, 1, first, false)
	})
	for rank, err := range culprits(t, comms, all) {
		if err == nil || !strings.Contains(err.Error(), "rank 2 never signalled rank 1: rank 1 has waited") || strings.Contains(err.Error(), "has ended on") {
			t.Errorf("rank %d: %v", rank, err)
		}
		if e := (*mscclgo.Error)(nil); rank != 2 && errors.As(err, &e) && e.Peer != 2 {
			t.Errorf("rank %d: the error names rank %d", rank, e.Peer)
		}
	}
}

// TestMissingSignalAfterParts is TestMissingSignalStepApart after rank 0 has launched the kernel in
// another group, so more often than rank 1.
func TestMissingSignalAfterParts(t *testing.T) {
	comms := group(t, 3, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	each(t, 3, func(rank int) error {
		color := 0
		if rank == 1 {
			color = -1
		}
		return errors.Join(swapInPart(t, all[rank], color, 1-rank/2), stepApart(t, all[rank]))
	})
	stepApartVerdict(t, comms, all)
}

// TestMissingSignalAfterReform is TestMissingSignalStepApart with a rank that has launched the kernel in
// the group before, in place of whose other rank there is a newcomer.
func TestMissingSignalAfterReform(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	each(t, 2, func(rank int) error {
		h, err := handle(t, comms[rank], "before", 1-rank)
		if err != nil {
			return err
		}
		return all[rank].run(t.Context(), "swap", 1, h, false)
	})
	boots, dev := ranks(t, 2), testdev.Open(t, 0)
	next := make([]*communicator.Communicator, 2)
	t.Cleanup(func() { closeAll(t, next) })
	var left sync.WaitGroup
	left.Go(func() { comms[1].Close() })
	each(t, 2, func(rank int) (err error) {
		if rank == 0 {
			next[0], err = comms[0].Reform(t.Context(), boots[0], all[0].stream)
		} else {
			next[1], err = communicator.New(t.Context(), boots[1], dev, communicator.Options{Timeout: verdictTimeout})
		}
		return err
	})
	left.Wait()
	if t.Failed() {
		return
	}
	again := workers(t, next)
	each(t, 2, func(rank int) error { return stepApart(t, again[rank]) })
	stepApartVerdict(t, next, again)
}
