package devicecode_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed check_test.cu
var checkSource string

// checkNumber is set in a process that does one misuse of TestChecks and prints what the status has.
const checkNumber = "MSCCLGO_TEST_CHECK"

// checkBed is what the kernels of TestChecks work with.
type checkBed struct {
	device  *gpu.Device
	module  *gpu.Module
	data    gpu.Ptr // 1 MiB
	status  *status
	channel layout.MemoryChannel
	group   layout.Group
}

// misuse is a launch in which a check fails.
type misuse struct {
	kernel string
	shape  gpu.LaunchConfig
	args   []any
	want   string
	call   string // of which the error tells the line, or what it tells
	peer   int
}

// place returns the file and the line of the kernel's call.
func (m misuse) place() string {
	if strings.HasPrefix(m.call, "; at ") {
		return m.call
	}
	kernel := strings.Index(checkSource, "void "+m.kernel+"(")
	call := kernel + strings.Index(checkSource[kernel:], m.call)
	return fmt.Sprintf("; at check_test.cu:%d", 1+strings.Count(checkSource[:call], "\n"))
}

func newCheckBed(t *testing.T) *checkBed {
	d := testdev.Open(t, 0)
	b := &checkBed{device: d, data: upload(t, d, make([]byte, 1<<20)).Ptr(), status: newStatus(t, d)}
	module, err := devicecode.Load(t.Context(), d, "check_test.cu", []byte(checkSource), devicecode.Options{Check: true})
	check(t, err)
	t.Cleanup(func() { check(t, module.Close()) })
	b.module = module
	watch := layout.Watch{Status: b.status.memory.Ptr(), Timeout: uint64(10 * time.Second), Peer: 2, Channel: 7}
	b.channel = layout.MemoryChannel{
		Semaphore: layout.Device2DeviceSemaphore{Watch: watch},
		Remote:    b.data, RemoteSize: 160112, Local: b.data, LocalSize: 150000,
		Packets: b.data, PacketsSize: 4096,
	}
	b.group = layout.Group{
		Rank: 0, Size: 2, ScratchOffset: 8 * devicecode.MaxBlocks, ScratchSize: 4096,
		Epochs: b.data + 1<<19, Arrivals: b.data + 1<<19 + 4*devicecode.MaxBlocks, Watch: watch,
	}
	b.group.Windows[0], b.group.Windows[1] = b.data, b.data
	return b
}

func flat(blocks, threads int) gpu.LaunchConfig { return gpu.Blocks(blocks, threads) }

