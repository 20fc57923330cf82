package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ethernet"
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
	// Of so many elements the sums are exact.
	cfg := config{count: 500, blocks: 1, threads: 32, size: channel.PipeSize{Slots: 4, SlotBytes: 128}}
	testgroup.Run(t, testgroup.Many(t), communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, cfg)
	})
}

func TestWrongFlags(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		for what, cfg := range map[string]config{
			"one slot":         {count: 1, blocks: 1, threads: 1, size: channel.PipeSize{Slots: 1, SlotBytes: 128}},
			"no threads":       {count: 1, blocks: 1, size: channel.PipeSize{Slots: 2, SlotBytes: 128}},
			"too many threads": {count: 1, blocks: 1, threads: 513, size: channel.PipeSize{Slots: 2, SlotBytes: 128}},
		} {
			if err := run(ctx, comm, cfg); err == nil {
				return fmt.Errorf("%s: no error", what)
			}
		}
		return nil
	})
}
