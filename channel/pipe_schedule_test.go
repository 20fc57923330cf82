package channel_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

//go:embed pipe_test.cu
var pipeSource []byte

// What an op of the schedule's kernel does.
const (
	opSend = iota
	opRecv
	opCopySend
	opToReduce
	opReduceSend
	opReduce
	opReduceCopySend
)

// op is the Op of pipe_test.cu.
type op struct {
	Kind, From, To, Delay uint32
	Src, Dst, Bytes       uint64
}

// schedule is what all ranks send each other, in an order in which no rank waits for ever:
// each actor of each rank makes its calls in the order of the messages.
type schedule struct {
	ranks, actors int
	ops           [][][]op // by rank and actor
	before, after [][]byte // the memory of each rank
	chunks        int
	bytes         uint64 // that are sent
}

// newSchedule returns random messages between ranks that each have pipes to all, of up to
// five slots, by copies and by reductions, and among them large ones of these sizes.
func newSchedule(seed uint64, ranks, actors, messages int, slotBytes uint64, large ...uint64) *schedule {
	random := rand.New(rand.NewPCG(seed, 1))
	s := &schedule{ranks: ranks, actors: actors}
	size := uint64(messages) * 4 * slotBytes
	for _, n := range large {
		size += (2*n + 207) &^ 7
	}
	fresh := make([]uint64, ranks) // where memory that nobody has used begins
	for range ranks {
		memory := make([]byte, size)
		for i := 0; i < len(memory); i += 8 {
			binary.LittleEndian.PutUint64(memory[i:], random.Uint64())
		}
		s.before = append(s.before, memory)
		s.after = append(s.after, bytes.Clone(memory))
		s.ops = append(s.ops, make([][]op, actors))
	}
	place := func(rank int, bytes, align uint64) uint64 {
		at := (fresh[rank] + random.Uint64N(40) + align - 1) / align * align
		fresh[rank] = at + bytes
		return at
	}
	for i := range messages {
		length := []uint64{0, 1 + random.Uint64N(40), slotBytes - 4, slotBytes, slotBytes + 4, random.Uint64N(5 * slotBytes)}[random.IntN(6)]
		most := ranks // that the message passes
		if every := messages / (len(large) + 1); i%every == every-1 && i/every < len(large) {
			length, most = large[i/every], 2
		}
		reduces := random.IntN(2) == 0
		align := uint64(1)
		if reduces {
			length, align = length/4*4, 4
		}
		path := random.Perm(ranks)[:2+random.IntN(most-1)]
		for _, rank := range path {
			if fresh[rank]+2*length+200 > size {
				path = nil
				break
			}
		}
		if path == nil {
			break
		}
		last := len(path) - 1 // the rank at which a reduction ends
		if reduces {
			last = 1 + random.IntN(len(path)-1)
		}
		actor := random.IntN(actors)
		s.bytes += uint64(len(path)-1) * length
		s.chunks += (len(path) - 1) * int(max(1, (length+slotBytes-1)/slotBytes))
		var value []byte
		for i, rank := range path {
			o := op{Bytes: length}
			if random.IntN(8) == 0 {
				o.Delay = random.Uint32N(300_000)
			}
			if i > 0 {
				o.From = uint32(path[i-1])
			}
			if i+1 < len(path) {
				o.To = uint32(path[i+1])
			}
			memory := s.after[rank]
			adds := reduces && i <= last
			if i == 0 || adds {
				o.Src = place(rank, length, align)
				mine := memory[o.Src : o.Src+length]
				if i == 0 {
					value = bytes.Clone(mine)
				} else {
					value = sumOf(value, mine)
				}
			}
			if i > 0 && !(adds && i < last) {
				o.Dst = place(rank, length, align)
				copy(memory[o.Dst:], value)
			}
			switch {
			case i == 0 && reduces:
				o.Kind = opToReduce
			case i == 0:
				o.Kind = opSend
			case adds && i < last:
				o.Kind = opReduceSend
			case adds && i+1 < len(path):
				o.Kind = opReduceCopySend
			case adds:
				o.Kind = opReduce
			case i+1 < len(path):
				o.Kind = opCopySend
			default:
				o.Kind = opRecv
			}
			s.ops[rank][actor] = append(s.ops[rank][actor], o)
		}
	}
	return s
}

