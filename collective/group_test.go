package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// tinyGroups has small slots, which are used again and again, and few workers.
var tinyGroups = groupSizes{lanes: 12, keeps: 4, ofAll: 12, slot: 1024, packetSlot: 16 << 10, packets: 40_000, packets16: 20_000, leastPacked: 512, least: 1024, post: 1040, large: 2000, piece: 256, long: 2500, blocks: 3, threads: 64}

// groupMember is a rank of a test.
type groupMember struct {
	ctx    context.Context
	comm   *communicator.Communicator
	runner *Runner
	stream *gpu.Stream
}

// runGroups runs a test on so many ranks.
func runGroups(t *testing.T, ranks int, sizes groupSizes, link string, test func(*groupMember) error) {
	t.Helper()
	testgroup.Run(t, ranks, communicator.Options{}, groupTest(sizes, link, test))
}

// runGroupsOnHosts runs a test on ranks of hosts that the network joins. Rank i is on host number
// hosts[i].
func runGroupsOnHosts(t *testing.T, hosts []int, sizes groupSizes, link string, test func(*groupMember) error) {
	t.Helper()
	n := slices.Max(hosts) + 1
	if n == 1 {
		runGroups(t, len(hosts), sizes, link, test)
		return
	}
	testgroup.RunEach(t, testgroup.Network(hosts...), groupTest(sizes, link, func(m *groupMember) error {
		if all := m.comm.Hosts(); len(all) != n {
			return fmt.Errorf("the hosts are %v, want %d", all, n)
		}
		return test(m)
	}))
}

// runGroupsOnEach runs a test on each of several sets of hosts.
func runGroupsOnEach(t *testing.T, sets [][]int, sizes groupSizes, link string, test func(*groupMember) error) {
	t.Helper()
	for _, hosts := range sets {
		t.Run("hosts "+fmt.Sprint(hosts), func(t *testing.T) { runGroupsOnHosts(t, hosts, sizes, link, test) })
	}
}

// groupTest returns what runs a test on a rank of a group.
func groupTest(sizes groupSizes, link string, test func(*groupMember) error) func(context.Context, *communicator.Communicator) error {
	return func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := New(ctx, comm, Options{})
		if err != nil {
			return err
		}
		runner.groups.sizes, runner.link = sizes, link
		stream, err := comm.Device().NewStream()
		if err != nil {
			return err
		}
		m := &groupMember{ctx, comm, runner, stream}
		if err := test(m); err != nil {
			return err
		}
		// Where the group has failed, its kernels still have to end.
		if err := stream.Synchronize(ctx); err != nil && comm.Err() == nil {
			return err
		}
		return errors.Join(stream.Close(), runner.Close(ctx))
	}
}

// letter is a message of a schedule.
type letter struct {
	from, to int
	typ      Type
	count    uint64
	seed     uint64
	out, in  uint64 // where it is in the buffers of the two ranks
}

func (l *letter) bytes() uint64 { return l.count * uint64(l.typ.Size()) }

// fill writes what the message holds.
func (l *letter) fill(b []byte) {
	state := l.seed
	for i := range b {
		state = state*6364136223846793005 + 1442695040888963407
		b[i] = byte(state >> 56)
	}
}

// schedule is messages in an order. Each rank sends and receives its messages in that order, cut
// into groups anywhere, so that there is no deadlock.
type schedule struct {
	letters []letter
	out, in []uint64 // bytes of each rank's buffers
	rounds  int      // letters between which groups are cut, or 0
}

// newSchedule returns random messages, and among them some between different ranks of just these
// numbers of bytes, which are multiples of 8.
func newSchedule(random *rand.Rand, ranks, messages int, most []uint64, large ...uint64) *schedule {
	s := &schedule{out: make([]uint64, ranks), in: make([]uint64, ranks)}
	every := messages/(len(large)+1) + 1
	for i := range messages {
		s.write(random, random.IntN(ranks), random.IntN(ranks), most)
		if i%every == every-1 {
			from := random.IntN(ranks)
			s.put(random, from, (from+1+random.IntN(ranks-1))%ranks, large[i/every])
		}
	}
	s.end()
	return s
}

// newRounds returns a schedule of rounds, in each of which every rank has a message for every other.
func newRounds(random *rand.Rand, ranks, rounds int, most []uint64) *schedule {
	s := &schedule{out: make([]uint64, ranks), in: make([]uint64, ranks), rounds: ranks * (ranks - 1)}
	for range rounds {
		for from := range ranks {
			for k := 1; k < ranks; k++ {
				s.write(random, from, (from+k)%ranks, most)
			}
		}
	}
	s.end()
	return s
}

// write adds a letter of up to as many bytes as one of most says.
func (s *schedule) write(random *rand.Rand, from, to int, most []uint64) {
	n := most[random.IntN(len(most))]
	if n > 0 {
		n = random.Uint64N(n + 1)
	}
	s.put(random, from, to, n)
}

// put adds a letter of so many bytes, or somewhat fewer if they are no whole elements.
func (s *schedule) put(random *rand.Rand, from, to int, bytes uint64) {
	l := letter{from: from, to: to, typ: Type(random.IntN(len(typeSpecs))), seed: random.Uint64()}
	l.count = bytes / uint64(l.typ.Size())
	l.out = s.out[l.from] + random.Uint64N(20)
	l.in = s.in[l.to] + random.Uint64N(20)
	s.out[l.from], s.in[l.to] = l.out+l.bytes(), l.in+l.bytes()
	s.letters = append(s.letters, l)
}

