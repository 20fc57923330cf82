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

func TestBothWays(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var table bytes.Buffer
		if err := run(ctx, comm, config{min: 7, max: 128 << 10, rounds: 5, blocks: 4, threads: 64}, &table); err != nil {
			return err
		}
		for _, way := range []string{"port", "memory"} {
			if n := strings.Count(table.String(), way); comm.Rank() == 0 && n != 8 {
				return fmt.Errorf("%d rows of %s:\n%s", n, way, &table)
			}
		}
		return nil
	})
}

func TestRefuses(t *testing.T) {
	for ranks, cfg := range map[int]config{
		3: {min: 1, max: 1, rounds: 1, blocks: 1, threads: 32},
		2: {min: 2, max: 1, rounds: 1, blocks: 1, threads: 32},
	} {
		testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
			if err := run(ctx, comm, cfg, &bytes.Buffer{}); err == nil {
				return fmt.Errorf("%d ranks ran %+v", ranks, cfg)
			}
			return nil
		})
	}
}
