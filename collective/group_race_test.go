package collective

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// findRaces runs a test on ranks of hosts under the race finder, and returns what it finds.
func findRaces(t *testing.T, hosts []int, sizes groupSizes, link string, test func(*groupMember) error) []gpu.Race {
	t.Helper()
	if testdev.CUDA() {
		t.Skip("races are found on emulated devices")
	}
	finder, err := gpu.FindRaces()
	testerr.Check(t, err)
	t.Cleanup(func() { finder.Close() }) // after the devices
	runGroupsOnHosts(t, hosts, sizes, link, func(m *groupMember) error {
		return errors.Join(m.runner.LoadGroups(m.ctx), test(m))
	})
	races, unwatched, err := finder.Races()
	if err != nil || len(unwatched) > 0 {
		t.Fatalf("the finder says %q, %v", unwatched, err)
	}
	return races
}

// TestGroupNoRaces plays random schedules on several streams, and replays a graph. A short run has one link
// for each arrangement of hosts.
func TestGroupNoRaces(t *testing.T) {
	detector.SkipKernels(t)
	for i, hosts := range [][]int{{0, 0}, {0, 0, 0, 0}, {0, 1}, {0, 1, 0, 2}} {
		ranks := len(hosts)
		for j, link := range []string{"other", NVLink} {
			if testing.Short() && (i+i/2+j)%2 == 0 {
				continue
			}
			t.Run(fmt.Sprint(hosts, link), func(t *testing.T) {
				races := findRaces(t, hosts, tinyGroups, link, func(m *groupMember) error {
					other, err := m.comm.NewStream()
					if err != nil {
						return err
					}
					s := newSchedule(rand.New(rand.NewPCG(3, uint64(ranks))), ranks, 120, []uint64{0, 8, 600, 5000, 20_000})
					if err := m.play(s, 3, []*gpu.Stream{m.stream, other}); err != nil {
						return err
					}
					if err := errors.Join(m.shift(5), other.Close()); err != nil || slices.Max(hosts) > 0 {
						return err
					}
					return m.mix(100)
				})
				for _, r := range races {
					t.Errorf("%v", r)
				}
			})
		}
	}
}

// TestBriefNoRaces plays rounds of messages that go in one chunk of packets, and larger ones.
func TestBriefNoRaces(t *testing.T) {
	detector.SkipKernels(t)
	for _, link := range []string{"other", NVLink} {
		t.Run(link, func(t *testing.T) {
			races := findRaces(t, []int{0, 0, 0}, briefSizes, link, func(m *groupMember) error {
				s := newRounds(rand.New(rand.NewPCG(5, 5)), 3, 40, []uint64{0, 8, 600, 2500, 20_000})
				return errors.Join(m.play(s, 5, []*gpu.Stream{m.stream}), m.shift(5))
			})
			for _, r := range races {
				t.Errorf("%v", r)
			}
		})
	}
}

// shift launches a graph so often, in which each rank passes on what it has got from the one before.
func (m *groupMember) shift(times int) error {
	rank, ranks := m.comm.Rank(), m.comm.Size()
	const count = 3000
	ring, err := gpu.Upload(m.comm.Device(), make([]float32, 2*count))
	if err != nil {
		return err
	}
	out, outErr := ring.Slice(0, 4*count)
	in, inErr := ring.Slice(4*count, 4*count)
	if err := errors.Join(outErr, inErr); err != nil {
		return err
	}
	graph, err := capture(m.stream, func() error {
		g := m.runner.Group()
		g.Send(m.stream, out, count, F32, (rank+1)%ranks)
		g.Recv(m.stream, in, count, F32, (rank+ranks-1)%ranks)
		return errors.Join(g.Launch(), m.stream.Copy(out, 0, in, 0, 4*count))
	})
	if err != nil {
		return err
	}
	for range times {
		if err := graph.Launch(m.stream); err != nil {
			return err
		}
	}
	return errors.Join(m.comm.Synchronize(m.ctx, m.stream), m.comm.Barrier(m.ctx), graph.Close(), ring.Close())
}

