package collective_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// routed are the collectives whose parts go by rails, each for one rank.
var routed = []collective.Kind{collective.AllToAll, collective.Gather, collective.Scatter}

// TestRoutes does all-to-alls, gathers and scatters by the hierarchy: of a part of a piece and of more pieces than
// there are slots.
func TestRoutes(t *testing.T) { byHierarchy(t, routed, 128<<10, 70_001) }

// routedChain are calls that follow each other on two memories of each rank, from one of them to the
// other, and what they leave there.
type routedChain struct {
	*member
	memories [2]*collective.Memory
	want     [2][][]byte // of each rank
	random   *rand.Rand  // alike on all ranks
}

// routedCall is a call of a chain.
type routedCall struct {
	collective.Call
	op *collective.Operation
}

// next prepares a call at random.
func (c *routedChain) next() (*routedCall, error) {
	ranks, from := c.comm.Size(), c.random.IntN(2)
	call := collective.Call{Type: collective.U8, In: c.memories[from], Out: c.memories[1-from], Root: c.random.IntN(ranks)}
	kinds := append(slices.Clone(routed), routed...)
	call.Kind = append(kinds, collective.AllGather, collective.SendReceive)[c.random.IntN(2*len(routed)+2)]
	call.Count = []uint64{3, 1000, uint64(len(c.want[0][0]) / ranks)}[c.random.IntN(3)]
	call.Choice = collective.Choice{Algorithm: "hier", Blocks: 2 + c.random.IntN(3), Threads: 32 + 16*c.random.IntN(3)}
	if call.Kind == collective.SendReceive || c.random.IntN(3) == 0 {
		call.Algorithm = "ports"
	}
	op, err := c.runner.Prepare(c.ctx, call)
	return &routedCall{call, op}, err
}

// do applies a call to what the memories must hold.
func (c *routedChain) do(call *routedCall) {
	from := slices.Index(c.memories[:], call.In)
	ranks, part := c.comm.Size(), int(call.Count)
	for rank := range ranks {
		for i := range call.Kind.OutParts(ranks) {
			if of, theirs := call.Kind.Internal().Sources(rank, i, ranks, call.Root); len(of) > 0 {
				copy(c.want[1-from][rank][i*part:], c.want[from][of[0]][theirs*part:][:part])
			}
		}
	}
}

// TestRoutesInTurn makes prepared calls at random, with nothing between them and in graphs that run several
// times. They go by rails, which share boxes, and in other ways; their grids, sizes and roots differ.
func TestRoutesInTurn(t *testing.T) {
	for seed, hosts := range [][]int{{0, 1, 1, 0}, {0, 1, 1, 2, 1}} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			runOnHosts(t, hosts, collective.Options{Scratch: 8 << 10}, func(m *member) error {
				const bytes = 20_000 // of many more pieces than there are slots
				c := &routedChain{member: m, random: rand.New(rand.NewPCG(7, uint64(seed)))}
				for i := range c.memories {
					for range hosts {
						values := make([]byte, bytes)
						for k := range values {
							values[k] = byte(c.random.Uint32())
						}
						c.want[i] = append(c.want[i], values)
					}
					b, err := gpu.Upload(m.comm.Device(), c.want[i][m.comm.Rank()])
					if err != nil {
						return err
					}
					if c.memories[i], err = m.runner.Share(m.ctx, b); err != nil {
						return err
					}
				}
				late := rand.New(rand.NewPCG(8, uint64(m.comm.Rank())))
				launch := func(calls []*routedCall) error {
					for _, call := range calls {
						if late.IntN(8) == 0 { // others are ahead, where they need nothing of this rank
							time.Sleep(4 * time.Millisecond)
						}
						if err := call.op.Launch(m.stream); err != nil {
							return err
						}
					}
					return nil
				}
				for range 12 {
					calls := make([]*routedCall, 12)
					for i := range calls {
						var err error
						if calls[i], err = c.next(); err != nil {
							return err
						}
					}
					alone, graphed := calls[:6], calls[6:]
					if err := errors.Join(launch(alone), m.stream.BeginCapture(), launch(graphed)); err != nil {
						return err
					}
					graph, err := m.stream.EndCapture()
					if err != nil {
						return err
					}
					err = errors.Join(graph.Launch(m.stream), graph.Launch(m.stream), launch(alone), graph.Launch(m.stream), m.comm.Synchronize(m.ctx, m.stream))
					if err = errors.Join(err, graph.Close()); err != nil {
						return err
					}
					for _, part := range [][]*routedCall{alone, graphed, graphed, alone, graphed} {
						for _, call := range part {
							c.do(call)
						}
					}
					for i, memory := range c.memories {
						got := make([]byte, bytes)
						if err := gpu.CopyOut(got, memory.Buffer); err != nil {
							return err
						}
						if diff := testcmp.Diff(c.want[i][m.comm.Rank()], got); diff != "" {
							return fmt.Errorf("rank %d: memory %d differs (-want +got):\n%.2000s", m.comm.Rank(), i, diff)
						}
					}
				}
				return nil
			})
		})
	}
}