// misuses returns one launch for each check.
func (b *checkBed) misuses() []misuse {
	channel, group := b.channel, b.group
	shifted := func(by gpu.Ptr) layout.MemoryChannel {
		c := channel
		c.Remote += by
		c.Packets += by
		return c
	}
	set := layout.ChannelSet{Handles: b.data, Rank: 1, Size: 2, PerPeer: 3, Watch: channel.Semaphore.Watch}
	memory := layout.PeerMemory{Size: 2, Status: channel.Semaphore.Watch.Status}
	pipe := func(flags uint32) layout.Pipe {
		return layout.Pipe{Semaphore: channel.Semaphore, Control: b.data, SlotBytes: 128, SlotCount: 1, Flags: flags}
	}
	at := "block (1,0,0), thread (3,0,0): "
	all := []misuse{
		{"ranges", flat(2, 32), []any{channel, uint32(0), uint64(155000), uint64(0), uint64(10016)}, at + "put of 10016 bytes at 155000 to rank 2, whose buffer has 160112", "channel.put(", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(0), uint64(0), uint64(149999), uint64(2)}, at + "put of 2 bytes from this rank's buffer at 149999, which has 150000", "channel.put(", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(0), ^uint64(0), uint64(0), uint64(2)}, at + "put of 2 bytes at 18446744073709551615 to rank 2, whose buffer has 160112", "channel.put(", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(1), uint64(160113), uint64(0), uint64(0)}, at + "get of 0 bytes at 160113 from rank 2, whose buffer has 160112", "channel.get(", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(1), uint64(0), uint64(150000), uint64(1)}, at + "get of 1 bytes to this rank's buffer at 150000, which has 150000", "channel.get(", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(2), uint64(160096), uint64(0), uint64(16)}, at + "putPackets of 32 bytes at 160096 to rank 2, whose buffer has 160112", "channel.putPackets(", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(2), uint64(8), uint64(0), uint64(16)}, at + "putPackets at 8, which is not a multiple of the packet's 16 bytes", "channel.putPackets(", 2},
		{"ranges", flat(2, 32), []any{shifted(8), uint32(2), uint64(16), uint64(0), uint64(16)}, at + "putPackets: the memory of the packets begins 8 bytes past an alignment of 16 bytes", "channel.putPackets(", 2},
		{"ranges", flat(2, 32), []any{shifted(8), uint32(3), uint64(16), uint64(0), uint64(16)}, at + "unpackPackets: the memory of the packets begins 8 bytes past an alignment of 16 bytes", "channel.unpackPackets(", 2},
		{"lines", flat(1, 32), []any{shifted(64), uint32(0)}, "putPackets: the memory of the packets begins 64 bytes past an alignment of 128 bytes", "channel.putPackets<LL128Packet>", 2},
		{"unpackLines", flat(1, 32), []any{shifted(64)}, "unpackPackets: the memory of the packets begins 64 bytes past an alignment of 128 bytes", "channel.unpackPackets<LL128Packet>", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(3), uint64(4096), uint64(0), uint64(1)}, at + "unpackPackets of 16 bytes at 4096 of this rank's packet memory, which has 4096", "channel.unpackPackets(", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(4), uint64(0), uint64(20014), uint64(0)}, at + "read of element 20014 of 8 bytes, and the buffer of rank 2 has 160112 bytes", "channel.read<", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(4), uint64(20014), uint64(0), uint64(0)}, at + "write of element 20014 of 8 bytes, and the buffer of rank 2 has 160112 bytes", "channel.write<", 2},
		{"lines", flat(1, 48), []any{channel, uint32(0)}, "putPackets: 48 threads carry packets, and 32 carry one together: give it whole warps", "channel.putPackets<LL128Packet>", -1},
		{"lines", flat(1, 32), []any{channel, uint32(16)}, "putPackets: thread 16 of the call is lane 0 of its warp, not 16", "channel.putPackets<LL128Packet>", -1},
		{"meet", flat(257, 32), []any{group}, "barrier of a group in a grid of (257,1,1) blocks: it is for one-dimensional grids of at most 256", "group.barrier", -1},
		{"meet", gpu.LaunchConfig{Grid: gpu.Dim3{X: 2, Y: 2}, Block: gpu.Dim3{X: 32}}, []any{group}, "barrier of a group in a grid of (2,2,1) blocks", "group.barrier", -1},
		{"number", flat(257, 32), []any{group}, "epoch of a group in a grid of (257,1,1) blocks", "group.nextEpoch", -1},
		{"count", flat(1, 32), []any{group, uint32(256)}, "Rounds of block 256 of a group, which has 256", "Rounds(group, block)", -1},
		{"inboxes", flat(1, 1), []any{group, uint64(64)}, "send of packet 64, and an inbox of the group's scratch has 64 of 8 bytes", "inboxes.send(", -1},
		{"inboxes", gpu.LaunchConfig{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 8, Y: 4}}, []any{group, uint64(0)}, "Inboxes in a grid of (1,1,1) blocks of (8,4,1) threads: both must have one dimension", "inboxes(group)", -1},
		{"one", flat(1, 256), []any{group, uint32(0)}, "a barrier of a group by 1 of 256 threads: every thread of the block calls it", "group.barrier", -1},
		{"one", flat(1, 64), []any{group, uint32(2)}, "a nextEpoch of a group by 1 of 64 threads", "group.nextEpoch", -1},
		{"one", flat(1, 64), []any{group, uint32(3)}, "a signal of Rounds of a group by 1 of 64 threads", ".signal()", -1},
		{"window", flat(1, 1), []any{group}, "the window of rank 2 of a group of 2 ranks", "group.window", -1},
		{"warps", flat(1, 48), []any{group}, "Inboxes in blocks of 48 threads: the packets need blocks of whole warps, of 32", "inboxes(group)", -1},
		{"each", gpu.LaunchConfig{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 8, Y: 4}}, []any{group}, "forEachRank in a grid", "forEachRank(", -1},
		{"linesOf", flat(1, 48), []any{b.data, b.data}, "putPackets: 48 threads", "putPackets(packets", -1},
		{"chosen", flat(1, 1), []any{set, uint32(2), uint32(0)}, "channel 0 to peer 2 of a set, which has 3 to each of 2 peers", "set.to(", -1},
		{"chosen", flat(1, 1), []any{set, uint32(0), uint32(3)}, "channel 3 to peer 0 of a set, which has 3 to each of 2 peers", "set.to(", -1},
		{"peers", flat(1, 1), []any{group, uint32(0), uint32(0)}, "send of a packet to rank 0 by rank 0 of a group of 2", "inboxes.send(", -1},
		{"peers", flat(1, 1), []any{group, uint32(2), uint32(0)}, "send of a packet to rank 2 by rank 0 of a group of 2", "inboxes.send(", -1},
		{"peers", flat(1, 1), []any{group, uint32(0), uint32(1)}, "receive of a packet from rank 0 by rank 0 of a group of 2", "inboxes.receive(", -1},
		{"peers", flat(1, 1), []any{group, uint32(2), uint32(1)}, "receive of a packet from rank 2 by rank 0 of a group of 2", "inboxes.receive(", -1},
		{"memories", flat(1, 1), []any{memory}, "of(2) of a PeerMemory of 2 ranks", "memory.of", -1},
		{"pipes", flat(1, 32), []any{pipe(layout.PipeSends | layout.PipeUnopened), uint32(0)}, "send to rank 2 by a pipe that is not open: the host opens it before the launch", "pipe.send", 2},
		{"pipes", flat(1, 32), []any{pipe(layout.PipeSends), uint32(1)}, "receive by the sending end of a pipe to rank 2", "pipe.recvReduce", 2},
		{"pipes", flat(1, 32), []any{pipe(layout.PipeSends | layout.PipePosts), uint32(2)}, "receive by the sending end of a pipe to rank 2", "pipe.post", 2},
		{"through", flat(1, 1), []any{channel, uint64(160112)}, "put of 1 bytes at 160112 to rank 2, whose buffer has 160112", "sendByte(channel, at", 2},
		{"longest", flat(1, 1), []any{group}, "block (0,0,0), thread (0,0,0): 0123456789", "detail::fault", -1},
		{"elsewhere", flat(257, 1), []any{group}, "barrier of a group in a grid", "; at " + strings.Repeat("0123456789", 7)[9:] + ".cu:40000", -1},
		{"nearby", flat(257, 1), []any{group}, "barrier of a group in a grid", "; at near.cu:7", -1},
	}
	if b.device.Info().Arch == devicecode.ArchEmu { // GPUs do not look for these
		all = append(all, []misuse{
			{"open", flat(1, 64), []any{group}, "call 1 of the group began with Inboxes and has not ended: every thread calls end() of them", "inboxes(group)", -1},
			{"one", flat(1, 256), []any{group, uint32(1)}, "a barrier of a group by 1 of 256 threads: every thread of the block calls it", "group.barrier", -1},
			{"unmade", flat(1, 1), []any{b.data, b.data, uint32(0)}, "by a null pointer: a handle in device memory was not made, or its index is outside the handles that there are", "memory->signal", -1},
			{"unmade", flat(1, 1), []any{b.data, b.data, uint32(1)}, "by a null pointer: a handle in device memory was not made, or its index is outside the handles that there are", "port->flush", -1},
		}...)
	}
	return all
}