// end makes room behind the letters.
func (s *schedule) end() {
	for rank := range s.out {
		s.out[rank] += 20
		s.in[rank] += 20
	}
}

// cut returns how many of a rank's letters that are left, by their numbers, go in its next group.
func (s *schedule) cut(left []int, random *rand.Rand) int {
	if s.rounds == 0 {
		return min(len(left), 1+random.IntN([]int{3, 20, 300}[random.IntN(3)]))
	}
	// As a rule a round, and now and then several.
	end := (left[0]/s.rounds + []int{1, 1, 1, 1, 6}[random.IntN(5)]) * s.rounds
	n, _ := slices.BinarySearch(left, end)
	return n
}

// buffers returns a rank's buffers, and what the second one holds in the end.
func (s *schedule) buffers(d *gpu.Device, rank int) (out, in *gpu.Buffer, want []byte, err error) {
	data := make([]byte, s.out[rank])
	want = bytes.Repeat([]byte{0xa5}, int(s.in[rank]))
	if in, err = gpu.Upload(d, want); err != nil {
		return
	}
	for i := range s.letters {
		l := &s.letters[i]
		if l.from == rank {
			l.fill(data[l.out : l.out+l.bytes()])
		}
		if l.to == rank {
			l.fill(want[l.in : l.in+l.bytes()])
		}
	}
	out, err = gpu.Upload(d, data)
	return
}

// add adds a rank's part of some messages to a group: the halves of each pair in order, and
// otherwise in a random one.
func (s *schedule) add(g *Group, stream func() *gpu.Stream, letters []int, out, in *gpu.Buffer, rank int, random *rand.Rand) error {
	queues := map[[2]int][]int{}
	var left [][2]int
	for _, i := range letters {
		l := &s.letters[i]
		for half, at := range []int{l.from, l.to} {
			if at == rank {
				key := [2]int{half, l.from ^ l.to<<8}
				queues[key] = append(queues[key], i)
				left = append(left, key)
			}
		}
	}
	random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	for _, key := range left {
		l := &s.letters[queues[key][0]]
		queues[key] = queues[key][1:]
		if key[0] == 0 {
			b, err := out.Slice(l.out, l.bytes())
			if err != nil {
				return err
			}
			g.Send(stream(), b, l.count, l.typ, l.to)
			continue
		}
		b, err := in.Slice(l.in, l.bytes())
		if err != nil {
			return err
		}
		g.Recv(stream(), b, l.count, l.typ, l.from)
	}
	return nil
}

// play makes a rank's groups of a schedule. Three quarters of what they receive is in memory that the ranks
// share, where large messages may be stored by their senders.
func (m *groupMember) play(s *schedule, seed uint64, streams []*gpu.Stream) error {
	rank := m.comm.Rank()
	random := rand.New(rand.NewPCG(seed, uint64(rank)))
	out, in, want, err := s.buffers(m.comm.Device(), rank)
	if err != nil {
		return err
	}
	part, err := in.Slice(0, in.Size()/4*3)
	if err != nil {
		return err
	}
	shared, err := m.runner.Share(m.ctx, part)
	if err != nil {
		return err
	}
	var mine []int
	for i := range s.letters {
		if l := &s.letters[i]; l.from == rank || l.to == rank {
			mine = append(mine, i)
		}
	}
	g := m.runner.Group()
	for len(mine) > 0 {
		n := s.cut(mine, random)
		stream := func() *gpu.Stream { return streams[random.IntN(len(streams))] }
		if err := s.add(g, stream, mine[:n], out, in, rank, random); err != nil {
			return err
		}
		if err := g.Launch(); err != nil {
			return err
		}
		mine = mine[n:]
		if random.IntN(8) == 0 { // ranks are late now and then
			time.Sleep(time.Duration(random.IntN(5)) * time.Millisecond)
		}
	}
	for _, stream := range streams {
		if err := m.comm.Synchronize(m.ctx, stream); err != nil {
			return err
		}
	}
	got := make([]byte, len(want))
	if err := gpu.CopyOut(got, in); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		what := "no message"
		for i := range s.letters {
			if l := &s.letters[i]; l.to == rank && uint64(at) >= l.in && uint64(at) < l.in+l.bytes() {
				what = fmt.Sprintf("byte %d of message %d, %d bytes from rank %d", uint64(at)-l.in, i, l.bytes(), l.from)
			}
		}
		return fmt.Errorf("rank %d: byte %d is %#x, not %#x: %s", rank, at, got[at], want[at], what)
	}
	return errors.Join(shared.Close(m.ctx), out.Close(), in.Close())
}

// TestGroups plays random schedules of thousands of messages.
func TestGroups(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		for _, link := range []string{"other", NVLink} {
			t.Run(fmt.Sprintf("%d/%s", ranks, link), func(t *testing.T) {
				messages := 1500
				if testing.Short() {
					messages = 300
				}
				runGroups(t, ranks, tinyGroups, link, func(m *groupMember) error {
					if err := m.runner.LoadGroups(m.ctx); err != nil {
						return err
					}
					for seed := range uint64(2) {
						s := newSchedule(rand.New(rand.NewPCG(seed, uint64(ranks))), ranks, messages, []uint64{0, 8, 100, 600, 5000, 50_000})
						if err := m.play(s, seed, []*gpu.Stream{m.stream}); err != nil {
							return fmt.Errorf("schedule %d: %w", seed, err)
						}
					}
					return nil
				})
			})
		}
	}
}