// sumOf adds 32-bit integers.
func sumOf(a, b []byte) []byte {
	sum := make([]byte, len(a))
	for i := 0; i < len(a); i += 4 {
		carry := 0
		for k := range 4 {
			carry += int(a[i+k]) + int(b[i+k])
			sum[i+k] = byte(carry)
			carry >>= 8
		}
	}
	return sum
}

// pipeConfig is how pipes transfer messages, and where their memory is.
type pipeConfig struct {
	name             string
	ports            bool
	over             registeredmem.Transports // or 0: memory is mapped
	pool             bool                     // a pool of the caller's
	buffered         bool                     // half of the memory is registered
	slots, slotBytes int
	warps            bool   // warps make the calls, in place of blocks
	shared           bool   // in the communicator's memory, where long messages borrow slots
	common           uint64 // bytes of that, or 0
	start            uint64
	mixed            bool // the pairs of four ranks or more have different transports
}

var pipeConfigs = []pipeConfig{
	{name: "memory", slots: 8, slotBytes: 512},
	{name: "memory, warps", slots: 2, slotBytes: 256, warps: true},
	{name: "memory, one slot in a pool", slots: 1, slotBytes: 128, pool: true},
	{name: "memory, zero copy", slots: 4, slotBytes: 512, buffered: true, pool: true},
	{name: "ports", slots: 8, slotBytes: 512, ports: true},
	{name: "ports, zero copy, warps", slots: 4, slotBytes: 512, ports: true, buffered: true, warps: true},
	{name: "Ethernet", slots: 4, slotBytes: 1024, over: registeredmem.Ethernet, pool: true},
	{name: "Ethernet, zero copy", slots: 2, slotBytes: 2048, over: registeredmem.Ethernet, buffered: true},
	{name: "SHM", slots: 4, slotBytes: 1024, over: registeredmem.SHM, pool: true},
	{name: "SHM, zero copy", slots: 2, slotBytes: 2048, over: registeredmem.SHM, buffered: true},
	{name: "InfiniBand", slots: 4, slotBytes: 1024, over: registeredmem.InfiniBand, pool: true},
	{name: "InfiniBand, zero copy", slots: 2, slotBytes: 2048, over: registeredmem.InfiniBand, buffered: true},
	{name: "mixed", slots: 4, slotBytes: 1024, mixed: true},
	{name: "mixed, zero copy, warps", slots: 4, slotBytes: 512, mixed: true, buffered: true, warps: true},
	{name: "shared", slots: 2, slotBytes: 128, shared: true},
	{name: "shared, one slot, one lot, warps", slots: 1, slotBytes: 128, shared: true, common: 2 << 20, warps: true},
	{name: "shared, zero copy, two lots", slots: 2, slotBytes: 256, shared: true, common: 3 << 20, buffered: true},
	{name: "shared, no lots", slots: 2, slotBytes: 128, shared: true, common: 1 << 20},
	{name: "shared, ports, one lot", slots: 2, slotBytes: 4096, shared: true, common: 2 << 20, ports: true},
	{name: "shared, ports, zero copy, two lots, warps", slots: 4, slotBytes: 128, shared: true, common: 3 << 20, ports: true, buffered: true, warps: true},
	{name: "shared, Ethernet, two lots", slots: 2, slotBytes: 256, shared: true, common: 3 << 20, over: registeredmem.Ethernet},
}

