package main

import (
	"context"
	"slices"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
)

// A call is what ranks do together. Its element types are those that package elements can
// check.
type call struct {
	kind collective.Kind
	typ  collective.Type
	op   collective.Op
}

// calls are those of the runs: each kind, type and operation at least once, and not all
// combinations, which would be compiled for minutes.
var calls = []call{
	{collective.AllReduce, collective.F32, collective.Sum},
	{collective.AllReduce, collective.BF16, collective.Avg},
	{collective.AllReduce, collective.U8, collective.Max},
	{collective.ReduceScatter, collective.F16, collective.Sum},
	{collective.ReduceScatter, collective.I64, collective.Prod},
	{collective.Reduce, collective.F64, collective.Min},
	{collective.AllGather, collective.I32, 0},
	{collective.AllToAll, collective.F32, 0},
	{collective.SendReceive, collective.U8, 0},
	{collective.Broadcast, collective.F64, 0},
	{collective.Gather, collective.BF16, 0},
	{collective.Scatter, collective.I64, 0},
}

// counts are the elements of a part of a call: a few, odd ones, and many, for which other
// algorithms are chosen.
var counts = []uint64{1, 3, 1000, 8192, 40000}

// The inbox has a slot for each step, and then what this rank puts.
const slots, slotSize = 128, 1024

// seed returns the one of a part of a rank's input in a step.
func (w *worker) seed(step, rank, part int) uint64 {
	return w.Seed + uint64(step)<<32 + uint64(rank)<<16 + uint64(part)
}

// collective makes a call, and counts the wrong elements if it is told that all went well.
func (w *worker) collective(ctx context.Context, c call, count uint64, root, step int) error {
	me, ranks := w.comm.Rank(), w.comm.Size()
	typ, err := elements.Of(c.typ)
	if err != nil {
		return err
	}
	part := int(count) * c.typ.Size()
	in, out := make([]byte, part*c.kind.InParts(ranks)), make([]byte, part*c.kind.OutParts(ranks))
	for p := range c.kind.InParts(ranks) {
		typ.Fill(in[p*part:][:part], w.seed(step, me, p))
	}
	for i := range out {
		out[i] = 0xa5 // so that what an earlier call left is not taken for right
	}
	if err := gpu.CopyIn(w.in, in); err != nil {
		return err
	}
	if err := gpu.CopyIn(w.out, out); err != nil {
		return err
	}
	if err := w.queue(c, count, root); err != nil {
		return err
	}
	if err := w.comm.Synchronize(ctx, w.stream); err != nil {
		return err
	}
	if err := gpu.CopyOut(out, w.out); err != nil {
		return err
	}
	from := func(part int) (seeds []uint64) { // all ranks' inputs
		for rank := range ranks {
			seeds = append(seeds, w.seed(step, rank, part))
		}
		return seeds
	}
	wrong := 0
	parts := func(seeds ...uint64) {
		for i, seed := range seeds {
			wrong += typ.Wrong(out[i*part:][:part], seed)
		}
	}
	switch c.kind {
	case collective.AllReduce:
		wrong = typ.WrongReduced(out, c.op, from(0), ranks)
	case collective.ReduceScatter:
		wrong = typ.WrongReduced(out, c.op, from(me), ranks)
	case collective.Reduce:
		if me == root {
			wrong = typ.WrongReduced(out[:part], c.op, from(0), ranks)
		}
	case collective.AllGather:
		parts(from(0)...)
	case collective.AllToAll:
		parts(from(me)...)
	case collective.SendReceive:
		parts(w.seed(step, (me+ranks-1)%ranks, 0))
	case collective.Broadcast:
		parts(w.seed(step, root, 0))
	case collective.Gather:
		if me == root {
			parts(from(0)...)
		}
	case collective.Scatter:
		parts(w.seed(step, root, me))
	}
	w.wrong += uint64(wrong)
	return nil
}

// fits reports whether a call can be made among these ranks, which may not map each other's
// memory.
func (w *worker) fits(c call) bool {
	for _, count := range counts {
		if _, err := w.runner.Choose(collective.Call{Kind: c.kind, Type: c.typ, Op: c.op, Count: count}); err != nil {
			return false
		}
	}
	return true
}

// queue makes a call.
func (w *worker) queue(c call, count uint64, root int) error {
	r, s, in, out := w.runner, w.stream, w.in, w.out
	switch c.kind {
	case collective.AllReduce:
		return r.AllReduce(s, out, in, count, c.typ, c.op)
	case collective.ReduceScatter:
		return r.ReduceScatter(s, out, in, count, c.typ, c.op)
	case collective.Reduce:
		return r.Reduce(s, out, in, count, c.typ, c.op, root)
	case collective.AllGather:
		return r.AllGather(s, out, in, count, c.typ)
	case collective.AllToAll:
		return r.AllToAll(s, out, in, count, c.typ)
	case collective.SendReceive:
		return r.SendReceive(s, out, in, count, c.typ)
	case collective.Broadcast:
		return r.Broadcast(s, out, in, count, c.typ, root)
	case collective.Gather:
		return r.Gather(s, out, in, count, c.typ, root)
	}
	return r.Scatter(s, out, in, count, c.typ, root)
}

// shift puts a slot to the next of the ranks that have handles, nil for all, and checks what
// comes from the one before.
func (w *worker) shift(ctx context.Context, kernel string, handles *gpu.Buffer, ranks []int, step int, mute bool) error {
	me, n := w.comm.Rank(), w.comm.Size()
	left := (me + n - 1) % n
	if ranks != nil {
		n = len(ranks)
		me = slices.Index(ranks, me)
		left = ranks[(me+n-1)%n]
	}
	typ, err := elements.Of(collective.U8)
	if err != nil {
		return err
	}
	const source = slots * slotSize
	bytes := make([]byte, slotSize)
	typ.Fill(bytes, w.seed(step, w.comm.Rank(), 0))
	mine, err := w.inbox.Slice(source, slotSize)
	if err != nil {
		return err
	}
	if err := gpu.CopyIn(mine, bytes); err != nil {
		return err
	}
	slot := uint64(step % slots * slotSize)
	if err := w.launch(ctx, kernel, handles, uint32((me+1)%n), uint32((me+n-1)%n), slot, uint64(source), mute); err != nil {
		return err
	}
	received, err := w.inbox.Slice(slot, slotSize)
	if err != nil {
		return err
	}
	if err := gpu.CopyOut(bytes, received); err != nil {
		return err
	}
	w.wrong += uint64(typ.Wrong(bytes, w.seed(step, left, 0)))
	return nil
}