// briefSizes have blocks enough that each has a task of its own, and threads enough that most tasks are
// brief.
var briefSizes = groupSizes{lanes: 12, keeps: 4, ofAll: 12, slot: 1024, packetSlot: 16 << 10, packets: 40_000, packets16: 20_000, leastPacked: 512, least: 1024, post: 1040, large: 4000, piece: 512, blocks: 64, threads: 96}

// TestBriefGroups plays rounds of one message for each rank to each, which the kernels do in one go where
// they are small, between larger ones and groups of several rounds; also where flags repeat.
func TestBriefGroups(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		for _, link := range []string{"other", NVLink} {
			for _, start := range []uint64{0, 1<<31 - 30, 1<<64 - 30} {
				t.Run(fmt.Sprintf("%d/%s/%#x", ranks, link, start), func(t *testing.T) {
					runGroups(t, ranks, briefSizes, link, func(m *groupMember) error {
						if err := m.runner.LoadGroups(m.ctx); err != nil {
							return err
						}
						if start > 0 {
							if err := m.startAt(start); err != nil {
								return err
							}
						}
						s := newRounds(rand.New(rand.NewPCG(start, uint64(ranks))), ranks, 120, []uint64{0, 8, 600, 600, 2500, 2500, 50_000})
						return m.play(s, start, []*gpu.Stream{m.stream})
					})
				})
			}
		}
	}
}

// TestFullLane has a rank whose lane to a slow peer is full when its next group begins. There it sends to
// another rank, which receives the message only after it has heard from the slow peer.
func TestFullLane(t *testing.T) {
	const big, each = 64 << 20, 8
	sizes := briefSizes
	sizes.keeps, sizes.slot = 1, 16<<20
	testgroup.Run(t, 3, communicator.Options{Timeout: 15 * time.Second}, func(ctx context.Context, comm *communicator.Communicator) error {
		sizes := sizes
		if comm.Rank() == 1 {
			sizes.blocks = 1
		}
		return groupTest(sizes, "other", func(m *groupMember) error {
			b, err := m.comm.Device().Alloc(2*big + groupSlots*each)
			if err != nil {
				return err
			}
			part := func(at, n uint64) *gpu.Buffer {
				slice, sliceErr := b.Slice(at, n)
				err = errors.Join(err, sliceErr)
				return slice
			}
			at := func(i uint64) *gpu.Buffer { return part(2*big+i*each, each) }
			if err := errors.Join(m.runner.LoadGroups(m.ctx), m.comm.Barrier(m.ctx)); err != nil {
				return err
			}
			g, s := m.runner.Group(), m.stream
			launch := func() { err = errors.Join(err, g.Launch()) }
			switch m.comm.Rank() {
			case 0:
				for i := range uint64(groupSlots) {
					g.Send(s, at(i), each, U8, 1)
				}
				launch()
				g.Send(s, at(0), each, U8, 1)
				g.Send(s, at(0), each, U8, 2)
				launch()
			case 1:
				g.Send(s, part(0, big), big, U8, 1) // which takes a while
				g.Recv(s, part(big, big), big, U8, 1)
				for i := range uint64(groupSlots) {
					g.Recv(s, at(i), each, U8, 0)
				}
				launch()
				g.Recv(s, at(0), each, U8, 0)
				launch()
				g.Send(s, at(0), each, U8, 2)
				launch()
			case 2:
				g.Recv(s, at(0), each, U8, 1)
				launch()
				g.Recv(s, at(0), each, U8, 0)
				launch()
			}
			return errors.Join(err, m.comm.Synchronize(m.ctx, s), m.comm.Barrier(m.ctx), b.Close())
		})(ctx, comm)
	})
}

// TestLargeGroups has messages of up to 64 MiB among many small ones, in the sizes that users get.
func TestLargeGroups(t *testing.T) {
	testdev.Parallel(t)
	detector.SkipKernels(t)
	for _, link := range []string{"other", NVLink} {
		for _, ranks := range []int{2, 4} {
			t.Run(fmt.Sprintf("%d/%s", ranks, link), func(t *testing.T) {
				runGroups(t, ranks, defaultGroupSizes, link, func(m *groupMember) error {
					if err := m.runner.LoadGroups(m.ctx); err != nil {
						return err
					}
					s := newSchedule(rand.New(rand.NewPCG(7, uint64(ranks))), ranks, 1000, []uint64{0, 8, 100, 5000, 100_000}, 16<<20, 64<<20, 5<<20)
					return m.play(s, 7, []*gpu.Stream{m.stream})
				})
			})
		}
	}
}

// TestGroupCounts plays schedules with all counts, of chunks and messages, just below where
// flags repeat, and below where they wrap around.
func TestGroupCounts(t *testing.T) {
	testdev.Parallel(t)
	const flags = 1 << 31
	for _, start := range []uint64{flags - 2, 5*flags - 3, 1<<32 - 2, 1<<63 - 2, 1<<64 - 3} {
		for _, link := range []string{"other", NVLink} {
			t.Run(fmt.Sprintf("%#x/%s", start, link), func(t *testing.T) {
				runGroupsOnEach(t, [][]int{{0, 0, 0}, {0, 0, 1}}, tinyGroups, link, func(m *groupMember) error {
					if err := m.runner.LoadGroups(m.ctx); err != nil {
						return err
					}
					if err := m.startAt(start); err != nil {
						return err
					}
					s := newSchedule(rand.New(rand.NewPCG(start, 3)), 3, 200, []uint64{100, 5000, 50_000})
					if err := m.play(s, start, []*gpu.Stream{m.stream}); err != nil {
						return err
					}
					return m.cleared(start)
				})
			})
		}
	}
}

