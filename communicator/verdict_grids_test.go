package communicator_test

import (
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestOtherGrid has rank 2 of a ring launch a kernel in which block waits for block with another
// number of blocks than the others, which go on. Whoever waits then, rank 2 is named.
func TestOtherGrid(t *testing.T) {
	for name, c := range map[string]struct {
		blocks int
		graphs []int // the steps that are in graphs
		last   int   // blocks of the last step, of all ranks
		behind bool  // a barrier is queued behind the step
		texts  []string
	}{
		"more":            {5, nil, 2, false, []string{"rank 2 launched kernel shift with 5 blocks of 32 threads, and ranks 0 and 1 with 4: rank 2 has waited", "from 1 to 2, block 4, in launch 3, in which rank 1 has no such block"}},
		"more in a graph": {5, []int{1, 2, 3}, 2, false, []string{"rank 2 launched a graph of shift with 5 blocks of 32 threads, and ranks 0 and 1 with 4: rank 2 has waited", "from 1 to 2, block 4, in launch 2, in which rank 1 has no such block"}},
		"more in a graph before": {5, []int{2}, 5, false, []string{
			"rank 2 launched a graph of shift with 5 blocks of 32 threads, and ranks 0 and 1 with 4: rank 2 has waited",
			"from 1 to 2, block 4, in launch 3; the signal for that was taken in launch 1 of a graph of shift, in which rank 1 has no such block",
		}},
		"more, and a barrier behind": {5, nil, 2, true, []string{"rank 2 launched kernel shift with 5 blocks of 32 threads, and ranks 0 and 1 with 4: rank 2 has waited", "from 1 to 2, block 4, in launch 3, in which rank 1 has no such block"}},
		"fewer":                      {3, nil, 2, false, []string{"rank 2 launched kernel shift with 3 blocks of 32 threads, and ranks 0 and 1 with 4: rank 0 has waited", "from 2 to 0, block 3, in launch 3, in which rank 2 has no such block"}},
	} {
		t.Run(name, func(t *testing.T) {
			testdev.Parallel(t)
			comms := group(t, 3, communicator.Options{Timeout: verdictTimeout, Scratch: 4096})
			all := workers(t, comms)
			each(t, 3, func(rank int) error {
				channels, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{PerPeer: 5})
				if err != nil {
					return err
				}
				group, err := comms[rank].Group(t.Context())
				if err != nil {
					return err
				}
				for step, blocks := range []int{1, 3, 4, c.last} {
					if step == 2 && rank == 2 {
						blocks = c.blocks
					}
					if err := all[rank].shift(t, channels.Set(), blocks, slices.Contains(c.graphs, step)); err != nil {
						return err
					}
					if step == 2 && c.behind {
						if err := all[rank].launch("barriers", 1, 32, group, 1); err != nil {
							return err
						}
					}
					if comms[rank].Synchronize(t.Context(), all[rank].stream) != nil {
						return nil // as it must
					}
				}
				return nil
			})
			blames(t, name, comms, 2, c.texts...)
			settled(t, all)
		})
	}
}

// TestOtherGridInGroup has rank 2 launch a kernel with barriers, or one that waits for packets, with another number of
// blocks than the others, which go on to a call on the host. The step before has the same grid on all.
func TestOtherGridInGroup(t *testing.T) {
	for name, c := range map[string]struct {
		kernel string
		blocks int
		texts  []string
	}{
		"barriers, more": {"barriers", 5, []string{"rank 2 launched kernel barriers with 5 blocks of 32 threads, and ranks 0 and 1 with 4: rank 2 has waited", "for a barrier or packet of the group from ", " to 2, block 4, in launch 2, in which rank "}},
		"packets, fewer": {"swapPackets", 3, []string{"rank 2 launched kernel swapPackets with 3 blocks of 32 threads, and ranks 0 and 1 with 4: rank ", "for a barrier or packet of the group from 2 to ", "block 3, in launch 2, in which rank 2 has no such block"}},
	} {
		t.Run(name, func(t *testing.T) {
			testdev.Parallel(t)
			comms := group(t, 3, communicator.Options{Timeout: verdictTimeout, Scratch: 4096})
			all := workers(t, comms)
			each(t, 3, func(rank int) error {
				group, err := comms[rank].Group(t.Context())
				if err != nil {
					return err
				}
				for step, blocks := range []int{2, 4} {
					if step == 1 && rank == 2 {
						blocks = c.blocks
					}
					if err := all[rank].launch(c.kernel, blocks, 32, group, uint32(1)); err != nil {
						return err
					}
				}
				if err := comms[rank].Synchronize(t.Context(), all[rank].stream); err == nil {
					comms[rank].Barrier(t.Context()) // which ends as the group does
				}
				return nil
			})
			blames(t, name, comms, 2, c.texts...)
			settled(t, all)
		})
	}
}

// shift queues a signal to the next rank by each block, and a wait for the one before, perhaps in
// a graph.
func (w *worker) shift(t *testing.T, set devicecode.MemoryChannelSet, blocks int, graph bool) error {
	kernel, err := w.module.Kernel("shift")
	if err != nil {
		return err
	}
	launch := func() error { return kernel.Launch(w.stream, gpu.Blocks(blocks, 32), set) }
	if !graph {
		return launch()
	}
	if err := w.stream.BeginCapture(); err != nil {
		return err
	}
	if err := launch(); err != nil {
		return err
	}
	g, err := w.stream.EndCapture()
	if err != nil {
		return err
	}
	t.Cleanup(func() { g.Close() })
	return g.Launch(w.stream)
}
