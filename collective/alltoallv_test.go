package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestAllToAllV exchanges parts of random sizes and places, some of none, with few and
// with many streams, of large slots and of small ones that are used again and again. No
// byte beside the parts may change.
func TestAllToAllV(t *testing.T) {
	for name, sizes := range map[string]groupSizes{
		"default":   defaultGroupSizes,
		"small":     tinyGroups,
		"no packet": unpackedGroups,
		"of 256":    oneLane(defaultGroupSizes.fitting(256, 0)),
	} {
		for _, ranks := range []int{1, 2, 3, 4} {
			t.Run(fmt.Sprintf("%s/ranks=%d", name, ranks), func(t *testing.T) {
				testgroup.Run(t, ranks, communicator.Options{Scratch: 256 << 10}, func(ctx context.Context, comm *communicator.Communicator) error {
					for _, link := range []string{"other", NVLink} {
						testerr.Check(t, withRunner(ctx, comm, Options{}, func(runner *Runner, stream *gpu.Stream) error {
							runner.groups.sizes, runner.link = sizes, link
							for round := range uint64(4) {
								if err := exchangeOnce(ctx, runner, stream, round); err != nil {
									return fmt.Errorf("%s, round %d: %w", link, round, err)
								}
							}
							return nil
						}))
					}
					return nil
				})
			})
		}
	}
}

// unpackedGroups have few lanes of small slots, and no packets.
var unpackedGroups = groupSizes{lanes: 6, keeps: 2, ofAll: 3, slot: 128, packetSlot: 2048, leastPacked: 512, least: 256, post: 1040, large: 2000, piece: 256, long: 2500, blocks: 3, threads: 64}

// oneLane returns sizes with one lane for each pair of ranks.
func oneLane(s groupSizes) groupSizes {
	s.lanes, s.ofAll = 1, 1
	return s
}

// withRunner calls f with a runner and a stream, which it closes if f returns nil.
func withRunner(ctx context.Context, comm *communicator.Communicator, o Options, f func(*Runner, *gpu.Stream) error) error {
	runner, err := New(ctx, comm, o)
	if err != nil {
		return err
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return err
	}
	if err := f(runner, stream); err != nil {
		return err
	}
	err = errors.Join(stream.Close(), runner.Close(ctx))
	if n := len(runner.hostPaths); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d host paths are left of a closed runner", n))
	}
	return err
}

// counts returns what each rank sends to each, in elements of 4 bytes: of any size, only
// to the last rank (a gather), only from rank 0 (a scatter), or nothing.
func exchangeCounts(ranks int, round uint64) [][]uint64 {
	random := rand.New(rand.NewPCG(round, uint64(ranks)))
	counts := make([][]uint64, ranks)
	for from := range counts {
		counts[from] = make([]uint64, ranks)
		for to := range ranks {
			most := []uint64{1, 30, 100, 5000, 60_000}[random.IntN(5)]
			switch n := random.Uint64N(most); {
			case round < 2 || round == 2 && to == ranks-1 || round == 3 && from == 0:
				counts[from][to] = n
			}
		}
	}
	return counts
}

// exchangeOnce makes the same all-to-all a few times in a row.
func exchangeOnce(ctx context.Context, r *Runner, stream *gpu.Stream, round uint64) error {
	comm, ranks, rank := r.comm, r.comm.Size(), r.comm.Rank()
	counts := exchangeCounts(ranks, round)
	value := func(from, to int, i uint64) uint32 { return uint32(from)<<28 | uint32(to)<<24 | uint32(i) }
	call := AllToAllV{Type: I32}
	var in, want []uint32
	const gap = 0xaaaaaaaa
	for peer := range ranks {
		for range peer % 3 { // so that parts lie in all ways to lines and words
			in, want = append(in, gap), append(want, gap)
		}
		call.Sends = append(call.Sends, Part{uint64(len(in)), counts[rank][peer]})
		for i := range counts[rank][peer] {
			in = append(in, value(rank, peer, i))
		}
		call.Receives = append(call.Receives, Part{uint64(len(want)), counts[peer][rank]})
		for i := range counts[peer][rank] {
			want = append(want, value(peer, rank, i))
		}
	}
	want = append(want, gap)
	out := make([]uint32, len(want))
	for i := range out {
		out[i] = gap
	}
	var err error
	if call.In, err = gpu.Upload(comm.Device(), append(in, gap)); err != nil {
		return err
	}
	if call.Out, err = gpu.Upload(comm.Device(), out); err != nil {
		return err
	}
	op, err := r.PrepareAllToAllV(ctx, call)
	if err != nil {
		return err
	}
	if err := errors.Join(op.Launch(stream), op.Launch(stream)); err != nil {
		return err
	}
	if err := comm.Synchronize(ctx, stream); err != nil {
		return err
	}
	if err := gpu.CopyOut(out, call.Out); err != nil {
		return err
	}
	for i := range want {
		if end := min(i+8, len(want)); want[i] != out[i] {
			return fmt.Errorf("rank %d: the output differs from element %d on (-want +got):\n%s", rank, i, cmp.Diff(want[i:end], out[i:end]))
		}
	}
	return errors.Join(op.Close(), call.In.Close(), call.Out.Close())
}