// unit returns the bytes after which the lengths of random messages go. Some messages that borrow go
// round the lot twice.
func (c pipeConfig) unit() uint64 {
	if c.shared {
		return uint64(8 * c.slotBytes)
	}
	return uint64(c.slotBytes)
}

// run runs a test on so many ranks that are joined as the configuration says.
func (c pipeConfig) run(t *testing.T, ranks int, rank func(context.Context, *communicator.Communicator) error) {
	t.Helper()
	options := make([]communicator.Options, ranks)
	if c.over != 0 {
		options = testgroup.Over(t, c.over, ranks)
	} else if c.mixed {
		options = testgroup.Mixed(ranks)
	}
	for i := range options {
		options[i].PipePool = c.common
	}
	testgroup.RunEach(t, options, rank)
}

// least returns n, or how many ranks it takes for the configuration to have all its transports.
func (c pipeConfig) least(n int) int {
	if c.mixed {
		return max(n, 4)
	}
	return n
}

// defines returns the macros that kernels are compiled with.
func (c pipeConfig) defines() []string {
	if c.warps {
		return []string{"THREADS=WarpThreads"}
	}
	return nil
}

// pipes makes a rank's pipes, and returns what closes them: if the group works, once no rank
// and no service uses them.
func (c pipeConfig) pipes(ctx context.Context, comm *communicator.Communicator, o communicator.PipeOptions) (*communicator.Pipes, func() error, error) {
	o.Size = channel.PipeSize{Slots: c.slots, SlotBytes: uint64(c.slotBytes)}
	o.Ports, o.Shared = c.ports, c.shared
	o.Name = c.name
	end := func(p *communicator.Pipes) error {
		var err error
		if o.Service != nil {
			err = o.Service.Close()
		}
		if comm.Err() == nil {
			err = errors.Join(err, comm.Barrier(ctx))
		}
		return errors.Join(err, p.Close())
	}
	if c.ports || c.over != 0 || c.mixed {
		var err error
		if o.Service, err = comm.ProxyService(ctx, proxyservice.ServiceOptions{}); err != nil {
			return nil, nil, err
		}
	}
	if c.pool {
		bytes, err := comm.PipeBytes(o)
		if err != nil {
			return nil, nil, err
		}
		const offset = 3 * pipe.Align
		if o.Pool, err = comm.Device().Alloc(offset + bytes); err != nil {
			return nil, nil, err
		}
		o.PoolOffset = offset
	}
	p, err := comm.Pipes(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	return p, func() error { return end(p) }, nil
}

// player makes the calls of a schedule on one rank.
type player struct {
	comm    *communicator.Communicator
	pipes   *communicator.Pipes
	memory  *gpu.Buffer
	stream  *gpu.Stream
	results *gpu.Buffer
	launch  func() error
	end     func() error
}

// newPlayer makes pipes to and from all ranks, and what else a rank needs for a schedule.
func newPlayer(ctx context.Context, comm *communicator.Communicator, c pipeConfig, s *schedule) (*player, error) {
	device, rank := comm.Device(), comm.Rank()
	p := &player{comm: comm}
	blocks, threads := s.actors, 48
	if c.warps {
		blocks, threads = 1, 32*s.actors
	}
	module, err := devicecode.Load(ctx, device, "pipe_test.cu", pipeSource, devicecode.Options{Defines: c.defines()})
	if err != nil {
		return nil, err
	}
	if p.stream, err = comm.NewStream(); err != nil {
		return nil, err
	}
	if p.memory, err = gpu.Upload(device, s.before[rank]); err != nil {
		return nil, err
	}
	if p.results, err = gpu.Upload(device, make([]uint32, s.actors)); err != nil {
		return nil, err
	}
	o := communicator.PipeOptions{PerPeer: s.actors}
	for peer := range s.ranks {
		o.To = append(o.To, peer)
	}
	o.From = o.To
	if c.buffered {
		if o.Buffer, err = p.memory.Slice(0, p.memory.Size()/4); err != nil {
			return nil, err
		}
	}
	if p.pipes, p.end, err = c.pipes(ctx, comm, o); err != nil {
		return nil, err
	}
	if c.start != 0 {
		at, err := module.Kernel("startAt")
		if err == nil {
			err = at.Launch(p.stream, gpu.Blocks(1, 1), p.pipes.Set(), c.start)
		}
		if err := errors.Join(err, p.stream.Synchronize(ctx), comm.Barrier(ctx)); err != nil {
			return nil, err
		}
	}
	most := 1
	counts := make([]uint32, s.actors)
	for actor, list := range s.ops[rank] {
		most, counts[actor] = max(most, len(list)), uint32(len(list))
	}
	table := make([]op, s.actors*most)
	for actor, list := range s.ops[rank] {
		copy(table[actor*most:], list)
	}
	ops, err := gpu.Upload(device, table)
	if err != nil {
		return nil, err
	}
	lengths, err := gpu.Upload(device, counts)
	if err != nil {
		return nil, err
	}
	kernel, err := module.Kernel("schedule")
	p.launch = func() error {
		return kernel.Launch(p.stream, gpu.Blocks(blocks, threads), p.pipes.Set(), ops, lengths, most, p.memory, p.results)
	}
	return p, err
}

// check waits for the stream, and compares results and memory with the schedule's.
func (p *player) check(ctx context.Context, s *schedule) error {
	if err := p.stream.Synchronize(ctx); err != nil {
		return err
	}
	rank := p.comm.Rank()
	results := make([]uint32, s.actors)
	got := make([]byte, len(s.after[rank]))
	if err := errors.Join(gpu.CopyOut(results, p.results), gpu.CopyOut(got, p.memory)); err != nil {
		return err
	}
	for actor, r := range results {
		if r != 0 {
			return fmt.Errorf("rank %d, actor %d: a call ended as %v", rank, actor, devicecode.WaitResult(r))
		}
	}
	if want := s.after[rank]; !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("rank %d: byte %d of %d is %d, want %d", rank, i, len(got), got[i], want[i])
	}
	return nil
}

