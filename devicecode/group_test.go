package devicecode_test

import (
	_ "embed"
	"math"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed group_test.cu
var groupSource string

// member is a rank of a group of this process.
type member struct {
	device *gpu.Device
	stream *gpu.Stream
	kernel func(string) *gpu.Kernel
	status *status
	window *gpu.Buffer
	counts *gpu.Buffer // epochs, then arrivals
	handle layout.Group
	result *gpu.Buffer
}

const resultWords = 2 * devicecode.MaxBlocks

// newMembers makes a group with so many bytes of scratch.
func newMembers(t *testing.T, ranks int, scratch uint64, timeout time.Duration) []*member {
	t.Helper()
	flags := 4 * devicecode.MaxBlocks * uint64(ranks)
	members := make([]*member, ranks)
	for i := range members {
		d := testdev.Open(t, i)
		members[i] = &member{
			device: d, stream: newStream(t, d), kernel: kernels(t, d, "group_test.cu", groupSource), status: newStatus(t, d),
			window: upload(t, d, make([]byte, flags+scratch)),
			counts: upload(t, d, make([]uint32, 2*devicecode.MaxBlocks)),
			result: upload(t, d, make([]uint32, resultWords)),
		}
	}
	for i, m := range members {
		m.handle = layout.Group{
			Rank: uint32(i), Size: uint32(ranks), ScratchOffset: flags, ScratchSize: scratch,
			Epochs: m.counts.Ptr(), Arrivals: m.counts.Ptr() + 4*devicecode.MaxBlocks,
			Watch: layout.Watch{Status: m.status.memory.Ptr(), Timeout: uint64(timeout), Channel: 77},
		}
		for j, other := range members {
			m.handle.Windows[j] = access(t, m.device, other.window).Ptr()
		}
	}
	return members
}

// noneOld runs a kernel on all members that counts the words that were old, and the
// waits that failed, in so many rounds.
func noneOld(t *testing.T, members []*member, kernel string, blocks, threads, rounds int) {
	t.Helper()
	shape := gpu.LaunchConfig{Grid: gpu.Dim3{X: blocks}, Block: gpu.Dim3{X: threads}, Cooperative: true}
	for _, m := range members {
		check(t, m.kernel(kernel).Launch(m.stream, shape, m.handle, uint32(rounds), m.result))
	}
	for _, m := range members {
		synchronize(t, m.stream)
		if n := contents[uint32](t, m.result, 1)[0]; n != 0 {
			t.Errorf("rank %d of %d: %d words were old, %d waits failed", m.handle.Rank, len(members), n&(1<<20-1), n>>20)
		}
	}
}

// TestBarrier has the blocks of several ranks meet, with data that a barrier makes
// visible.
func TestBarrier(t *testing.T) {
	for _, ranks := range []int{1, 2, 3} {
		const blocks, threads, rounds = 4, 64, 300
		members := newMembers(t, ranks, uint64(4*blocks*threads*ranks), 10*time.Second)
		noneOld(t, members, "rounds", blocks, threads, rounds)
	}
}

// TestRounds has rank 0 go on step by step while the others follow, twice, and a
// barrier behind.
func TestRounds(t *testing.T) {
	for _, ranks := range []int{1, 2, 3} {
		const blocks, threads, steps = 4, 64, 50
		members := newMembers(t, ranks, uint64(4*blocks*threads*steps), 10*time.Second)
		noneOld(t, members, "relay", blocks, threads, steps)
		for _, m := range members {
			if got := contents[uint32](t, m.counts, devicecode.MaxBlocks+1)[devicecode.MaxBlocks]; got != 2*steps+1 {
				t.Errorf("rank %d of %d: block 0 counts %d rounds, want %d", m.handle.Rank, ranks, got, 2*steps+1)
			}
		}
	}
}

// TestBarriersOfManyLaunches has grids of changing sizes meet, launch after launch,
// where the counts of a block's barriers wrap around.
func TestBarriersOfManyLaunches(t *testing.T) {
	members := newMembers(t, 2, 0, 10*time.Second)
	for _, m := range members {
		near := make([]uint32, 2*devicecode.MaxBlocks)
		flags := make([]uint32, 2*devicecode.MaxBlocks)
		for i := range devicecode.MaxBlocks {
			near[devicecode.MaxBlocks+i] = math.MaxUint32 - 20
			flags[2*i], flags[2*i+1] = math.MaxUint32-20, math.MaxUint32-20
		}
		check(t, gpu.CopyIn(m.counts, near))
		check(t, gpu.CopyIn(m.window, flags))
	}
	for i := range 60 {
		for _, m := range members {
			check(t, m.kernel("meet").Launch(m.stream, gpu.Blocks(1+i*7%5, 32), m.handle, i%2, m.result))
		}
	}
	for _, m := range members {
		synchronize(t, m.stream)
		for i, r := range contents[uint32](t, m.result, 5*32) {
			if r != 0 {
				t.Fatalf("rank %d, thread %d: %v", m.handle.Rank, i, devicecode.WaitResult(r))
			}
		}
		if got := contents[uint32](t, m.counts, devicecode.MaxBlocks+1)[devicecode.MaxBlocks]; got != 39 {
			t.Errorf("rank %d: block 0 has arrived %d times past the wrap, want 39", m.handle.Rank, got)
		}
	}
}

// TestBarrierEnds calls a barrier that a rank does not come to: every thread hears
// how it ended.
func TestBarrierEnds(t *testing.T) {
	const blocks, threads = 2, 64
	for _, want := range []devicecode.WaitResult{devicecode.WaitTimedOut, devicecode.WaitAborted} {
		timeout := 5 * time.Millisecond
		if want == devicecode.WaitAborted {
			timeout = 25 * time.Second
		}
		members := newMembers(t, 3, 0, timeout)
		come := []*member{members[0], members[2]} // rank 1 does not
		for _, m := range come {
			check(t, m.kernel("meet").Launch(m.stream, gpu.Blocks(blocks, threads), m.handle, 0, m.result))
		}
		if want == devicecode.WaitAborted {
			time.Sleep(2 * time.Millisecond)
			for _, m := range come {
				m.status.abort()
			}
		}
		for _, m := range come {
			synchronize(t, m.stream)
			for i, r := range contents[uint32](t, m.result, blocks*threads) {
				if devicecode.WaitResult(r) != want {
					t.Fatalf("rank %d, thread %d: %v, want %v", m.handle.Rank, i, devicecode.WaitResult(r), want)
				}
			}
			channel, peer, failed := m.status.failed()
			if failed != (want == devicecode.WaitTimedOut) || failed && (channel != 77 || peer == int(m.handle.Rank)) {
				t.Errorf("rank %d, %v: the report names channel %d, peer %d, %v", m.handle.Rank, want, channel, peer, failed)
			}
		}
	}
}

// TestEpochs counts calls with grids of changing sizes, through the wrap-around,
// which skips 0 and keeps odd and even in turn.
func TestEpochs(t *testing.T) {
	m := newMembers(t, 1, 0, time.Second)[0]
	none := make([]uint32, resultWords)
	for i := range devicecode.MaxBlocks {
		none[i] = math.MaxUint32
	}
	grids := []int{8, 3, devicecode.MaxBlocks, 1, 5, devicecode.MaxBlocks, 2}
	for _, first := range []uint32{1, math.MaxUint32 - 3} {
		start := make([]uint32, devicecode.MaxBlocks)
		for i := range start {
			start[i] = first - 1
		}
		check(t, gpu.CopyIn(m.counts, start))
		want := first
		for call, grid := range grids {
			check(t, gpu.CopyIn(m.result, none))
			check(t, m.kernel("call").Launch(m.stream, gpu.Blocks(grid, 32), m.handle, m.result, m.result.Ptr()+4*devicecode.MaxBlocks))
			synchronize(t, m.stream)
			got := contents[uint32](t, m.result, resultWords)
			for b := range grid {
				if least, most := got[b], got[devicecode.MaxBlocks+b]; least != want || most != want {
					t.Fatalf("call %d from %d: block %d of %d saw epochs %d to %d, want %d", call, first, b, grid, least, most, want)
				}
			}
			odd := want % 2
			if want++; want == 0 {
				want = 2
			}
			if want%2 == odd || want == 0 {
				t.Fatalf("after %d comes %d", want-1, want)
			}
		}
	}
}

func TestPeerMemory(t *testing.T) {
	const ranks = 3
	members := newMembers(t, ranks, 0, time.Second)
	for i, m := range members {
		var memory layout.PeerMemory
		for j, other := range members {
			memory.Ranks[j] = access(t, m.device, other.result).Ptr()
		}
		check(t, m.kernel("own").Launch(m.stream, gpu.Blocks(1, 32), memory, i, ranks))
	}
	for _, m := range members {
		synchronize(t, m.stream)
	}
	for i, m := range members {
		for j, v := range contents[uint32](t, m.result, ranks) {
			if v != uint32(100*i+j) {
				t.Errorf("element %d of rank %d's memory is %d", j, i, v)
			}
		}
	}
}

// TestEpochsRepeat makes calls until their numbers have begun again. Rank 0 begins each
// well before the others, and what it receives is never a packet that was left over from
// when the numbers were the same the last time.
func TestEpochsRepeat(t *testing.T) {
	const ranks, blocks, scratch, first, calls = 3, 3, 1 << 14, math.MaxUint32 - 3, 8
	members := newMembers(t, ranks, scratch, time.Minute)
	flags := uint64(4 * devicecode.MaxBlocks * ranks)
	old := make([]uint32, (flags+scratch)/4)
	for i := range devicecode.MaxBlocks * ranks {
		old[i] = 7
	}
	// Call `number` uses packet 64 + number, and has the epoch number - 1 after the wrap.
	for p := range scratch / 8 {
		old[flags/4+2*uint64(p)], old[flags/4+2*uint64(p)+1] = 0xbad, uint32(p%calls-1)
	}
	counts := make([]uint32, 2*devicecode.MaxBlocks)
	for i := range devicecode.MaxBlocks {
		counts[i], counts[devicecode.MaxBlocks+i] = first, 7
	}
	for _, m := range members {
		check(t, gpu.CopyIn(m.window, old))
		check(t, gpu.CopyIn(m.counts, counts))
	}
	for number := range calls {
		for i, m := range members {
			if i == 1 {
				time.Sleep(20 * time.Millisecond) // for rank 0 to find what is wrong, if anything is
			}
			check(t, m.kernel("echo").Launch(m.stream, gpu.Blocks(blocks, 32), m.handle, uint32(64+number), uint32(100*number+i), m.result))
		}
		for i, m := range members {
			synchronize(t, m.stream)
			want := uint32(100*number + (i+1)%ranks)
			if got := contents[uint32](t, m.result, 1)[0]; got != want {
				t.Errorf("call %d: rank %d received %#x, want %d", number, i, got, want)
			}
		}
	}
	for i, m := range members {
		for block, got := range contents[uint32](t, m.counts, devicecode.MaxBlocks) {
			if want := uint32(calls - 3 + 1); got != want {
				t.Fatalf("rank %d, block %d: the last call was number %d, want %d", i, block, got, want)
			}
		}
	}
}

// TestClockStepsBack has a wait find its clock behind the time when it began.
func TestClockStepsBack(t *testing.T) {
	m := newMembers(t, 1, 0, time.Second)[0]
	run(t, m.device, m.kernel("stepBack"), gpu.Blocks(1, 1), m.handle.Watch, m.result)
	if got := devicecode.WaitResult(contents[uint32](t, m.result, 1)[0]); got != devicecode.WaitDone {
		t.Errorf("the wait %v", got)
	}
}
