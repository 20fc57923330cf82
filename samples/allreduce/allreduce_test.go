package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestAlgorithms runs each algorithm with sizes from 3 bytes up, in place or out of
// place.
func TestAlgorithms(t *testing.T) {
	for i, algo := range []string{"oneshot", "twoshot", "ring", "hier", "auto"} {
		for _, ranks := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s, ranks=%d", algo, ranks), func(t *testing.T) {
				cfg := config{
					algo: algo, typ: collective.F32, op: collective.Sum, min: 3, max: 50_000, warmup: 1, iters: 2,
					blocks: 1 + i, threads: 64, inPlace: (i+ranks)%2 == 0,
				}
				if ranks == 3 {
					cfg.typ, cfg.op = collective.BF16, collective.Max
				}
				testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
					var table bytes.Buffer
					if err := run(ctx, comm, cfg, &table); err != nil || comm.Rank() != 0 {
						return err
					}
					checkTable(t, table.String(), algo, 8) // 3, 12, ... 49152
					return nil
				})
			})
		}
	}
}

// TestCheck counts the elements that an all-reduce leaves wrong.
func TestCheck(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) (err error) {
		s := &sample{config: config{typ: collective.I32, op: collective.Sum}, comm: comm}
		if s.in, err = comm.Device().Alloc(4000); err != nil {
			return err
		}
		if s.out, err = comm.Device().Alloc(4000); err != nil {
			return err
		}
		stream, err := comm.Device().NewStream()
		if err != nil {
			return err
		}
		defer stream.Close()
		nothing := func(*gpu.Stream) error { return nil }
		wrong, err := s.check(ctx, stream, nothing, 1000)
		if err == nil && wrong != 2000 {
			err = fmt.Errorf("%d wrong elements, want 2000", wrong)
		}
		return err
	})
}

// TestFlags checks flags that make no sense, which are found before any rank starts.
func TestFlags(t *testing.T) {
	good := config{algo: "twoshot", typ: collective.F32, min: 4, max: 4, iters: 1, blocks: 1, threads: 32}
	testerr.Report(t, good.check(0))
	if err := good.check(1); err == nil {
		t.Error("an argument: no error")
	}
	for what, spoil := range map[string]func(*config){
		"an unknown algorithm": func(c *config) { c.algo = "tree" },
		"no bytes":             func(c *config) { c.min = 0 },
		"max below min":        func(c *config) { c.max = 3 },
		"huge":                 func(c *config) { c.max = math.MaxUint64 },
		"no operations":        func(c *config) { c.iters = 0 },
		"flags repeat":         func(c *config) { c.iters = 200_000_000 },
		"a negative warm-up":   func(c *config) { c.warmup = -1 },
		"negative blocks":      func(c *config) { c.blocks = -1 },
		"negative threads":     func(c *config) { c.threads = -1 },
	} {
		cfg := good
		spoil(&cfg)
		if err := cfg.check(0); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestTypes refuses what the textbook kernels cannot reduce.
func TestTypes(t *testing.T) {
	for _, algo := range []string{"oneshot", "twoshot", "ring", "hier"} {
		cfg := config{algo: algo, typ: collective.F8E4M3, min: 4, max: 4, iters: 1, blocks: 1, threads: 32}
		testgroup.Run(t, 1, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
			err := run(ctx, comm, cfg, &bytes.Buffer{})
			if want := "-algo " + algo + " does not reduce f8e4m3 by sum"; err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("got %v, want %q", err, want)
			}
			return nil
		})
	}
}
