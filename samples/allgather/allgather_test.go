package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
	"github.com/mscclgo/mscclgo/internal/testdev"
	"github.com/mscclgo/mscclgo/internal/testgroup"
)

// counts are elements of a rank: one, odd ones, and around words and lines.
var counts = []uint64{1, 2, 3, 7, 8, 9, 31, 255, 1000, 1021, 2051}

var typeNames = []string{"f32", "f16", "bf16", "i32", "u8"}

func testConfig() config {
	return config{algo: "auto", typ: "f32", min: 1 << 10, max: 64 << 10, blocks: 4, threads: 64, iters: 1}
}

// TestEverywhere runs both algorithms and all types at all counts, in place and
// out of place.
func TestEverywhere(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{}, everything)
		})
	}
}

func everything(ctx context.Context, comm *communicator.Communicator) error {
	variant := 0
	for _, inPlace := range []bool{false, true} {
		cfg := testConfig()
		cfg.inPlace = inPlace
		cfg.max = uint64(comm.Size()) * 4 * counts[len(counts)-1]
		g, err := newGatherer(ctx, comm, cfg)
		if err != nil {
			return err
		}
		for _, name := range typeNames {
			if g.typ, err = elements.ParseType(name); err != nil {
				return err
			}
			for _, algo := range []string{"packets", "direct"} {
				// Each variant takes some counts; together they take all.
				variant++
				for i := variant % 3; i < len(counts); i += 3 {
					g.cfg.algo = algo
					if err := one(ctx, g, counts[i]); err != nil {
						return err
					}
				}
			}
		}
		if err := g.stream.Close(); err != nil {
			return err
		}
	}
	return nil
}

// one checks a size, and that nothing is written behind it.
func one(ctx context.Context, g *gatherer, count uint64) error {
	const guard = '~'
	whole := bytes.Repeat([]byte{guard}, int(g.out.Size()))
	if err := gpu.CopyIn(g.out, whole); err != nil {
		return err
	}
	row, err := g.measure(ctx, count*uint64(g.comm.Size()*g.typ.Size))
	if err != nil {
		return err
	}
	if row.Wrong != 0 {
		return fmt.Errorf("%+v: %d wrong", row, row.Wrong)
	}
	if err := gpu.CopyOut(whole, g.out); err != nil {
		return err
	}
	if rest := bytes.TrimLeft(whole[row.Bytes:], string(guard)); len(rest) != 0 {
		return fmt.Errorf("%+v: written behind the end, %d bytes before the buffer's", row, len(rest))
	}
	return g.comm.Barrier(ctx) // the next fills the buffer that peers write
}

// TestSizes takes sizes over the whole range, with the choice of algorithm.
func TestSizes(t *testing.T) {
	largest := uint64(2 << 20)
	if testdev.CUDA() {
		largest = 256 << 20
	}
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		for _, inPlace := range []bool{false, true} {
			cfg := testConfig()
			cfg.typ, cfg.inPlace, cfg.max, cfg.blocks, cfg.threads = "bf16", inPlace, largest, 16, 256
			var table bytes.Buffer
			if err := run(ctx, comm, cfg, &table); err != nil {
				return err
			}
			for _, algo := range []string{"packets", "direct"} {
				if !strings.Contains(table.String(), algo) {
					return fmt.Errorf("no row of %s:\n%s", algo, &table)
				}
			}
		}
		return nil
	})
}

func TestBadFlags(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{Scratch: 4096}, func(ctx context.Context, comm *communicator.Communicator) error {
		for _, c := range []struct {
			name  string
			spoil func(*config)
		}{
			{"type", func(c *config) { c.typ = "f8" }},
			{"no such kernel", func(c *config) { c.algo = "ring" }},
			{"sizes", func(c *config) { c.min = c.max + 1 }},
			{"no operations", func(c *config) { c.iters = 0 }},
			{"no blocks", func(c *config) { c.blocks = 0 }},
			{"does not fit", func(c *config) { c.algo, c.min = "packets", 16<<10 }},
			{"too many threads", func(c *config) { c.threads = 4096 }},
		} {
			cfg := testConfig()
			c.spoil(&cfg)
			if err := run(ctx, comm, cfg, &bytes.Buffer{}); err == nil {
				return fmt.Errorf("%s: no error for %+v", c.name, cfg)
			}
		}
		return nil
	})
}
