package devicecode_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const addressesSource = `#include <mscclgo/group.cuh>
extern "C" __global__ void addresses(mscclgo::PeerMemory memory, mscclgo::GroupHandle group, uint64_t* out) {
  for (uint32_t rank = threadIdx.x; rank < group.size; rank += blockDim.x) {
    out[2 * rank] = reinterpret_cast<uint64_t>(memory.of<uint8_t>(rank));
    out[2 * rank + 1] = reinterpret_cast<uint64_t>(group.window(rank));
  }
}
`

// TestManyAddresses has a kernel tell the addresses of all ranks' memories by handles: addresses in
// the handles themselves, addresses in device memory, and one that was set.
func TestManyAddresses(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "addresses.cu", addressesSource)("addresses")
	const offset, stride = 48, 1 << 20
	for _, ranks := range []int{1, layout.RanksByValue, layout.RanksByValue + 1, devicecode.MaxRanks} {
		for _, own := range []int{0, ranks / 2, ranks - 1} {
			all := make([]gpu.Ptr, ranks)
			var want []uint64
			for rank := range all {
				all[rank] = gpu.Ptr(0x7000_0000_0000 + rank*0x1000)
				at := uint64(all[rank]) + offset + uint64(rank)*stride
				if rank == own {
					at = 0x1234_0000
				}
				want = append(want, at, uint64(all[rank]))
			}
			var memory layout.PeerMemory
			group := layout.Group{Size: uint32(ranks)}
			copy(memory.Ranks[:], all)
			if more := all[copy(group.Windows[:], all):]; len(more) > 0 {
				memory.More = upload(t, d, more).Ptr()
				group.More = memory.More
			}
			memory.Shift(ranks, offset-8, stride)
			memory.Shift(ranks, 8, 0)
			memory.Set(uint64(own), 0x1234_0000)
			out := upload(t, d, make([]uint64, 2*ranks))
			run(t, d, kernel, gpu.Blocks(1, 64), memory, group, out)
			testcmp.Equal(t, "the addresses", contents[uint64](t, out, 2*ranks), want)
		}
	}
}

// TestFewRanks compiles a kernel for groups whose handles hold all addresses. On emulated devices it
// checks that none is larger.
func TestFewRanks(t *testing.T) {
	d := testdev.Open(t, 0)
	module, err := devicecode.Load(t.Context(), d, "addresses.cu", []byte(addressesSource), devicecode.Options{Defines: []string{"MSCCLGO_FEW_RANKS"}})
	check(t, err)
	t.Cleanup(func() { check(t, module.Close()) })
	kernel, err := module.Kernel("addresses")
	check(t, err)
	status := newStatus(t, d)
	group := layout.Group{Size: layout.RanksByValue, Watch: layout.Watch{Status: status.memory.Ptr(), Timeout: uint64(time.Second)}}
	var memory layout.PeerMemory
	var want []uint64
	for rank := range memory.Ranks {
		memory.Ranks[rank], group.Windows[rank] = gpu.Ptr(rank+1), gpu.Ptr(1000+rank)
		want = append(want, uint64(rank+1), uint64(1000+rank))
	}
	out := upload(t, d, make([]uint64, 2*devicecode.MaxRanks))
	run(t, d, kernel, gpu.Blocks(1, 32), memory, group, out)
	testcmp.Equal(t, "the addresses", contents[uint64](t, out, len(want)), want)
	if d.Info().Arch != devicecode.ArchEmu {
		return
	}
	group.Size++
	memory.More = upload(t, d, slices.Repeat([]gpu.Ptr{1}, 8)).Ptr()
	group.More = memory.More
	testerr.Expect(t, launched(t, d, kernel, gpu.Blocks(1, 32), memory, group, out), mscclgo.ErrSystem, "the window of rank 72 in a kernel compiled with MSCCLGO_FEW_RANKS, for 72 ranks")
	if _, peer, ok := status.get().Checked(); !ok || peer != layout.RanksByValue {
		t.Errorf("the check concerns peer %d, %v", peer, ok)
	}
}

// TestFourRanks compiles inboxes for groups of at most four ranks. On emulated devices it checks that none
// is larger.
func TestFourRanks(t *testing.T) {
	const source = `
#include <mscclgo/collective.cuh>

extern "C" __global__ void boxes(mscclgo::GroupHandle group) { mscclgo::Inboxes<mscclgo::LL8Packet> boxes(group); }
`
	d := testdev.Open(t, 0)
	module, err := devicecode.Load(t.Context(), d, "boxes.cu", []byte(source), devicecode.Options{Defines: []string{"MSCCLGO_FOUR_RANKS"}, Check: true})
	check(t, err)
	t.Cleanup(func() { check(t, module.Close()) })
	kernel, err := module.Kernel("boxes")
	check(t, err)
	status := newStatus(t, d)
	group := layout.Group{Size: 4, Watch: layout.Watch{Status: status.memory.Ptr(), Timeout: uint64(time.Second)}}
	run(t, d, kernel, gpu.Blocks(1, 32), group)
	if text, _, ok := status.get().Checked(); ok {
		t.Errorf("a group of four: %s", text)
	}
	if d.Info().Arch != devicecode.ArchEmu {
		return // a check that fails ends the context of a GPU
	}
	group.Size++
	err = launched(t, d, kernel, gpu.Blocks(1, 32), group)
	if text, _, ok := status.get().Checked(); !ok || !strings.Contains(text, "Inboxes of 5 ranks in a kernel compiled with MSCCLGO_FOUR_RANKS") {
		t.Errorf("a group of five: %q, %v, and the launch returned %v", text, ok, err)
	}
}
