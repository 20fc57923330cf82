package collective

import (
	"context"
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// slots moves parts by packets, or through the receivers' slots.
type slots struct{ traits }

var (
	slotsFile    = file("alltoallv.cu")
	throughSlots = &slots{traits{name: "slots", unit: slotsFile, warps: true}}
)

const (
	slotsOfStream = 4         // kSlots of alltoallv.cu
	mostPart      = 1<<38 - 1 // bytes, for alltoallv.cu
)

// slotSizes are what alltoallv.cu is launched with, alike on all ranks, and for all ranks
// together: each has its part of them.
type slotSizes struct {
	streams uint64
	slot    uint64 // bytes of each slot, whole lines
	small   uint64 // bytes that go as LL128 packets, where there is NVLink
	tiny    uint64 // bytes that go as LL8 packets, or elsewhere as LL16 packets
}

// defaultSlotSizes have a block for each stream, enough to keep a GPU's links busy. Packets
// end where they do in the tuning of all-to-alls. Among many ranks slots are smaller; see fitting.
var defaultSlotSizes = slotSizes{streams: 128, slot: 64 << 10, small: 8 << 20, tiny: 128 << 10}

// streamsOf returns how many streams each rank has to each.
func (s slotSizes) streamsOf(ranks uint64) uint64 { return max(1, s.streams/ranks) }

// layout returns where in a rank's memory the slots begin, behind the flags and the numbers of calls, and
// where they end.
func (s slotSizes) layout(ranks uint64) (slots, end uint64) {
	streams := s.streamsOf(ranks)
	slots = divideUp((streams+1)*ranks*2*8, line)*line + 8*devicecode.MaxBlocks
	return slots, slots + streams*ranks*slotsOfStream*s.slot
}

// bytes returns the bytes of that memory. Behind the slots is what storeParts stores.
func (s slotSizes) bytes(ranks uint64) uint64 {
	_, end := s.layout(ranks)
	return end + 2*behind(ranks)*spanBytes
}

// slotsChoice is how an all-to-all with counts is done.
var slotsChoice = Choice{throughSlots.name, 128, 512}

// spans are where in a buffer the parts of all ranks are.
type spans []span

// span is Part of alltoallv.cu.
type span struct{ At, Bytes uint64 }

const spanBytes = 16

// parts is Parts of alltoallv.cu.
type parts struct {
	Ranks    [devicecode.RanksByValue]span
	More     gpu.Ptr // of the others'
	Reserved [7]uint64
}

// spansBetween are what an all-to-all moves between any buffers of the ranks, with no registration of these:
// sends are the parts of in that go to each rank, receives the parts of out that come from each. A rank knows its
// own; in that one rank's sends equal the others' receives they agree. in and out are buffers or addresses, and may be
// nil buffers or 0 where nothing is used.
type spansBetween struct {
	in, out         any
	sends, receives spans
	typ             Type
}

// launchCounts returns the launch of an all-to-all with counts. The first time is Collective, the others concern this
// rank alone. The caller holds mu.
func (r *Runner) launchCounts(ctx context.Context, b spansBetween, overlap bool) (launch, error) {
	if len(r.comm.Hosts()) > 1 {
		return r.throughPosts(ctx, b, slotsChoice)
	}
	k, err := r.loadSlots(ctx, slotsChoice.Threads)
	if err != nil {
		return launch{}, err
	}
	return r.launchSlots(k, b, slotsChoice, overlap), nil
}

// loadSlots gets what launches through slots need. The first time with some number of threads is Collective, the
// others concern this rank alone. The caller holds mu.
func (r *Runner) loadSlots(ctx context.Context, threads int) (k launchable, err error) {
	ranks := uint64(r.comm.Size())
	first, _ := r.slotSizes.layout(ranks)
	if _, err := r.allocateOnce(ctx, forSlots, r.slotSizes.bytes(ranks), first); err != nil {
		return launchable{}, err
	}
	name := "slotsLL16"
	if r.link == NVLink {
		name = "slotsLL128"
	}
	return r.storing(ctx, name, threads)
}

// storing returns a kernel of alltoallv.cu, with the kernel that stores spans for it among many ranks.
func (r *Runner) storing(ctx context.Context, name string, threads int) (launchable, error) {
	k, err := r.kernelOf(ctx, slotsFile, name, threads, 0)
	if err == nil && r.comm.Size() > devicecode.RanksByValue {
		var stores launchable
		stores, err = r.kernelOf(ctx, slotsFile, "storeParts", storeThreads, 0)
		k.stores = stores.kernel
	}
	return k, err
}

// launchSlots returns the launch of loadSlots' kernel.
func (r *Runner) launchSlots(k launchable, b spansBetween, choice Choice, overlap bool) launch {
	ranks := uint64(r.comm.Size())
	sizes := r.slotSizes
	_, end := sizes.layout(ranks)
	small, perThread := r.packetBytes(sizes.tiny/ranks, payloadLL16), uint64(payloadLL16)
	if r.link == NVLink {
		small, perThread = r.packetBytes(sizes.small/ranks, payloadLL128), payloadLL128/32
	}
	tiny := min(small, r.packetBytes(sizes.tiny/ranks, payloadLL8))
	most := uint64(0) // bytes of a part
	for rank := range ranks {
		most = max(most, b.sends[rank].Bytes, b.receives[rank].Bytes)
	}
	if r.link == NVLink && most <= tiny {
		perThread = payloadLL8
	}
	blocks := divideUp(most, perThread*uint64(choice.Threads))
	if most > small {
		blocks = sizes.streamsOf(ranks) * ranks
	}
	shape := gpu.Blocks(int(max(1, min(blocks, uint64(choice.Blocks), uint64(k.fit)))), choice.Threads)
	shape.Overlap = overlap && r.comm.Sharers() == 1
	to, from, stores := k.place(b, r.own[forSlots].Ptr()+gpu.Ptr(end))
	return launch{kernel: k.kernel, shape: shape, args: []any{
		r.group, r.own[forSlots].peers(), to, from, b.in, b.out, tiny, small, sizes.slot, uint32(sizes.streamsOf(ranks)), b.typ.device(),
	}, before: stores}
}

// place returns what kernels take of the spans, and the launches that store in device memory, at
// more, the spans of the ranks behind the first.
func (k launchable) place(b spansBetween, more gpu.Ptr) (to, from parts, stores []launch) {
	rest := append(to.take(b.sends), from.take(b.receives)...)
	to.More, from.More = more, more+gpu.Ptr(behind(uint64(len(b.sends)))*spanBytes)
	return to, from, storesOf(k.stores, more, rest)
}

// take copies the spans of the first ranks, and returns the spans of the others.
func (p *parts) take(all spans) []span { return slices.Clone(all[copy(p.Ranks[:], all):]) }

// storesOf returns the launches of a kernel that store values of 16 bytes in device memory. The next
// call's, on the same stream or ordered behind this call, may store theirs in the same place.
func storesOf[T span | workMessage](kernel *gpu.Kernel, to gpu.Ptr, all []T) (stores []launch) {
	var some struct {
		To              gpu.Ptr
		Count, Reserved uint32
		Values          [inStore]T
	}
	for first := 0; first < len(all); first += inStore {
		some.To = to + gpu.Ptr(first*spanBytes)
		some.Count = uint32(copy(some.Values[:], all[first:]))
		stores = append(stores, launch{kernel: kernel, shape: gpu.Blocks(1, storeThreads), args: []any{some}})
	}
	return stores
}

// behind returns how many of so many ranks are behind the first, which handles hold themselves.
func behind(ranks uint64) uint64 {
	return max(ranks, devicecode.RanksByValue) - devicecode.RanksByValue
}

// packetBytes returns how many bytes go as packets: as many as are wanted, if an inbox
// holds them.
func (r *Runner) packetBytes(want, payload uint64) uint64 {
	return min(want, r.capacity(payload)*payload)
}

func (a *slots) fits(_ *Runner, c *Call) error {
	if c.part() > mostPart {
		return fmt.Errorf("parts of %d bytes are larger than the %d that %s moves", c.part(), uint64(mostPart), a.name)
	}
	return nil
}

func (a *slots) reach(Kind) reach { return reachNothing }

func (a *slots) load(ctx context.Context, r *Runner, c *Call) (launchable, error) {
	return r.loadSlots(ctx, c.Threads)
}

// launch takes the addresses of this rank's buffers alone.
func (a *slots) launch(r *Runner, c *Call, k launchable, in, out devicecode.PeerMemory) launch {
	own := func(m devicecode.PeerMemory) gpu.Ptr {
		if r.group.Rank < devicecode.RanksByValue {
			return m.Ranks[r.group.Rank]
		}
		return m.Own
	}
	b := spansBetween{own(in), own(out), make(spans, r.comm.Size()), make(spans, r.comm.Size()), c.Type}
	one, all := b.sends, b.receives // of a gather
	if c.Kind == Scatter {
		one, all = all, one
	}
	one[c.Root].Bytes = c.part()
	if r.comm.Rank() == c.Root {
		for rank := range r.comm.Size() {
			all[rank].At, all[rank].Bytes = uint64(rank)*c.part(), c.part()
		}
	}
	return r.launchSlots(k, b, c.Choice, c.Overlap)
}
