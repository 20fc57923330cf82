package communicator_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestGroup(t *testing.T) {
	comms := group(t, 3, communicator.Options{Scratch: 1000})
	all := workers(t, comms)
	each(t, 3, func(rank int) error {
		g, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		if g.Internal().Rank != uint32(rank) || g.Internal().Size != 3 || g.Internal().ScratchSize != 1024 || g.Internal().ScratchOffset < devicecode.MaxBlocks*3*4 {
			return fmt.Errorf("group %+v", g)
		}
		again, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		if again != g {
			return fmt.Errorf("the second call returned %+v, the first %+v", again, g)
		}
		for _, blocks := range []int{1, 4, 2} {
			if err := all[rank].launch("barriers", blocks, 32, g, 10); err != nil {
				return err
			}
		}
		if err := comms[rank].Synchronize(t.Context(), all[rank].stream); err != nil {
			return err
		}
		return all[rank].want(done)
	})
}

// TestGroupGrids launches grids for which a group has no barriers and epochs: they would write behind these.
func TestGroupGrids(t *testing.T) {
	comms := group(t, 1, communicator.Options{})
	w := workers(t, comms)[0]
	g := testerr.Must(comms[0].Group(t.Context()))(t)
	kernel := testerr.Must(w.module.Kernel("barriers"))(t)
	const most = devicecode.MaxBlocks
	noCounts := g.Internal()
	noCounts.Epochs, noCounts.Arrivals = 0, 0
	for _, capture := range []bool{false, true} {
		if capture {
			testerr.Check(t, w.stream.BeginCapture())
		}
		for _, grid := range []gpu.Dim3{{X: most + 1}, {X: 2, Y: 2}, {X: 1, Z: 2}} {
			cfg := gpu.LaunchConfig{Grid: grid, Block: gpu.Dim3{X: 32}}
			err := kernel.Launch(w.stream, cfg, g, uint32(1), w.results)
			testerr.Expect(t, err, mscclgo.ErrInvalid, "barriers", "at most 256 blocks")
			if err := kernel.Launch(w.stream, cfg, noCounts, uint32(0), w.results); err != nil {
				t.Errorf("where the kernel gets no counts: %v", err)
			}
		}
		testerr.Report(t, w.launch("barriers", most, 32, g, 1))
	}
	if graph, err := w.stream.EndCapture(); err != nil {
		t.Error(err)
	} else if err := errors.Join(graph.Close(), w.stream.Synchronize(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestDisagreeOnScratch(t *testing.T) {
	options := []communicator.Options{{Scratch: 4096}, {Scratch: 8192}, {Scratch: 4096}}
	comms := groupWith(t, options)
	before := take(t, comms)
	errs := outcomes(t, 3, func(rank int) error {
		_, err := comms[rank].Group(t.Context())
		return err
	})
	for rank, err := range errs {
		failing(t, rank, err, mscclgo.ErrInvalid, "Options.Scratch")
	}
	take(t, comms).grown(t, before)
}

// TestGroupOutOfMemory has one rank ask for more than there is.
func TestGroupOutOfMemory(t *testing.T) {
	comms := groupWith(t, []communicator.Options{{}, {Scratch: 1 << 40}})
	before := take(t, comms)
	errs := outcomes(t, 2, func(rank int) error {
		_, err := comms[rank].Group(t.Context())
		return err
	})
	failing(t, 0, errs[0], mscclgo.ErrRemote, "peer 1")
	failing(t, 1, errs[1], mscclgo.ErrSystem)
	take(t, comms).grown(t, before)
}

// TestGroupTooLarge has more ranks than a kernel reaches by address. Their windows would not fit
// into any memory, so none may be allocated.
func TestGroupTooLarge(t *testing.T) {
	const ranks = devicecode.MaxRanks + 1
	comms := group(t, ranks, communicator.Options{Scratch: 1 << 40})
	for rank, err := range outcomes(t, ranks, func(rank int) error {
		_, err := comms[rank].Group(t.Context())
		return err
	}) {
		failing(t, rank, err, mscclgo.ErrUnsupported, "at most 256 ranks by address, and these are 257")
	}
}

// TestHostGroup meets the ranks of a host in a group of their own.
func TestHostGroup(t *testing.T) {
	comms := group(t, 3, communicator.Options{Scratch: 1000})
	all := workers(t, comms)
	each(t, 3, func(rank int) error {
		if diff := cmp.Diff([][]int{comms[rank].HostRanks()}, comms[rank].Hosts()); diff != "" {
			return fmt.Errorf("hosts and this one's ranks differ (-ranks +hosts):\n%s", diff)
		}
		whole, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		host, err := comms[rank].HostGroup(t.Context())
		if err != nil {
			return err
		}
		if host.Internal().Rank != uint32(rank) || host.Internal().Size != 3 || host.Internal().Epochs == whole.Internal().Epochs || host.Internal().Windows[rank] == whole.Internal().Windows[rank] {
			return fmt.Errorf("host group %+v beside %+v", host, whole)
		}
		for range 2 {
			for _, g := range []devicecode.Group{whole, host} {
				if err := all[rank].launch("barriers", 2, 32, g, 10); err != nil {
					return err
				}
			}
		}
		if err := comms[rank].Synchronize(t.Context(), all[rank].stream); err != nil {
			return err
		}
		return all[rank].want(done)
	})
}

// TestHostGroupAlone has one rank wait in a barrier to which the others do not
// come.
func TestHostGroupAlone(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: time.Second})
	all := workers(t, comms)
	errs := outcomes(t, 2, func(rank int) error {
		g, err := comms[rank].HostGroup(t.Context())
		if err != nil || rank == 1 {
			return err
		}
		if err := all[rank].launch("barriers", 1, 32, g, 1); err != nil {
			return err
		}
		return comms[rank].Synchronize(t.Context(), all[rank].stream)
	})
	failing(t, 0, errs[0], mscclgo.ErrTimeout, "rank 0, peer 1", "host's ranks")
}