// run launches a kernel and returns its error.
func (b *checkBed) run(t *testing.T, kernel string, shape gpu.LaunchConfig, args ...any) error {
	t.Helper()
	k, err := b.module.Kernel(kernel)
	check(t, err)
	return launched(t, b.device, k, shape, args...)
}

// TestChecks has kernels misuse channels and groups. On a GPU each does so in a process of its own,
// since a check that fails ends the use of the GPU by its process.
func TestChecks(t *testing.T) {
	b := newCheckBed(t)
	if number := os.Getenv(checkNumber); number != "" {
		i, err := strconv.Atoi(number)
		check(t, err)
		m := b.misuses()[i]
		err = b.run(t, m.kernel, m.shape, m.args...)
		text, peer, ok := b.status.get().Checked()
		fmt.Printf("\n%v|%v|%d|%s|\n", errors.Is(err, mscclgo.ErrSystem), ok, peer, text)
		os.Exit(0) // nothing of this GPU can be freed any more
	}
	emulated := b.device.Info().Arch == devicecode.ArchEmu
	for i, m := range b.misuses() {
		t.Run(fmt.Sprintf("%s-%d", m.kernel, i), func(t *testing.T) {
			if !emulated {
				m.expectInProcess(t, i)
				return
			}
			*b.status.get() = layout.GroupStatus{}
			err := b.run(t, m.kernel, m.shape, m.args...)
			testerr.Expect(t, err, mscclgo.ErrSystem, "block (", "thread (", m.want, m.place())
			if m.kernel == "linesOf" || m.kernel == "unmade" {
				return // it has no group to tell
			}
			text, peer, ok := b.status.get().Checked()
			if !ok || peer != m.peer || !strings.HasPrefix(text, "block (") || !strings.Contains(text, m.want) || !strings.HasSuffix(text, m.place()) {
				t.Errorf("the status has %q for peer %d, %v; want %q for %d", text, peer, ok, m.want, m.peer)
			}
		})
	}

	*b.status.get() = layout.GroupStatus{}
	check(t, b.run(t, "ranges", flat(2, 32), b.channel, uint32(0), uint64(160112), uint64(150000), uint64(0)))
	check(t, b.run(t, "lines", flat(1, 64), b.channel, uint32(0)))
	check(t, b.run(t, "number", flat(256, 32), b.group))
	check(t, b.run(t, "count", flat(1, 32), b.group, uint32(255)))
	check(t, b.run(t, "inboxes", flat(1, 1), b.group, uint64(63)))
	if text, _, ok := b.status.get().Checked(); ok {
		t.Errorf("a check failed where nothing is wrong: %s", text)
	}
	b.status.get().Aborted = 1 // by which threads may have ended
	check(t, b.run(t, "one", flat(1, 64), b.group, uint32(2)))
}