// TestBadAllToAllV refuses calls on all ranks, by what one of them has wrong.
func TestBadAllToAllV(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner := testerr.Must(New(ctx, comm, Options{}))(t)
		b := testerr.Must(comm.Device().Alloc(400))(t)
		in := testerr.Must(b.Slice(0, 200))(t)
		out := testerr.Must(b.Slice(200, 200))(t)
		closed := testerr.Must(comm.Device().Alloc(200))(t)
		testerr.Check(t, closed.Close())
		const huge = 1<<62 + 1
		for _, c := range []struct {
			want  string
			spoil func(*AllToAllV)
		}{
			{"no element", func(c *AllToAllV) { c.Type = 99 }},
			{"1 parts to send", func(c *AllToAllV) { c.Sends = c.Sends[:1] }},
			{"not inside", func(c *AllToAllV) { c.Sends[0].Count = 51 }},
			{"not inside", func(c *AllToAllV) { c.Sends[0].Count = huge }},
			{"not inside", func(c *AllToAllV) { c.Receives[0].At = 41 }},
			{"not inside", func(c *AllToAllV) { c.Receives[0].At = huge }},
			{"not inside", func(c *AllToAllV) { c.Out = nil }},
			{"overlaps with the part of rank", func(c *AllToAllV) { c.Receives[0].At = 11 }},
			{"part to send overlaps", func(c *AllToAllV) { c.Out = c.In }},
			{"to itself and receives", func(c *AllToAllV) { c.Sends[1].Count = 9 }},
			{"sends 9 elements to rank 0, which receives 10", func(c *AllToAllV) { c.Sends[0].Count = 9 }},
			{"are f16, rank 0's f32", func(c *AllToAllV) { c.Type = F16 }},
			{"are i32, rank 0's f32", func(c *AllToAllV) { c.Type = I32 }},
			{"closed", func(c *AllToAllV) { c.In = closed }},
		} {
			parts := func() []Part { return []Part{{0, 10}, {20, 10}} }
			call := AllToAllV{Type: F32, In: in, Out: out, Sends: parts(), Receives: parts()}
			if comm.Rank() == 1 {
				c.spoil(&call)
			}
			_, err := runner.PrepareAllToAllV(ctx, call)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, mscclgo.ErrInvalid) && !errors.Is(err, mscclgo.ErrRemote) {
				return fmt.Errorf("want %q: %v", c.want, err)
			}
		}
		return errors.Join(b.Close(), runner.Close(ctx))
	})
}

// TestUnequalCounts has a rank that does not expect what its peer sends, in packets,
// through slots and by posts: it says so.
func TestUnequalCounts(t *testing.T) {
	t.Parallel()
	for _, transports := range []registeredmem.Transports{0, registeredmem.Ethernet} {
		for _, count := range []uint64{10, 100_000} {
			if transports != 0 && count > 10 {
				continue // posts are alike for both
			}
			t.Run(fmt.Sprintf("%v/%d", transports, count), func(t *testing.T) {
				t.Parallel() // they wait
				o := communicator.Options{Timeout: 4 * time.Second, Transports: transports}
				testgroup.Run(t, 2, o, func(ctx context.Context, comm *communicator.Communicator) error {
					return unequalCounts(ctx, comm, count)
				})
			})
		}
	}
	// What one call sends must not be what another one waits for.
	for _, transports := range []registeredmem.Transports{0, registeredmem.Ethernet} {
		t.Run(fmt.Sprintf("%v/a call later", transports), func(t *testing.T) {
			t.Parallel()
			o := communicator.Options{Timeout: 4 * time.Second, Transports: transports}
			testgroup.Run(t, 2, o, aCallLater)
		})
	}
}