// cleared returns an error if a packet of startAt is left in a slot that was used since.
func (m *groupMember) cleared(start uint64) error {
	g := &m.runner.groups
	ranks, lanes := uint64(m.runner.group.Size), g.lanes(m.runner)
	if ranks == 1 {
		return m.comm.Barrier(m.ctx)
	}
	counts, _, packets, end := g.sizes.boxLayout(ranks, lanes)
	if err := m.comm.Barrier(m.ctx); err != nil { // all have ended their groups
		return err
	}
	all := make([]byte, end)
	head, err := g.box.Buffer.Slice(0, end)
	if err != nil {
		return err
	}
	if err := gpu.CopyOut(all, head); err != nil {
		return err
	}
	used := false
	for ring := range ranks * lanes {
		received := binary.LittleEndian.Uint64(all[counts+(2*ranks*lanes+ring)*8:])
		if received-start < groupSlots {
			continue
		}
		used = true
		for slot := range uint64(groupSlots) {
			b := all[packets+(ring*groupSlots+slot)*g.sizes.packetSlot:][:g.sizes.packetSlot]
			if left := binary.LittleEndian.Uint32(b[len(b)-4:]); left != 0 { // no message is that long
				return fmt.Errorf("slot %d of ring %d, of which %d chunks were received, has flag %d", slot, ring, received-start, left)
			}
		}
	}
	if !used {
		return errors.New("no lane had its counts repeat")
	}
	return nil
}

// startAt sets all counts of a box, and the counts of messages between hosts. The box's slots hold packets of
// long ago: with the very flags that come when these repeat.
func (m *groupMember) startAt(start uint64) error {
	g := &m.runner.groups
	ranks, lanes := uint64(m.runner.group.Size), g.lanes(m.runner)
	counts, n, packets, end := g.sizes.boxLayout(ranks, lanes)
	var words []byte
	for range n {
		words = binary.LittleEndian.AppendUint64(words, start)
	}
	at, err := g.box.Buffer.Slice(counts, uint64(len(words)))
	if err != nil {
		return err
	}
	if err := gpu.CopyIn(at, words); err != nil {
		return err
	}
	slots, err := g.box.Buffer.Slice(packets, end-packets)
	if err != nil {
		return err
	}
	old := make([]byte, end-packets)
	const flags = 1 << 31
	for c := start; c%flags != 0 && c-start < groupSlots; c++ { // of the slots that are used before
		slot := c % groupSlots
		for ring := range ranks * lanes {
			b := old[(ring*groupSlots+slot)*g.sizes.packetSlot:][:g.sizes.packetSlot]
			for i := 0; i < len(b); i += 4 {
				binary.LittleEndian.PutUint32(b[i:], uint32(slot)+1)
			}
		}
	}
	if err := gpu.CopyIn(slots, old); err != nil {
		return err
	}
	if far := m.runner.hostPaths[pathKey{groupsUse, nil, nil}]; far != nil {
		if err := gpu.CopyIn(far.buffers[postsCounts], slices.Repeat([]uint64{start}, 2*m.comm.Size())); err != nil {
			return err
		}
	}
	return m.comm.Barrier(m.ctx)
}

// TestGroupStreams has messages of a group on several streams: it begins when the work before
// on each is done, and each goes on behind it.
func TestGroupStreams(t *testing.T) {
	runGroupsOnEach(t, [][]int{{0, 0, 0}, {0, 1, 1}}, tinyGroups, NVLink, func(m *groupMember) error {
		if err := m.runner.LoadGroups(m.ctx); err != nil {
			return err
		}
		streams := []*gpu.Stream{m.stream}
		for range 2 {
			s, err := m.comm.Device().NewStream()
			if err != nil {
				return err
			}
			streams = append(streams, s)
		}
		s := newSchedule(rand.New(rand.NewPCG(1, 3)), 3, 100, []uint64{100, 5000})
		if err := m.play(s, 1, streams); err != nil {
			return err
		}
		// A ring shift of what another stream writes, read by a third.
		const n, rounds = 300_000, 20
		rank, ranks := m.comm.Rank(), m.comm.Size()
		bufs := make([]*gpu.Buffer, 3)
		for i := range bufs {
			var err error
			if bufs[i], err = m.comm.Device().Alloc([]uint64{n, n, rounds * n}[i]); err != nil {
				return err
			}
		}
		g := m.runner.Group()
		for round := range rounds {
			if err := streams[1].Fill(bufs[0], 0, byte(10*round+rank), n); err != nil {
				return err
			}
			// The kernel is on the stream of the first; the other goes on behind it.
			if round%2 == 0 {
				g.Recv(streams[2], bufs[1], n, U8, (rank+ranks-1)%ranks)
			}
			g.Send(streams[1], bufs[0], n, U8, (rank+1)%ranks)
			if round%2 == 1 {
				g.Recv(streams[2], bufs[1], n, U8, (rank+ranks-1)%ranks)
			}
			if err := g.Launch(); err != nil {
				return err
			}
			// The next round overwrites what was sent and what was received.
			if err := streams[2].Copy(bufs[2], uint64(round)*n, bufs[1], 0, n); err != nil {
				return err
			}
		}
		if err := m.comm.Synchronize(m.ctx, streams[2]); err != nil {
			return err
		}
		all := make([]byte, rounds*n)
		if err := gpu.CopyOut(all, bufs[2]); err != nil {
			return err
		}
		for round := range rounds {
			got := all[round*n : (round+1)*n]
			if want := byte(10*round + (rank+ranks-1)%ranks); !bytes.Equal(got, bytes.Repeat([]byte{want}, n)) {
				return fmt.Errorf("rank %d: round %d left %d..%d, not %d", rank, round, got[0], got[n-1], want)
			}
		}
		for _, b := range bufs {
			if err := b.Close(); err != nil {
				return err
			}
		}
		return errors.Join(streams[1].Close(), streams[2].Close())
	})
}