// play runs a schedule by so many launches, or by as many of a graph besides, and checks
// what has arrived after each.
func (c pipeConfig) play(t *testing.T, s *schedule, launches, replays int) {
	t.Helper()
	preload(t, "pipe_test.cu", pipeSource, c.defines()...)
	c.run(t, s.ranks, func(ctx context.Context, comm *communicator.Communicator) error {
		p, err := newPlayer(ctx, comm, c, s)
		if err != nil {
			return err
		}
		again := func(launch func() error) error {
			if err := errors.Join(gpu.CopyIn(p.memory, s.before[comm.Rank()]), comm.Barrier(ctx)); err != nil {
				return err
			}
			if err := launch(); err != nil {
				return err
			}
			return p.check(ctx, s)
		}
		for range launches {
			if err := again(p.launch); err != nil {
				return err
			}
		}
		if replays > 0 {
			if err := errors.Join(p.stream.BeginCapture(), p.launch()); err != nil {
				return err
			}
			graph, err := p.stream.EndCapture()
			if err != nil {
				return err
			}
			for range replays {
				if err := again(func() error { return graph.Launch(p.stream) }); err != nil {
					return err
				}
			}
		}
		return errors.Join(c.checkLots(comm), p.end())
	})
}

// checkLots returns an error unless messages have borrowed lots and given them back.
func (c pipeConfig) checkLots(comm *communicator.Communicator) error {
	if !c.shared {
		return nil
	}
	s, err := comm.PipePool()
	switch {
	case err != nil:
		return err
	case s.Asked == 0 && s.Lent == 0 && c.slots == 0: // the few large messages may all go the other way
		return nil
	case s.Asked == 0 || s.Lent != 0 || s.Refused > s.Asked || s.Lots > 0 && s.Refused == s.Asked || s.Lots == 0 && s.Refused != s.Asked:
		return fmt.Errorf("rank %d: the pool says %+v", comm.Rank(), s)
	}
	return nil
}