// aCallLater has rank 0 send in its second call what rank 1 receives in its first.
func aCallLater(ctx context.Context, comm *communicator.Communicator) error {
	return withRunner(ctx, comm, Options{}, func(runner *Runner, stream *gpu.Stream) error {
		b, err := gpu.Upload(comm.Device(), make([]float32, 2))
		if err != nil {
			return err
		}
		for call := range 2 {
			counts := [2][]uint64{{0, 0}, {0, 0}} // sent, as rank 0 does, and received
			if rank := comm.Rank(); call != rank {
				counts[rank][1-rank] = 1
			}
			if err := runner.AllToAllV(stream, b, b, counts[0], counts[1], F32); err != nil && comm.Err() == nil {
				return err
			}
		}
		if err := comm.Synchronize(ctx, stream); comm.Rank() == 1 && !saysOfRank0(err, "rank 0 sends 0 f32 to rank 1, which receives 1 f32 (message 0 from rank 0)") {
			return fmt.Errorf("what comes a call later: %v", err)
		}
		<-comm.Done()
		return nil
	})
}

// saysOfRank0 reports whether an error is of invalid use, concerns rank 0, and has a text.
func saysOfRank0(err error, text string) bool {
	var typed *mscclgo.Error
	return errors.As(err, &typed) && typed.Kind == mscclgo.ErrInvalid && typed.Peer == 0 && strings.Contains(err.Error(), text)
}

func unequalCounts(ctx context.Context, comm *communicator.Communicator, count uint64) error {
	return withRunner(ctx, comm, Options{}, func(runner *Runner, stream *gpu.Stream) error {
		var b [2]*gpu.Buffer
		for i := range b {
			var err error
			if b[i], err = comm.Device().Alloc(8 * count); err != nil {
				return err
			}
		}
		receives := []uint64{count, count}
		receives[0] -= uint64(comm.Rank())
		if err := runner.AllToAllV(stream, b[1], b[0], []uint64{count, count}, receives, F32); err != nil {
			return err
		}
		// Rank 0 may have all that it expects before the group fails.
		err := comm.Synchronize(ctx, stream)
		want := fmt.Sprintf("rank 0 sends %d f32 to rank 1, which receives %d f32 (message 0 from rank 0)", count, count-1)
		if comm.Rank() == 1 && !saysOfRank0(err, want) {
			return fmt.Errorf("a count that differs: %v", err)
		}
		<-comm.Done()
		return nil
	})
}

// TestAlone has one rank make a call that the other does not.
func TestAlone(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{Timeout: 4 * time.Second}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner := testerr.Must(New(ctx, comm, Options{}))(t)
		op := testerr.Must(runner.PrepareAllToAllV(ctx, AllToAllV{Sends: make([]Part, 2), Receives: make([]Part, 2)}))(t)
		stream := testerr.Must(comm.Device().NewStream())(t)
		if comm.Rank() == 0 {
			testerr.Check(t, op.Launch(stream))
			if err := comm.Synchronize(ctx, stream); !errors.Is(err, mscclgo.ErrTimeout) {
				return fmt.Errorf("an exchange by oneself: %v", err)
			}
		} else {
			<-comm.Done()
		}
		return errors.Join(stream.Close(), runner.Close(ctx))
	})
}

// TestAllToAllVOnHosts has ranks on several hosts, with posts for many pieces and for few.
func TestAllToAllVOnHosts(t *testing.T) {
	for _, c := range []struct {
		hosts   []int
		scratch uint64
	}{{[]int{0, 1}, 4 << 10}, {[]int{0, 0, 1}, 16 << 10}, {[]int{0, 0, 0, 1, 2, 2}, 64 << 10}, {[]int{0, 1, 2, 3}, 0}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			testgroup.RunEach(t, testgroup.Network(c.hosts...), func(ctx context.Context, comm *communicator.Communicator) error {
				return withRunner(ctx, comm, Options{Scratch: c.scratch}, func(runner *Runner, stream *gpu.Stream) error {
					for round := range uint64(4) {
						if err := exchangeOnce(ctx, runner, stream, round); err != nil {
							return fmt.Errorf("round %d: %w", round, err)
						}
					}
					return nil
				})
			})
		})
	}
}
