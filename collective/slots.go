package collective

import (
	"context"
	"slices"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	partsInStore  = 240       // kInStore of alltoallv.cu
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
var slotsChoice = Choice{slots.name, 128, 512}

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

// throughSlots returns the launch of an all-to-all between any buffers of the ranks,
// with no registration of these: sends are the parts of in that go to each rank, receives
// the spans of out that come from each. A rank knows its own; in that one rank's sends equal
// the others' receives they agree. A buffer of which no part is used may be nil. The
// first launch with some number of threads is Collective, the others concern this rank
// alone. The caller holds mu.
func (r *Runner) throughSlots(ctx context.Context, in, out *gpu.Buffer, sends, receives spans, t Type, rooted bool, choice Choice, overlap bool) (launch, error) {
	if len(r.comm.Hosts()) > 1 {
		return r.throughPosts(ctx, in, out, sends, receives, t, rooted, choice)
	}
	ranks := uint64(r.comm.Size())
	sizes := r.slotSizes
	first, end := sizes.layout(ranks)
	if err := r.allocateOnce(ctx, &r.slots, forSlots, sizes.bytes(ranks), first); err != nil {
		return launch{}, err
	}
	name, small, perThread := "slotsLL16", r.packetBytes(sizes.tiny/ranks, payloadLL16), uint64(payloadLL16)
	if r.link == NVLink {
		name, small, perThread = "slotsLL128", r.packetBytes(sizes.small/ranks, payloadLL128), payloadLL128/32
	}
	tiny := min(small, r.packetBytes(sizes.tiny/ranks, payloadLL8))
	src := source{"alltoallv.cu", allToAllVSource}
	kernel, fit, err := r.kernelOf(ctx, src, devicecode.Options{}, src.name, name, choice.Threads)
	if err != nil {
		return launch{}, err
	}

	most := uint64(0) // bytes of a part
	for rank := range ranks {
		most = max(most, sends[rank].Bytes, receives[rank].Bytes)
	}
	if name == "slotsLL128" && most <= tiny {
		perThread = payloadLL8
	}
	blocks := divideUp(most, perThread*uint64(choice.Threads))
	if most > small {
		blocks = sizes.streamsOf(ranks) * ranks
	}
	shape := gpu.Blocks(int(max(1, min(blocks, uint64(choice.Blocks), uint64(fit)))), choice.Threads)
	shape.Overlap = overlap && r.comm.Sharers() == 1
	to, from, stores, err := r.placeParts(ctx, src, sends, receives, r.slots.Buffer.Ptr()+gpu.Ptr(end))
	if err != nil {
		return launch{}, err
	}
	return launch{kernel: kernel, shape: shape, args: []any{
		r.group, r.slots.peers(), to, from, pointer(in), pointer(out), tiny, small, sizes.slot, uint32(sizes.streamsOf(ranks)), t.device(),
	}, before: stores}, nil
}

// placeParts returns what kernels take of the spans, and the launches that store in device memory, at
// more, the spans of the ranks behind the first.
func (r *Runner) placeParts(ctx context.Context, src source, sends, receives spans, more gpu.Ptr) (to, from parts, stores []launch, err error) {
	rest := append(to.take(sends), from.take(receives)...)
	to.More, from.More = more, more+gpu.Ptr(behind(uint64(len(sends)))*spanBytes)
	stores, err = r.storeSpans(ctx, src, more, rest)
	return to, from, stores, err
}

// take copies the spans of the first ranks, and returns the spans of the others.
func (p *parts) take(all spans) []span { return slices.Clone(all[copy(p.Ranks[:], all):]) }

// storeSpans returns the launches that store spans in device memory, if there are any. The next
// call's, on the same stream or ordered behind this call, store theirs in the same place.
func (r *Runner) storeSpans(ctx context.Context, src source, to gpu.Ptr, all []span) (stores []launch, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	kernel, _, err := r.kernelOf(ctx, src, devicecode.Options{}, src.name, "storeParts", storeThreads)
	if err != nil {
		return nil, err
	}
	var some struct {
		To              gpu.Ptr
		Count, Reserved uint32
		Parts           [partsInStore]span
	}
	for first := 0; first < len(all); first += partsInStore {
		some.To = to + gpu.Ptr(first*spanBytes)
		some.Count = uint32(copy(some.Parts[:], all[first:]))
		stores = append(stores, launch{kernel: kernel, shape: gpu.Blocks(1, storeThreads), args: []any{some}})
	}
	return stores, nil
}

// behind returns how many of so many ranks are behind the first, which handles hold themselves.
func behind(ranks uint64) uint64 {
	return max(ranks, devicecode.RanksByValue) - devicecode.RanksByValue
}

// packetBytes returns how many bytes go as packets: as many as are wanted, if an inbox
// holds them.
func (r *Runner) packetBytes(want, payload uint64) uint64 {
	return min(want, r.capacity(algorithm{payload: payload})*payload)
}

// pointer returns an argument for a buffer or none.
func pointer(b *gpu.Buffer) any {
	if b == nil {
		return gpu.Ptr(0)
	}
	return b
}

// rootedSlots returns the launch of a gather or a scatter between any buffers; see
// throughSlots.
func (r *Runner) rootedSlots(ctx context.Context, c *Call, in, out *gpu.Buffer) (launch, error) {
	sends, receives := make(spans, r.comm.Size()), make(spans, r.comm.Size())
	one, all := sends, receives // of a gather
	if c.Kind == Scatter {
		one, all = all, one
	}
	one[c.Root].Bytes = c.part()
	if r.comm.Rank() == c.Root {
		for rank := range r.comm.Size() {
			all[rank].At, all[rank].Bytes = uint64(rank)*c.part(), c.part()
		}
	}
	return r.throughSlots(ctx, in, out, sends, receives, c.Type, true, c.Choice, c.Overlap)
}