// TestGroupGraphs captures groups, with few messages and with more than go with the kernel's
// parameters, and replays them, with other groups and collective calls in between. Rank 2
// has no part in the groups.
func TestGroupGraphs(t *testing.T) {
	runGroupsOnEach(t, [][]int{{0, 0, 0}, {0, 1, 1}}, tinyGroups, "other", func(m *groupMember) error {
		if err := m.runner.LoadGroups(m.ctx); err != nil {
			return err
		}
		rank := m.comm.Rank()
		sum, err := gpu.Upload(m.comm.Device(), []int32{1})
		if err != nil {
			return err
		}
		if err := m.runner.AllReduce(m.stream, sum, sum, 1, I32, Sum); err != nil {
			return err
		}
		if rank < 2 {
			if err := m.replay(); err != nil {
				return err
			}
		}
		if err := m.runner.AllReduce(m.stream, sum, sum, 1, I32, Sum); err != nil {
			return err
		}
		if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
			return err
		}
		var got [1]int32
		if err := gpu.CopyOut(got[:], sum); err != nil {
			return err
		}
		if got[0] != 9 {
			return fmt.Errorf("the sum is %d", got[0])
		}
		return sum.Close()
	})
}

// capture returns the graph of what queue queues.
func capture(s *gpu.Stream, queue func() error) (*gpu.Graph, error) {
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	err := queue()
	g, end := s.EndCapture()
	if err = errors.Join(err, end); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// replay launches graphs of ranks 0 and 1.
func (m *groupMember) replay() error {
	const n = 200
	rank, peer := m.comm.Rank(), 1-m.comm.Rank()
	side, err := m.comm.Device().NewStream()
	if err != nil {
		return err
	}
	for _, messages := range []int{3, 150} {
		out, err := m.comm.Device().Alloc(uint64(messages) * n)
		if err != nil {
			return err
		}
		in, err := m.comm.Device().Alloc(uint64(messages) * n)
		if err != nil {
			return err
		}
		exchange := func(side *gpu.Stream) error {
			g := m.runner.Group()
			for i := range uint64(messages) {
				from, err := out.Slice(i*n, n)
				if err != nil {
					return err
				}
				to, err := in.Slice(i*n, n)
				if err != nil {
					return err
				}
				g.Send(m.stream, from, n, U8, peer)
				g.Recv(side, to, n, U8, peer)
			}
			return g.Launch()
		}
		fork, err := m.comm.Device().NewEvent()
		if err != nil {
			return err
		}
		graph, err := capture(m.stream, func() error {
			err := errors.Join(m.stream.Record(fork), side.Wait(fork))
			return errors.Join(err, exchange(side), side.Record(fork), m.stream.Wait(fork))
		})
		if err != nil {
			return err
		}
		for round := range 12 {
			content := make([]byte, messages*n)
			for i := range content {
				content[i] = byte(i*7 + round*31 + rank)
			}
			if err := gpu.CopyIn(out, content); err != nil {
				return err
			}
			if round%3 == 2 {
				err = exchange(m.stream)
			} else {
				err = graph.Launch(m.stream)
			}
			if err != nil {
				return err
			}
			if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
				return err
			}
			got := make([]byte, len(content))
			if err := gpu.CopyOut(got, in); err != nil {
				return err
			}
			for i := range got {
				if want := byte(i*7 + round*31 + peer); got[i] != want {
					return fmt.Errorf("round %d: byte %d is %d, not %d", round, i, got[i], want)
				}
			}
		}
		if err := in.Close(); err != nil {
			return err
		}
		if err := graph.Launch(m.stream); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "a buffer of 200 bytes, which its calls use, is closed") {
			return fmt.Errorf("a graph whose buffer is closed: %v", err)
		}
		if err := errors.Join(graph.Close(), fork.Close(), out.Close()); err != nil {
			return err
		}
	}
	return side.Close()
}