// expectInProcess has a process of its own do the misuse of this number.
func (m misuse) expectInProcess(t *testing.T, number int) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChecks$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", checkNumber, number))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := fmt.Sprintf("\ntrue|true|%d|block (", m.peer)
	if m.kernel == "linesOf" { // it has no group to tell
		want = "\ntrue|false|"
	} else if !strings.Contains(string(out), m.want) || !strings.Contains(string(out), m.place()+"|\n") {
		t.Errorf("the status lacks %q or %q", m.want, m.place())
	}
	if !strings.Contains(string(out), want) {
		t.Errorf("got %s; want %q", out, want)
	}
}

// launched runs a kernel on a stream of its own and returns its error.
func launched(t *testing.T, d *gpu.Device, k *gpu.Kernel, shape gpu.LaunchConfig, args ...any) error {
	t.Helper()
	s := newStream(t, d)
	check(t, k.Launch(s, shape, args...))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return s.Synchronize(ctx)
}

// TestFaultTextEnds has a text that is longer than its room.
func TestFaultTextEnds(t *testing.T) {
	s := layout.GroupStatus{Faulted: 2}
	for i := range s.Fault {
		s.Fault[i] = 'x'
	}
	if text, _, ok := s.Checked(); !ok || len(text) != len(s.Fault) {
		t.Errorf("%d bytes, %v", len(text), ok)
	}
}
