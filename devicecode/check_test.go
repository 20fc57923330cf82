package devicecode_test

import (
	"context"
	_ "embed"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed check_test.cu
var checkSource string

// TestChecks has kernels misuse channels and groups. On GPUs this is done by
// TestChecksAreCompiled alone, since a trap ends the process's use of a device.
func TestChecks(t *testing.T) {
	d := testdev.Open(t, 0)
	if d.Info().Arch != devicecode.ArchEmu {
		t.Skip("a check that fails ends the use of a GPU by this process")
	}
	kernel := kernels(t, d, "check_test.cu", checkSource)
	data := upload(t, d, make([]byte, 1<<20))
	status := newStatus(t, d)
	watch := devicecode.Watch{Status: status.memory.Ptr(), Timeout: uint64(10 * time.Second), Peer: 2, Channel: 7}
	channel := devicecode.MemoryChannel{
		Semaphore: devicecode.Device2DeviceSemaphore{Watch: watch},
		Remote:    data.Ptr(), RemoteSize: 160112, Local: data.Ptr(), LocalSize: 150000,
		Packets: data.Ptr(), PacketsSize: 4096,
	}
	shifted := func(by gpu.Ptr) devicecode.MemoryChannel {
		c := channel
		c.Remote += by
		c.Packets += by
		return c
	}
	group := devicecode.Group{
		Rank: 0, Size: 2, ScratchOffset: 8 * devicecode.MaxBlocks, ScratchSize: 4096,
		Epochs: data.Ptr() + 1<<19, Arrivals: data.Ptr() + 1<<19 + 4*devicecode.MaxBlocks, Watch: watch,
	}
	group.Windows[0], group.Windows[1] = data.Ptr(), data.Ptr()
	flat := func(blocks, threads int) gpu.LaunchConfig { return gpu.Blocks(blocks, threads) }
	at := "block (1,0,0), thread (3,0,0): "
	for _, c := range []struct {
		kernel string
		shape  gpu.LaunchConfig
		args   []any
		want   string
		peer   int
	}{
		{"ranges", flat(2, 32), []any{channel, uint32(0), uint64(155000), uint64(0), uint64(10016)}, at + "put of 10016 bytes at 155000 to rank 2, whose buffer has 160112", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(0), uint64(0), uint64(149999), uint64(2)}, at + "put of 2 bytes from this rank's buffer at 149999, which has 150000", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(0), ^uint64(0), uint64(0), uint64(2)}, at + "put of 2 bytes at 18446744073709551615 to rank 2, whose buffer has 160112", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(1), uint64(160113), uint64(0), uint64(0)}, at + "get of 0 bytes at 160113 from rank 2, whose buffer has 160112", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(1), uint64(0), uint64(150000), uint64(1)}, at + "get of 1 bytes to this rank's buffer at 150000, which has 150000", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(2), uint64(160096), uint64(0), uint64(16)}, at + "putPackets of 32 bytes at 160096 to rank 2, whose buffer has 160112", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(2), uint64(8), uint64(0), uint64(16)}, at + "putPackets at 8, which is not a multiple of the packet's 16 bytes", 2},
		{"ranges", flat(2, 32), []any{shifted(8), uint32(2), uint64(16), uint64(0), uint64(16)}, at + "putPackets: the memory of the packets begins 8 bytes past an alignment of 16 bytes", 2},
		{"ranges", flat(2, 32), []any{shifted(8), uint32(3), uint64(16), uint64(0), uint64(16)}, at + "unpackPackets: the memory of the packets begins 8 bytes past an alignment of 16 bytes", 2},
		{"lines", flat(1, 32), []any{shifted(64), uint32(0)}, "putPackets: the memory of the packets begins 64 bytes past an alignment of 128 bytes", 2},
		{"unpackLines", flat(1, 32), []any{shifted(64)}, "unpackPackets: the memory of the packets begins 64 bytes past an alignment of 128 bytes", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(3), uint64(4096), uint64(0), uint64(1)}, at + "unpackPackets of 16 bytes at 4096 of this rank's packet memory, which has 4096", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(4), uint64(0), uint64(20014), uint64(0)}, at + "read of element 20014 of 8 bytes, and the buffer of rank 2 has 160112 bytes", 2},
		{"ranges", flat(2, 32), []any{channel, uint32(4), uint64(20014), uint64(0), uint64(0)}, at + "write of element 20014 of 8 bytes, and the buffer of rank 2 has 160112 bytes", 2},
		{"lines", flat(1, 48), []any{channel, uint32(0)}, "putPackets: 48 threads carry packets, and 32 carry one together: give it whole warps", -1},
		{"lines", flat(1, 32), []any{channel, uint32(16)}, "putPackets: thread 16 of those that carry packets is lane 0 of its warp, not 16", -1},
		{"meet", flat(257, 32), []any{group}, "barrier of a group in a grid of (257,1,1) blocks: it is for one-dimensional grids of at most 256", -1},
		{"meet", gpu.LaunchConfig{Grid: gpu.Dim3{X: 2, Y: 2}, Block: gpu.Dim3{X: 32}}, []any{group}, "barrier of a group in a grid of (2,2,1) blocks", -1},
		{"number", flat(257, 32), []any{group}, "epoch of a group in a grid of (257,1,1) blocks", -1},
		{"count", flat(1, 32), []any{group, uint32(256)}, "Rounds of block 256 of a group, which has 256", -1},
		{"inboxes", flat(1, 1), []any{group, uint64(64)}, "send of packet 64, and an inbox of the group's scratch has 64 of 8 bytes", -1},
		{"inboxes", gpu.LaunchConfig{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 8, Y: 4}}, []any{group, uint64(0)}, "Inboxes in a grid of (1,1,1) blocks of (8,4,1) threads: both must have one dimension", -1},
		{"warps", flat(1, 48), []any{group}, "Inboxes in blocks of 48 threads: the packets need blocks of whole warps, of 32", -1},
		{"each", gpu.LaunchConfig{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 8, Y: 4}}, []any{group}, "forEachRank in a grid", -1},
	} {
		*status.get() = devicecode.GroupStatus{}
		err := launched(t, d, kernel(c.kernel), c.shape, c.args...)
		testerr.Expect(t, err, mscclgo.ErrSystem, "block (", "thread (", c.want)
		text, peer, ok := status.get().Checked()
		if !ok || peer != c.peer || !strings.HasPrefix(text, "block (") || !strings.Contains(text, c.want) {
			t.Errorf("%s: the status has %q for peer %d, %v; want %q for %d", c.kernel, text, peer, ok, c.want, c.peer)
		}
	}

	*status.get() = devicecode.GroupStatus{}
	testerr.Expect(t, launched(t, d, kernel("linesOf"), flat(1, 48), data, data), mscclgo.ErrSystem, "putPackets: 48 threads")
	for _, good := range []error{
		launched(t, d, kernel("ranges"), flat(2, 32), channel, uint32(0), uint64(160112), uint64(150000), uint64(0)),
		launched(t, d, kernel("lines"), flat(1, 64), channel, uint32(0)),
		launched(t, d, kernel("number"), flat(256, 32), group),
		launched(t, d, kernel("count"), flat(1, 32), group, uint32(255)),
		launched(t, d, kernel("inboxes"), flat(1, 1), group, uint64(63)),
	} {
		check(t, good)
	}
	if text, _, ok := status.get().Checked(); ok {
		t.Errorf("a check failed where nothing is wrong: %s", text)
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
	s := devicecode.GroupStatus{Faulted: 2}
	for i := range s.Fault {
		s.Fault[i] = 'x'
	}
	if text, _, ok := s.Checked(); !ok || len(text) != len(s.Fault) {
		t.Errorf("%d bytes, %v", len(text), ok)
	}
}