// TestGroupMismatch has ranks whose messages differ in count or type: the group fails on both
// with an error that names both, and nothing is written; also where the receiver offers the places of large
// ones, one after the other.
func TestGroupMismatch(t *testing.T) {
	type half struct {
		count uint64
		typ   Type
	}
	for name, c := range map[string]struct {
		sends, receives []half
		want            string
	}{
		"count":         {[]half{{100, F32}}, []half{{90, F32}}, "rank 0 sends 100 f32 to rank 1, which receives 90 f32 (message "},
		"type":          {[]half{{100, F32}}, []half{{100, I32}}, "rank 0 sends 100 f32 to rank 1, which receives 100 i32 (message "},
		"type and size": {[]half{{100, BF16}}, []half{{50, F8E5M2}}, "rank 0 sends 100 bf16 to rank 1, which receives 50 f8e5m2 (message "},
		"large, small":  {[]half{{60_000, U8}}, []half{{10, U8}}, "rank 0 sends 60000 u8 to rank 1, which receives 10 u8 (message "},
		"small, large":  {[]half{{3, I64}}, []half{{50_000, I64}}, "rank 0 sends 3 i64 to rank 1, which receives 50000 i64 (message "},
		"zero":          {[]half{{0, F64}}, []half{{1, F64}}, "rank 0 sends 0 f64 to rank 1, which receives 1 f64 (message "},
		"order":         {[]half{{1, F16}, {50_000, F16}}, []half{{50_000, F16}, {1, F16}}, "rank 0 sends 1 f16 to rank 1, which receives 50000 f16 (message "},
		"both large":    {[]half{{60_000, U8}}, []half{{50_000, U8}}, "rank 0 sends 60000 u8 to rank 1, which receives 50000 u8 (message "},
		"large type":    {[]half{{20_000, F32}}, []half{{20_000, I32}}, "rank 0 sends 20000 f32 to rank 1, which receives 20000 i32 (message "},
		"large, zero":   {[]half{{0, F32}}, []half{{20_000, F32}}, "rank 0 sends 0 f32 to rank 1, which receives 20000 f32 (message "},
		"second large":  {[]half{{20_000, F32}, {9000, F32}}, []half{{20_000, F32}, {9001, F32}}, "rank 0 sends 9000 f32 to rank 1, which receives 9001 f32 (message 1 from rank 0)"},
		"third":         {[]half{{1, F8E4M3}, {2, F8E4M3}, {3, F8E4M3}}, []half{{1, F8E4M3}, {2, F8E4M3}, {4, F8E4M3}}, "sends 3 f8e4m3 to rank 1, which receives 4 f8e4m3 (message 2 from rank 0)"},
	} {
		t.Run(name, func(t *testing.T) {
			runGroupsOnEach(t, [][]int{{0, 0}, {0, 1}}, tinyGroups, NVLink, func(m *groupMember) error {
				halves := c.sends
				if m.comm.Rank() == 1 {
					halves = c.receives
				}
				g := m.runner.Group()
				var bufs []*gpu.Buffer
				for _, h := range halves {
					b, err := gpu.Upload(m.comm.Device(), bytes.Repeat([]byte{byte(m.comm.Rank())}, int(h.count)*h.typ.Size()+1))
					if err != nil {
						return err
					}
					if _, err := m.runner.Share(m.ctx, b); err != nil {
						return err
					}
					bufs = append(bufs, b)
					if m.comm.Rank() == 0 {
						g.Send(m.stream, b, h.count, h.typ, 1)
					} else {
						g.Recv(m.stream, b, h.count, h.typ, 0)
					}
				}
				if err := g.Launch(); err != nil {
					return err
				}
				_ = m.comm.Synchronize(m.ctx, m.stream) // the sender's group may be done
				<-m.comm.Done()
				if err := m.comm.Err(); !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("rank %d: the group's error is %v; want %q", m.comm.Rank(), err, c.want)
				}
				if m.comm.Rank() == 1 {
					if err := m.comm.Err(); !errors.Is(err, mscclgo.ErrInvalid) {
						return fmt.Errorf("the receiver's error is %v", err)
					}
				}
				for i, b := range bufs {
					if m.comm.Rank() == 0 || i < len(bufs)-1 && (name == "third" || name == "second large") {
						continue
					}
					got := make([]byte, b.Size())
					if err := gpu.CopyOut(got, b); err != nil {
						return err
					}
					if slices.Contains(got, 0) {
						return fmt.Errorf("buffer %d was written", i)
					}
				}
				return nil
			})
		})
	}
}

// TestGroupAlone has sends and receives of which the peer never makes the other half. Their
// groups end by the timeout, and the errors tell who waits for whom.
func TestGroupAlone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"send", "receive", "crossed", "large send", "large receive", "large crossed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			name, large := strings.CutPrefix(name, "large ")
			count := uint64(10)
			if large {
				count = 10_000
			}
			runGroupsOnEach(t, [][]int{{0, 0, 0}, {0, 0, 1}}, tinyGroups, "other", func(m *groupMember) error {
				if err := m.runner.LoadGroups(m.ctx); err != nil {
					return err
				}
				m.setTimeout(2 * time.Second)
				if name == "crossed" { // long enough for both to come
					m.setTimeout(5 * time.Second)
				}
				rank := m.comm.Rank()
				b, err := m.comm.Device().Alloc(4 * count)
				if err != nil {
					return err
				}
				if _, err := m.runner.Share(m.ctx, b); err != nil {
					return err
				}
				switch {
				case name == "send" && rank == 1:
					err = m.runner.Send(m.stream, b, count, I32, 2)
				case name == "receive" && rank == 1:
					err = m.runner.Recv(m.stream, b, count, I32, 2)
				case name == "crossed" && rank > 0: // both send first
					err = m.runner.Send(m.stream, b, count, I32, 3-rank)
					err = errors.Join(err, m.runner.Recv(m.stream, b, count, I32, 3-rank))
					if m.comm.Err() != nil {
						err = nil // the send has ended already
					}
				}
				if err != nil {
					return err
				}
				<-m.comm.Done()
				text := m.comm.Err().Error()
				if rank == 1 && name != "crossed" && !errors.Is(m.comm.Err(), mscclgo.ErrTimeout) {
					return fmt.Errorf("rank %d: the error is %v", rank, m.comm.Err())
				}
				want := []string{"rank 2 did not come: rank 1 has waited ", "for a send or receive between 2 and 1"}
				if name == "crossed" {
					want = []string{"wait for each other", "a send or receive between 2 and 1", "a send or receive between 1 and 2"}
				}
				for _, w := range want {
					if !strings.Contains(text, w) {
						return fmt.Errorf("rank %d: the error lacks %q: %s", rank, w, text)
					}
				}
				return nil
			})
		})
	}
}

