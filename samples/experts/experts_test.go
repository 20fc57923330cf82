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

// TestRows checks that the tokens of any two ranks or experts differ.
func TestRows(t *testing.T) {
	const ranks = 72
	counts := make([]uint64, ranks)
	for i := range counts {
		counts[i] = 1
	}
	seen := map[float32]bool{}
	for rank := range ranks {
		all := rows(counts, func(expert int) (int, int) { return rank, expert })
		for expert := range ranks {
			first := all[width*expert]
			if seen[first] {
				t.Fatalf("the token of rank %d for expert %d begins with %v, as another does", rank, expert, first)
			}
			seen[first] = true
		}
	}
}

// TestTokens has ranks check all elements of some numbers of tokens.
func TestTokens(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
				var table bytes.Buffer
				testerr.Check(t, run(ctx, comm, 300, &table))
				if rows := strings.Count(table.String(), "\n"); comm.Rank() == 0 && rows != 2+5 {
					return fmt.Errorf("%d lines:\n%s", rows, &table)
				}
				return nil
			})
		})
	}
}
