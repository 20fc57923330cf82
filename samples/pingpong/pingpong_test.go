package main

import (
	"bytes"
	"context"
	"fmt"
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

func TestBadFlags(t *testing.T) {
	play := func(ranks int, name string, cfg config) {
		testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
			if err := run(ctx, comm, cfg, &bytes.Buffer{}); err == nil {
				return fmt.Errorf("%s: no error", name)
			}
			return nil
		})
	}
	play(2, "no bytes", config{min: 0, max: 8, rounds: 1, threads: 32})
	play(2, "max below min", config{min: 16, max: 8, rounds: 1, threads: 32})
	play(2, "no rounds", config{min: 8, max: 8, rounds: 0, threads: 32})
	play(2, "too many threads", config{min: 8, max: 8, rounds: 1, threads: 4096})
	play(3, "three ranks", config{min: 8, max: 8, rounds: 1, threads: 32})
}