// TestGroupLeftOut has rank 2 leave out its send and go on to a barrier, as rank 0 does, which the
// receiver never comes to. Whichever wait ends first, rank 2 is named.
func TestGroupLeftOut(t *testing.T) {
	t.Parallel()
	for name, timeouts := range map[string][]time.Duration{
		"the barrier ends first": {2 * time.Second, time.Minute, 2 * time.Second},
		"the group ends first":   {time.Minute, 2 * time.Second, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			options := make([]communicator.Options, len(timeouts))
			for i, d := range timeouts {
				options[i].Timeout = d
			}
			testgroup.RunEach(t, options, groupTest(tinyGroups, "other", func(m *groupMember) error {
				if err := m.runner.LoadGroups(m.ctx); err != nil {
					return err
				}
				rank := m.comm.Rank()
				var err error
				if rank == 1 {
					if err := m.runner.Recv(m.stream, nil, 0, I32, 2); err != nil {
						return err
					}
					err = m.comm.Synchronize(m.ctx, m.stream)
				} else {
					err = m.comm.Barrier(m.ctx)
					m.comm.Abort(err)
				}
				if want := "rank 2 did not come: rank 1 has waited "; err == nil || !strings.Contains(err.Error(), want) {
					return fmt.Errorf("rank %d: the error is %v; want %q", rank, err, want)
				}
				if e := (*mscclgo.Error)(nil); errors.As(err, &e) && rank != 2 && e.Peer != 2 {
					return fmt.Errorf("rank %d: the culprit is %d: %v", rank, e.Peer, err)
				}
				return nil
			}))
		})
	}
}

// setTimeout bounds the waits of the runner, in kernels and on the host.
func (m *groupMember) setTimeout(d time.Duration) {
	m.runner.group.Watch.Timeout = uint64(d.Nanoseconds())
	if handle, ok := m.runner.groups.handle.(layout.Group); ok { // which load has made already
		handle.Watch.Timeout = uint64(d.Nanoseconds())
		m.runner.groups.handle = handle
	}
}

// TestFirstGroupOfSome has a rank that does not launch the first group of a runner: the error
// names what would have made that unnecessary. Then some ranks launch it, and others load.
func TestFirstGroupOfSome(t *testing.T) {
	testdev.Parallel(t)
	testgroup.Run(t, 3, communicator.Options{Timeout: 4 * time.Second}, groupTest(tinyGroups, "other", func(m *groupMember) error {
		rank := m.comm.Rank()
		if rank == 2 {
			<-m.comm.Done()
			return nil
		}
		var err error
		if rank == 0 {
			err = m.runner.Send(m.stream, nil, 0, F32, 1)
		} else {
			err = m.runner.Recv(m.stream, nil, 0, F32, 0)
		}
		if err == nil || !strings.Contains(err.Error(), "unless LoadGroups was called") {
			return fmt.Errorf("rank %d: a first group without rank 2: %v", rank, err)
		}
		m.comm.Abort(err)
		<-m.comm.Done()
		return nil
	}))
	runGroupsOnEach(t, [][]int{{0, 0, 0}, {0, 1, 0}}, tinyGroups, "other", func(m *groupMember) error {
		err := errors.New("not called")
		switch m.comm.Rank() {
		case 0:
			err = m.runner.Send(m.stream, nil, 0, F32, 1)
		case 1:
			err = m.runner.Recv(m.stream, nil, 0, F32, 0)
		case 2:
			err = m.runner.LoadGroups(m.ctx)
		}
		if err != nil {
			return err
		}
		if err := m.comm.MatchCall("the same number of calls on all ranks"); err != nil {
			return err
		}
		return m.comm.Synchronize(m.ctx, m.stream)
	})
}

