package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestLines does calls on any buffer between two ranks on NVLink, for which the tuning has an
// algorithm that reaches the peers' buffers: they go in packets, in as many pieces as the
// inboxes need.
func TestLines(t *testing.T) {
	detector.SkipKernels(t)
	const count, offset = 100_003, 5 // of elements of one byte, so that parts do not lie in words
	byteOf := func(rank, part, i int) byte { return byte(i*7 + i>>8 + 31*part + 101*rank) }
	for kind, place := range map[Kind][]bool{AllGather: {false, true}, AllToAll: {false}, SendReceive: {false}, Broadcast: {false, true}, Gather: {false}, Scatter: {false}} {
		for _, inPlace := range place {
			t.Run(fmt.Sprintf("%v, in place %v", kind, inPlace), func(t *testing.T) {
				name := "direct"
				if kind == Gather || kind == Scatter {
					name = "ports"
				}
				tuning := &Tuning{Rules: []Rule{
					{Link: "*", Kind: kind, UpTo: math.MaxUint64, Choice: Choice{Algorithm: name, Blocks: 3, Threads: 64}},
				}}
				scratch, steps := uint64(64<<10), 5
				if kind == AllToAll { // its parts go at once
					scratch, steps = 1<<20, 1
				}
				testgroup.Run(t, 2, communicator.Options{Scratch: scratch}, func(ctx context.Context, comm *communicator.Communicator) error {
					r := testerr.Must(New(ctx, comm, Options{Tuning: tuning}))(t)
					r.link = NVLink
					if lines, ok := r.chooseLines(&Call{Kind: kind, Type: U8, Count: count}); ok {
						return fmt.Errorf("%v with inboxes of so little room", lines)
					}
					r.staging.lines = 1
					s := testerr.Must(comm.Device().NewStream())(t)
					rank, ins, outs := comm.Rank(), kind.InParts(2), kind.OutParts(2)
					all := testerr.Must(comm.Device().Alloc(2*offset + count*4))(t)
					in := testerr.Must(all.Slice(offset, uint64(ins*count)))(t)
					out := testerr.Must(all.Slice(2*offset+uint64(2*count), uint64(outs*count)))(t)
					if inPlace {
						in = testerr.Must(out.Slice(uint64(kind.Internal().InOffset(rank, true)*count), uint64(ins*count)))(t)
					}
					for call := range 3 {
						data := make([]byte, ins*count)
						for i := range data {
							data[i] = byteOf(rank+call, i/count, i%count)
						}
						testerr.Check(t, gpu.CopyIn(out, make([]byte, outs*count)))
						testerr.Check(t, gpu.CopyIn(in, data))
						testerr.Check(t, r.call(s, out, in, callKey{kind: kind, typ: U8, count: count, root: 1}))
						testerr.Check(t, comm.Synchronize(ctx, s))
						got := make([]byte, outs*count)
						testerr.Check(t, gpu.CopyOut(got, out))
						want := make([]byte, outs*count)
						for i := range want {
							from, part := 1-rank, 0 // of a send-receive
							switch kind {
							case AllGather:
								from = i / count
							case AllToAll:
								from, part = i/count, rank
							case Broadcast:
								from = 1
							case Gather:
								if from = i / count; rank != 1 {
									continue
								}
							case Scatter:
								from, part = 1, rank
							}
							want[i] = byteOf(from+call, part, i%count)
						}
						if diff := testcmp.Diff(want, got); diff != "" {
							return fmt.Errorf("call %d on rank %d (-want +got):\n%.2000s", call, rank, diff)
						}
					}
					for _, p := range r.calls {
						if p.algorithm.about().name != "LL128" || len(p.steps) != steps {
							return fmt.Errorf("%v is done by %s in %d steps", p.op, p.algorithm.about().name, len(p.steps))
						}
					}
					return errors.Join(s.Close(), all.Close(), r.Close(ctx))
				})
			})
		}
	}
}