// TestPipeSchedules plays random messages among two to eight ranks with each configuration, in a short
// run with one of these numbers of ranks: others each time, so that -count plays more.
func TestPipeSchedules(t *testing.T) {
	all := []int{2, 3, 4, 8}
	for i, c := range pipeConfigs {
		for k, ranks := range all {
			if testing.Short() && k != (i+2)%len(all) {
				continue
			}
			if ranks < c.least(0) || ranks > 4 && detector.Enabled { // which finds no more in more of the same
				continue
			}
			t.Run(fmt.Sprintf("%s, ranks=%d", c.name, ranks), func(t *testing.T) {
				testgroup.Over(t, c.over, 0)
				seed := uint64(time.Now().UnixNano())
				s := newSchedule(seed, ranks, 2, 200*min(ranks, 4), c.unit())
				t.Logf("seed %d: %d chunks", seed, s.chunks)
				c.play(t, s, 1, 0)
			})
		}
	}
}

// TestLargePipes plays messages of up to 64 MiB among thousands of small ones, in the slots that
// users get.
func TestLargePipes(t *testing.T) {
	detector.SkipKernels(t)
	for _, c := range pipeConfigs {
		if c.warps || c.pool != (c.over != 0) && !c.mixed {
			continue // one of each transport
		}
		t.Run(c.name, func(t *testing.T) {
			testgroup.Over(t, c.over, 0)
			seed := uint64(time.Now().UnixNano())
			large := []uint64{16 << 20, 64 << 20, 16<<20 + 1}
			if testing.Short() {
				large = []uint64{16<<20 + 1}
			}
			s := newSchedule(seed, c.least(2), 2, 2000, 256, large...)
			t.Logf("seed %d: %d bytes", seed, s.bytes)
			c.slots, c.slotBytes = 0, 0
			c.play(t, s, 1, 0)
		})
	}
}

// TestPipeReplays makes the same calls by several launches, and by launches of a graph.
func TestPipeReplays(t *testing.T) {
	for _, c := range pipeConfigs {
		t.Run(c.name, func(t *testing.T) {
			c.play(t, newSchedule(7, c.least(3), 2, 30, c.unit()), 3, 5)
		})
	}
}

// TestPipeCounts has the counts pass the ends of 32 bits, of the 48 that notes of waits keep,
// of a signed count, and wrap around.
func TestPipeCounts(t *testing.T) {
	for _, bits := range []int{32, 48, 63, 64} {
		for _, c := range pipeConfigs {
			t.Run(fmt.Sprintf("%s, bits=%d", c.name, bits), func(t *testing.T) {
				c.start = 1<<(bits-1)<<1 - 20
				c.play(t, newSchedule(uint64(bits), c.least(2), 1, 60, c.unit()), 1, 0)
			})
		}
	}
}

// TestPipeNoRaces plays schedules, and shifts round a ring, under the race finder.
func TestPipeNoRaces(t *testing.T) {
	detector.SkipKernels(t)
	if testdev.CUDA() {
		t.Skip("races are found on emulated devices")
	}
	for _, c := range pipeConfigs {
		t.Run(c.name, func(t *testing.T) {
			finder, err := gpu.FindRaces()
			testerr.Check(t, err)
			t.Cleanup(func() { finder.Close() }) // after the devices
			c.play(t, newSchedule(11, c.least(3), 2, 40, c.unit()), 2, 0)
			if c.shifts() {
				c.shift(t, 3)
			}
			races, unwatched, err := finder.Races()
			if err != nil || len(unwatched) > 0 {
				t.Fatalf("the finder says %q, %v", unwatched, err)
			}
			for _, r := range races {
				t.Errorf("%v", r)
			}
		})
	}
}
