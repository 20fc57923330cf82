package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// withRings calls f with rings of small slots, for data that they cut into odd parts.
func withRings(ctx context.Context, comm *communicator.Communicator, table io.Writer, f func(*pipeRings) error) (err error) {
	t := &primitives{comm: comm, sinks: Sinks{Table: table}}
	t.sinks.fill()
	defer func() {
		for i := len(t.closers) - 1; i >= 0; i-- {
			err = errors.Join(err, t.closers[i]())
		}
	}()
	if t.stream, err = comm.Device().NewStream(); err != nil {
		return err
	}
	t.closers = append(t.closers, t.stream.Close)
	r, err := t.newRings(ctx, ringSizes{
		sizes: []uint64{2, 130, 256, 5002, 40_000}, slots: []uint64{128, 512}, shapes: []ringShape{{1, 1, 1}, {3, 1, 1}, {2, 2, 1}, {4, 1, 3}}, threads: 32,
		timing: Config{Iters: 1, Replays: 1, Rounds: 1, Graph: true},
	})
	if err != nil {
		return err
	}
	return errors.Join(f(r), comm.Barrier(ctx))
}

// TestRings adds up data of odd sizes, in several rounds.
func TestRings(t *testing.T) {
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			var table bytes.Buffer
			testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
				var mine bytes.Buffer
				defer func() {
					if comm.Rank() == 0 {
						table = mine
					}
				}()
				return withRings(ctx, comm, &mine, func(r *pipeRings) error {
					for _, size := range r.sizes {
						if err := r.size(ctx, size); err != nil {
							return err
						}
					}
					return nil
				})
			})
			both := 0
			if ranks > 2 {
				both = 5
			}
			text := table.String()
			if strings.Count(text, "ring of pipes, 1 blocks, ") != 5 || strings.Count(text, "ring of pipes, 3 blocks, ") != 5 || strings.Count(text, "ring of pipes, 1+1 blocks, ") != both || strings.Count(text, "ring of pipes, 4 blocks in 3 waves, ") != 5 {
				t.Errorf("the rows are:\n%s", text)
			}
		})
	}
}

// TestRingRows has a row for the best slots of each shape, and the ratio of the best of all.
func TestRingRows(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var table bytes.Buffer
		return withRings(ctx, comm, &table, func(r *pipeRings) error {
			r.nccl = &ncclContestant{name: "NCCL's ring"}
			r.shapes = r.shapes[:2]
			one, three := r.shapes[0], r.shapes[1]
			ours := []*pipeRing{{shape: one, slot: 128}, {shape: one, slot: 512}, {shape: three, slot: 128}, {shape: three, slot: 512}}
			err := r.print(4096, ours, []Times{{Median: 5000}, {Median: 4000}, {Median: 3000}, {Median: 6000}, {Median: 2000}})
			want := ""
			if comm.Rank() == 0 {
				want = "ring of pipes, 1 blocks, slots of 512 4K 4.00 us\nring of pipes, 3 blocks, slots of 128 4K 3.00 us\n" +
					"NCCL's ring 4K 2.00 us\nring of pipes over NCCL's ring 4K 1.50 ratio\n"
			}
			var got strings.Builder
			for line := range strings.Lines(table.String()) {
				fmt.Fprintln(&got, strings.Join(strings.Fields(line), " "))
			}
			if diff := cmp.Diff(want, got.String()); diff != "" {
				return fmt.Errorf("the rows are (-want +got):\n%s", diff)
			}
			return err
		})
	})
}

// TestRingsChecked has a ring that does nothing.
func TestRingsChecked(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		return withRings(ctx, comm, io.Discard, func(r *pipeRings) error {
			lazy := ringContestant{"lazy", func(_ context.Context, _ *problem, iters, replays int, graph bool) (repeated, error) {
				return newLaunches(comm, r.stream, func(*gpu.Stream) error { return nil }, iters, replays, graph)
			}}
			_, err := r.compete(ctx, 5002, []ringContestant{lazy})
			if err == nil || !strings.Contains(err.Error(), "lazy: rank ") || !strings.Contains(err.Error(), "wrong elements of 2501") {
				return fmt.Errorf("it returned %v", err)
			}
			return nil
		})
	})
}

// TestRingNumbers counts what is wrong in the data and behind them.
func TestRingNumbers(t *testing.T) {
	n := newRingNumbers(1, 3, []uint64{100, 2000})
	const count = 500
	for _, c := range []struct {
		spoilt []int
		want   int
	}{{nil, 0}, {[]int{0, count - 1}, 2}, {[]int{count}, 1}, {[]int{count + ringGuard - 1}, 1}, {[]int{count + ringGuard}, 0}} {
		copy(n.got, n.mine)
		copy(n.got[:count], n.sums)
		for _, i := range c.spoilt {
			n.got[i] ^= 1
		}
		if wrong := n.wrong(count); wrong != c.want {
			t.Errorf("%v spoilt: %d are wrong, want %d", c.spoilt, wrong, c.want)
		}
	}
	sum := float32(0)
	for rank := range 3 {
		sum += newRingNumbers(rank, 3, []uint64{100}).mine[7].Float32()
	}
	if got := n.sums[7].Float32(); got != sum {
		t.Errorf("a sum is %v, want %v", got, sum)
	}
}
