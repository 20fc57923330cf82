package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestSizes plays with sizes from each of the smallest up, in all three ways.
func TestSizes(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		for _, smallest := range []uint64{1, 2, 3, 5, 7, 15, 17} {
			var table bytes.Buffer
			cfg := config{min: smallest, max: 9 << 10, rounds: 3, threads: 64}
			if err := run(ctx, comm, cfg, &table); err != nil {
				return fmt.Errorf("from %d bytes: %w", smallest, err)
			}
			for _, algo := range []string{"put", "ll8", "ll16"} {
				if rows := strings.Count(table.String(), " "+algo+" "); comm.Rank() == 0 && rows < 5 {
					return fmt.Errorf("%d rows of %s:\n%s", rows, algo, &table)
				}
			}
		}
		return nil
	})
}

// TestLarge sends more than the packets of a block at once.
func TestLarge(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, config{min: 1<<20 - 1, max: 1 << 20, rounds: 1, threads: 256}, &bytes.Buffer{})
	})
}

func TestFlags(t *testing.T) {
	for what, c := range map[string]struct {
		cfg  config
		args int
		ok   bool
	}{
		"good":          {config{min: 8, max: 8, rounds: 1, threads: 32}, 0, true},
		"an argument":   {config{min: 8, max: 8, rounds: 1, threads: 32}, 1, false},
		"no bytes":      {config{min: 0, max: 8, rounds: 1, threads: 32}, 0, false},
		"max below min": {config{min: 16, max: 8, rounds: 1, threads: 32}, 0, false},
		"huge":          {config{min: 8, max: math.MaxUint64, rounds: 1, threads: 32}, 0, false},
		"no rounds":     {config{min: 8, max: 8, rounds: 0, threads: 32}, 0, false},
		"flags repeat":  {config{min: 8, max: 8, rounds: 1<<24 + 1, threads: 32}, 0, false},
		"no threads":    {config{min: 8, max: 8, rounds: 1, threads: 0}, 0, false},
	} {
		if err := c.cfg.check(c.args); (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestRefuses(t *testing.T) {
	for what, ranks := range map[string]int{"too many threads": 2, "three ranks": 3} {
		cfg := config{min: 8, max: 8, rounds: 1, threads: 32}
		if ranks == 2 {
			cfg.threads = 4096
		}
		testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
			if err := run(ctx, comm, cfg, &bytes.Buffer{}); err == nil {
				return fmt.Errorf("%s: no error", what)
			}
			return nil
		})
	}
}