// TestManyMessages has groups with more messages than load has room for, and fewer before and
// after: only the largest allocates.
func TestManyMessages(t *testing.T) {
	runGroups(t, 1, tinyGroups, "other", func(m *groupMember) error {
		if err := m.runner.LoadGroups(m.ctx); err != nil {
			return err
		}
		const most = loadedMessages/2 + 1000 // of a send and a receive each
		g := m.runner.Group()
		for round, c := range []struct{ messages, tables int }{{150, 1}, {loadedMessages / 2, 1}, {most, 2}, {300, 2}} {
			data := make([]byte, c.messages)
			for i := range data {
				data[i] = byte(i*7 + i/251 + round)
			}
			out, err := gpu.Upload(m.comm.Device(), data)
			if err != nil {
				return err
			}
			in, err := m.comm.Device().Alloc(uint64(len(data)))
			if err != nil {
				return err
			}
			for i := range uint64(c.messages) {
				from, err := out.Slice(i, 1)
				if err != nil {
					return err
				}
				to, err := in.Slice(i, 1)
				if err != nil {
					return err
				}
				g.Send(m.stream, from, 1, U8, 0)
				g.Recv(m.stream, to, 1, U8, 0)
			}
			if err := g.Launch(); err != nil {
				return err
			}
			if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
				return err
			}
			got := make([]byte, len(data))
			if err := gpu.CopyOut(got, in); err != nil {
				return err
			}
			if diff := testcmp.Diff(data, got); diff != "" {
				return fmt.Errorf("round %d: what was received (-want +got):\n%s", round, diff)
			}
			if n := len(m.runner.groups.tables); n != c.tables {
				return fmt.Errorf("round %d: there are %d tables, not %d", round, n, c.tables)
			}
			if err := keepsNothing(g); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			if err := errors.Join(out.Close(), in.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

// keepsNothing returns an error if a group that was launched, or its runner, refers to messages or
// has memory for more than load has.
func keepsNothing(g *Group) error {
	all := &g.runner.groups
	for _, slice := range append(all.sends, all.receives...) {
		if slice = slice[:cap(slice)]; len(slice) > 3*loadedMessages/2 || slices.ContainsFunc(slice, func(m *message) bool { return m != nil }) {
			return fmt.Errorf("an array for %d messages is kept, or what is in it", len(slice))
		}
	}
	if n := max(cap(g.messages), cap(all.work.messages), cap(all.extents)); n > 3*loadedMessages/2 {
		return fmt.Errorf("there is memory for %d messages", n)
	}
	return nil
}

// TestBadGroups refuses groups before anything is queued, and goes on.
func TestBadGroups(t *testing.T) {
	runGroupsOnEach(t, [][]int{{0, 0}, {0, 1}}, tinyGroups, "other", func(m *groupMember) error {
		rank, peer := m.comm.Rank(), 1-m.comm.Rank()
		b, err := m.comm.Device().Alloc(400)
		if err != nil {
			return err
		}
		closed, err := m.comm.Device().Alloc(400)
		if err != nil {
			return err
		}
		other, err := m.comm.Device().NewStream()
		if err != nil {
			return err
		}
		part := func(i uint64) *gpu.Buffer { // 40 bytes, or nil, which no message can have
			p, _ := b.Slice(40*i, 40)
			return p
		}
		tail, err := b.Slice(40, 360)
		if err != nil {
			return err
		}
		if err := closed.Close(); err != nil {
			return err
		}
		s := m.stream
		for _, c := range []struct {
			want string
			add  func(*Group)
		}{
			{"there are ranks 0 to 1", func(g *Group) { g.Send(s, b, 1, F32, 2) }},
			{"receive of 1 f32 from rank -1", func(g *Group) { g.Recv(s, b, 1, F32, -1) }},
			{"no element", func(g *Group) { g.Send(s, b, 1, 99, peer) }},
			{"a message has fewer", func(g *Group) { g.Send(s, b, 1<<63, F32, peer) }},
			{"400 bytes", func(g *Group) { g.Send(s, b, 101, F32, peer) }},
			{"the stream is nil", func(g *Group) { g.Send(nil, b, 1, F32, peer) }},
			{"is closed", func(g *Group) { g.Recv(s, closed, 1, F32, peer) }},
			{"the buffer is nil", func(g *Group) { g.Recv(s, nil, 1, F32, peer) }},
			{"does not receive in the same group", func(g *Group) { g.Send(s, b, 1, F32, rank) }},
			{"does not send in the same group", func(g *Group) { g.Recv(s, b, 1, F32, rank) }},
			{"sends 2 f32 to itself", func(g *Group) { g.Send(s, b, 2, F32, rank); g.Recv(s, tail, 1, F32, rank) }},
			{"overlaps with another's: send of 11 f32", func(g *Group) { g.Send(s, b, 11, F32, peer); g.Recv(s, tail, 1, F32, peer) }},
			{"overlaps", func(g *Group) { g.Recv(s, b, 100, F32, peer); g.Recv(other, tail, 1, F32, peer) }},
			{"overlaps", func(g *Group) { // a swap
				g.Send(s, part(0), 10, F32, rank)
				g.Send(s, part(1), 10, F32, rank)
				g.Recv(s, part(1), 10, F32, rank)
				g.Recv(s, part(0), 10, F32, rank)
			}},
			{"overlaps", func(g *Group) { // a chain
				g.Send(s, part(0), 10, F32, rank)
				g.Send(s, part(1), 10, F32, rank)
				g.Recv(s, part(1), 10, F32, rank)
				g.Recv(s, part(2), 10, F32, rank)
			}},
		} {
			g := m.runner.Group()
			c.add(g)
			if err := g.Launch(); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("rank %d: the error is %v; want %q", rank, err, c.want)
			}
		}
		// One stream captures, and the other does not.
		g := m.runner.Group()
		_, err = capture(s, func() error {
			g.Send(s, b, 1, F32, peer)
			g.Recv(other, tail, 1, F32, peer)
			return g.Launch()
		})
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "same capture") {
			return fmt.Errorf("streams of two kinds: %v", err)
		}
		if err := (*Group)(nil).Launch(); !errors.Is(err, mscclgo.ErrInvalid) {
			return fmt.Errorf("no group: %v", err)
		}
		// The first group, of all ranks; here one sends to itself in place.
		if rank == 0 {
			g.Send(s, b, 10, F32, 0)
			g.Recv(other, b, 10, F32, 0)
		}
		if err := g.Launch(); err != nil {
			return err
		}
		return errors.Join(m.comm.Synchronize(m.ctx, s), other.Close(), b.Close())
	})
}
