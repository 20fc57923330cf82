package main

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestRing(t *testing.T) {
	overEthernet := communicator.Options{Transports: registeredmem.Ethernet, Ethernet: ethernet.Options{Interface: "lo"}}
	for name, options := range map[string]communicator.Options{"memory": {}, "ports": {}, "SHM": {Transports: registeredmem.SHM}, "Ethernet": overEthernet} {
		for _, ranks := range []int{2, 3, 4} {
			for _, count := range []int{1, 1000, 30_001} {
				t.Run(fmt.Sprintf("%s, ranks=%d, count=%d", name, ranks, count), func(t *testing.T) {
					cfg := config{count: count, blocks: 2, threads: 64, size: channel.PipeSize{Slots: 4, SlotBytes: 4096}, ports: name == "ports"}
					testgroup.Run(t, ranks, options, func(ctx context.Context, comm *communicator.Communicator) error {
						return run(ctx, comm, cfg)
					})
				})
			}
		}
	}
}

// TestManyRanks has a long ring, of more ranks than kernels have the addresses of by value.
func TestManyRanks(t *testing.T) {
	cfg := config{count: 500, blocks: 1, threads: 32, size: channel.PipeSize{Slots: 4, SlotBytes: 128}}
	testgroup.Run(t, testgroup.Many(t), communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, cfg)
	})
}

// TestSums adds up the values of many ranks in the order of a ring, from each rank on.
func TestSums(t *testing.T) {
	for _, ranks := range []int{2, 183, 184, 256} {
		for i := range 1000 {
			for first := range ranks {
				got := float32(0)
				for behind := range ranks {
					got += value(i, (first+behind)%ranks, ranks)
				}
				if want := sum(i, ranks); got != want {
					t.Fatalf("%d ranks, from rank %d on: the sum of elements %d is %v, want %v", ranks, first, i, got, want)
				}
			}
		}
	}
	if value(1, 0, 256) == 0 {
		t.Error("the elements of 256 ranks are all zero")
	}
}

// TestFlags checks flags that make no sense, which are found before any rank starts.
func TestFlags(t *testing.T) {
	good := config{count: 1, blocks: 1, threads: 1, size: channel.PipeSize{Slots: 2, SlotBytes: 128}}
	testerr.Report(t, good.check(0, 2))
	if err := good.check(1, 2); err == nil {
		t.Error("an argument: no error")
	}
	if err := good.check(0, 1); err == nil {
		t.Error("one rank: no error")
	}
	for what, spoil := range map[string]func(*config){
		"no elements":       func(c *config) { c.count = 0 },
		"too many elements": func(c *config) { c.count = math.MaxInt },
		"no blocks":         func(c *config) { c.blocks = 0 },
		"no threads":        func(c *config) { c.threads = 0 },
		"too many threads":  func(c *config) { c.threads = 513 },
		"the default slots": func(c *config) { c.size.Slots = 0 },
		"one slot":          func(c *config) { c.size.Slots = 1 },
		"three slots":       func(c *config) { c.size.Slots = 3 },
		"empty slots":       func(c *config) { c.size.SlotBytes = 0 },
		"odd slots":         func(c *config) { c.size.SlotBytes = 129 },
	} {
		cfg := good
		spoil(&cfg)
		if err := cfg.check(0, 2); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestOneRank is under a launcher that started one rank.
func TestOneRank(t *testing.T) {
	testgroup.Run(t, 1, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		if err := run(ctx, comm, config{count: 1, blocks: 1, threads: 1}); err == nil {
			return fmt.Errorf("no error")
		}
		return nil
	})
}
