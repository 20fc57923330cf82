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
				testerr.Check(t, run(ctx, comm, 5000, ranks-1, &table))
				if rows := strings.Count(table.String(), "\n"); comm.Rank() == 0 && rows != 2+7 {
					return fmt.Errorf("%d lines:\n%s", rows, &table)
				}
				return nil
			})
		})
	}
}

// TestRoot has a root that the group does not have, which a launcher started.
func TestRoot(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var table bytes.Buffer
		if err := run(ctx, comm, 1, 2, &table); err == nil || !strings.Contains(err.Error(), "-root 2") || table.Len() > 0 {
			return fmt.Errorf("%v, and it printed %q", err, &table)
		}
		return nil
	})
}

// TestFlags checks flags under a launcher, whose ranks -n does not tell, and without one.
func TestFlags(t *testing.T) {
	t.Setenv("MSCCLGO_ID", "x")
	testerr.Report(t, check(0, 1, 5, 4))
	t.Setenv("MSCCLGO_ID", "")
	testerr.Report(t, check(0, 1, 3, 4))
	if err := check(0, 1, 5, 4); err == nil {
		t.Error("rank 5 of 4: no error")
	}
}
