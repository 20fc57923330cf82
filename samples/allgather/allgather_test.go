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

// TestSizes has ranks check all elements of sizes from one on.
func TestSizes(t *testing.T) {
	for _, ranks := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
				var table bytes.Buffer
				testerr.Check(t, run(ctx, comm, 5000, &table))
				if rows := strings.Count(table.String(), "\n"); comm.Rank() == 0 && rows != 2+7 {
					return fmt.Errorf("%d lines:\n%s", rows, &table)
				}
				return nil
			})
		})
	}
}
