package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

func TestBothWays(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var table bytes.Buffer
		testerr.Check(t, run(ctx, comm, config{min: 7, max: 128 << 10, rounds: 5, blocks: 4, threads: 64}, &table))
		for _, way := range []string{"port", "memory"} {
			if n := strings.Count(table.String(), way); comm.Rank() == 0 && n != 8 {
				return fmt.Errorf("%d rows of %s:\n%s", n, way, &table)
			}
		}
		return nil
	})
}

// TestFewBytes has blocks that have nothing to copy.
func TestFewBytes(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, config{min: 1, max: 17, rounds: 2, blocks: 4, threads: 32}, &bytes.Buffer{})
	})
}

func TestThreeRanks(t *testing.T) {
	testgroup.Run(t, 3, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		if err := run(ctx, comm, config{min: 1, max: 1, rounds: 1, blocks: 1, threads: 32}, &bytes.Buffer{}); err == nil {
			return fmt.Errorf("3 ranks exchanged data")
		}
		return nil
	})
}

func TestFlags(t *testing.T) {
	good := config{min: 1, max: 1, rounds: 1, blocks: 1, threads: 32}
	testerr.Report(t, good.check(0))
	for what, cfg := range map[string]config{
		"max below min": {min: 2, max: 1, rounds: 1, blocks: 1, threads: 32},
		"no rounds":     {min: 1, max: 1, rounds: 0, blocks: 1, threads: 32},
		"no threads":    {min: 1, max: 1, rounds: 1, blocks: 1, threads: 0},
	} {
		if err := cfg.check(0); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