// mix passes on, so often in one group, a message that is copied through slots and some that are
// packets: the sender may learn of an emptied slot for data by the count for one of packets.
func (m *groupMember) mix(times int) error {
	rank, ranks := m.comm.Rank(), m.comm.Size()
	const count = 10_001
	out, outErr := gpu.Upload(m.comm.Device(), make([]float32, count))
	in, inErr := m.comm.Device().Alloc(4 * uint64(times) * (count + 6))
	if err := errors.Join(outErr, inErr); err != nil {
		return err
	}
	g, at := m.runner.Group(), uint64(0)
	for range times {
		for _, n := range []uint64{count, 1, 2, 3} {
			place, err := in.Slice(at, 4*n)
			if err != nil {
				return err
			}
			at += 4 * n
			g.Send(m.stream, out, n, F32, (rank+1)%ranks)
			g.Recv(m.stream, place, n, F32, (rank+ranks-1)%ranks)
		}
	}
	return errors.Join(g.Launch(), m.comm.Synchronize(m.ctx, m.stream), m.comm.Barrier(m.ctx), out.Close(), in.Close())
}

// groupMistakes are mistakes with a group that sends out to the other rank and receives in. The
// line that makes a mistake ends with its name.
var groupMistakes = []struct {
	name string
	run  func(m *groupMember, g *Group, out, in *gpu.Buffer, other *gpu.Stream, mended bool) error
}{
	{"readTooEarly", func(m *groupMember, g *Group, out, in *gpu.Buffer, _ *gpu.Stream, mended bool) error {
		if err := m.pass(g, out, in, m.stream); err != nil {
			return err
		}
		if mended {
			if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
				return err
			}
		}
		return gpu.CopyOut(make([]byte, in.Size()), in) // readTooEarly
	}},
	{"writtenTooEarly", func(m *groupMember, g *Group, out, in *gpu.Buffer, _ *gpu.Stream, mended bool) error {
		if err := m.pass(g, out, in, m.stream); err != nil {
			return err
		}
		if mended {
			if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
				return err
			}
		}
		return gpu.CopyIn(out, make([]byte, out.Size())) // writtenTooEarly
	}},
	// A stream of a message waits for the group, and no other one.
	{"notOnStream", func(m *groupMember, g *Group, out, in *gpu.Buffer, other *gpu.Stream, mended bool) error {
		receives := m.stream
		if mended {
			receives = other
		}
		if err := m.pass(g, out, in, receives); err != nil {
			return err
		}
		return other.Fill(in, 0, 1, in.Size()) // notOnStream
	}},
}

// pass launches a group of a send to the other of two ranks and a receive on a stream.
func (m *groupMember) pass(g *Group, out, in *gpu.Buffer, receives *gpu.Stream) error {
	peer := 1 - m.comm.Rank()
	g.Send(m.stream, out, out.Size(), U8, peer)
	g.Recv(receives, in, in.Size(), U8, peer)
	return g.Launch()
}

// TestGroupMistakes finds each mistake at its line, and nothing where it is mended: with buffers that are
// shared, in which the peer stores what is received, and with others.
func TestGroupMistakes(t *testing.T) {
	detector.SkipKernels(t)
	source, err := os.ReadFile("group_race_test.go")
	if err != nil {
		t.Skip("the sources are not here:", err)
	}
	for _, c := range groupMistakes {
		line := 0
		for i, text := range strings.Split(string(source), "\n") {
			if strings.HasSuffix(text, " // "+c.name) {
				line = i + 1
			}
		}
		for i := range 4 {
			mended, shares := i%2 == 1, i/2 == 1
			t.Run(fmt.Sprintf("%s/mended=%v/shared=%v", c.name, mended, shares), func(t *testing.T) {
				races := findRaces(t, []int{0, 0}, tinyGroups, "other", func(m *groupMember) error {
					other, err := m.comm.NewStream()
					if err != nil {
						return err
					}
					both, err := gpu.Upload(m.comm.Device(), make([]byte, 8192))
					if err != nil {
						return err
					}
					out, outErr := both.Slice(0, 4096)
					in, inErr := both.Slice(4096, 4096)
					if err := errors.Join(outErr, inErr); err != nil {
						return err
					}
					var memory *Memory
					if shares {
						if memory, err = m.runner.Share(m.ctx, both); err != nil {
							return err
						}
					}
					err = c.run(m, m.runner.Group(), out, in, other, mended)
					return errors.Join(err, m.comm.Synchronize(m.ctx, m.stream), m.comm.Synchronize(m.ctx, other), m.comm.Barrier(m.ctx), memory.Close(m.ctx), other.Close(), both.Close())
				})
				at, found := fmt.Sprintf("group_race_test.go:%d ", line), false
				for _, r := range races {
					first, second := r.First.Place+" ", r.Second.Place+" "
					if !strings.HasPrefix(first, at) && !strings.HasPrefix(second, at) || !strings.Contains(first+second, "group.cu") || mended {
						t.Errorf("this is no mistake of the test:\n%v", r)
					}
					found = true
				}
				if found == mended {
					t.Errorf("%d races", len(races))
				}
			})
		}
	}
}
