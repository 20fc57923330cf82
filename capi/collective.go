package capi

// #include "process.h"
import "C"

import (
	"context"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
)

// collect queues a collective on any memory. root and op are of one that has them.
func (c *call) collect(kind collective.Kind, group, stream handle, out, in address, count uint64, elements C.mscclgo_type, operation C.mscclgo_operation, root int) error {
	g, s := c.to(kind.String()).group(group), c.stream(stream)
	t, vouched, err := elementsOf(c.op, elements)
	c.check(err)
	if operation > 255 {
		return invalid(c.op, "%d is not an operation", int(operation))
	}
	op := collective.Op(operation)
	rank, ranks := g.comm.Rank(), g.comm.Size()
	readsIn, writesOut := true, true
	if kind.Rooted() {
		readsIn = root == rank || kind == collective.Reduce || kind == collective.Gather
		writesOut = root == rank || kind == collective.Broadcast || kind == collective.Scatter
	}
	var to, from *gpu.Buffer
	if writesOut {
		to = c.memory(g, "out", out, count, uint64(kind.OutParts(ranks)*t.Size()), vouched)
	}
	switch {
	case to != nil && readsIn && in == out && kind.InParts(ranks) == kind.OutParts(ranks):
		from = to // to look memory up takes a part of the call's time
	case readsIn:
		from = c.memory(g, "in", in, count, uint64(kind.InParts(ranks)*t.Size()), vouched)
	}
	r, err := g.collectives()
	c.check(err)
	return r.Do(s, to, from, collective.Call{Kind: kind, Type: t, Op: op, Count: count, Root: root})
}

// elementsOf returns the type of elements of a call, and whether the caller vouches for its memory.
func elementsOf(op string, given C.mscclgo_type) (t collective.Type, vouched bool, err error) {
	plain := given &^ C.MSCCLGO_VOUCHED
	if t = collective.Type(plain); plain > 255 || t.Size() == 0 {
		return t, false, invalid(op, "%d is not a type of elements", int(given))
	}
	return t, plain != given, nil
}

// memory is find, and ends the call where there is none.
func (c *call) memory(g *group, which string, at address, count, bytes uint64, vouched bool) *gpu.Buffer {
	b, err := g.memory(c.op, which, at, count, bytes, vouched)
	c.check(err)
	return b
}

// memory returns the memory of count elements of some bytes at an address, or nil if count is 0.
func (g *group) memory(op, which string, at address, count, bytes uint64, vouched bool) (*gpu.Buffer, error) {
	if count == 0 {
		return nil, nil
	}
	if at == 0 {
		return nil, invalid(op, "%s is NULL", which)
	}
	if count > 1<<62/bytes {
		return nil, invalid(op, "no device has memory for %d elements", count)
	}
	if vouched {
		last := &g.vouched[at/512%address(len(g.vouched))]
		if b := last.Load(); b != nil && b.Ptr() == gpu.Ptr(at) && b.Size() == count*bytes {
			return b, nil
		}
		if b := g.comm.Device().Internal().WrapVouched(uint64(at), count*bytes); b != nil {
			last.Store(b)
			return b, nil
		}
	}
	b, err := g.comm.Device().Wrap(gpu.Ptr(at), count*bytes)
	if err != nil {
		// Memory of the host is the device's as long as there is a buffer of it.
		if part := objects.part(g.device, gpu.Ptr(at), count*bytes); part != nil {
			return part, nil
		}
		if wrong := objects.address(op, which, at); wrong != nil {
			return nil, wrong
		}
	}
	return b, err
}

func (c *call) allReduce(group, stream handle, out, in address, count uint64, t C.mscclgo_type, op C.mscclgo_operation) error {
	return c.collect(collective.AllReduce, group, stream, out, in, count, t, op, 0)
}

func (c *call) allGather(group, stream handle, out, in address, count uint64, t C.mscclgo_type) error {
	return c.collect(collective.AllGather, group, stream, out, in, count, t, 0, 0)
}

func (c *call) reduceScatter(group, stream handle, out, in address, count uint64, t C.mscclgo_type, op C.mscclgo_operation) error {
	return c.collect(collective.ReduceScatter, group, stream, out, in, count, t, op, 0)
}

func (c *call) allToAll(group, stream handle, out, in address, count uint64, t C.mscclgo_type) error {
	return c.collect(collective.AllToAll, group, stream, out, in, count, t, 0, 0)
}

func (c *call) broadcast(group, stream handle, out, in address, count uint64, t C.mscclgo_type, root int) error {
	return c.collect(collective.Broadcast, group, stream, out, in, count, t, 0, root)
}

func (c *call) reduce(group, stream handle, out, in address, count uint64, t C.mscclgo_type, op C.mscclgo_operation, root int) error {
	return c.collect(collective.Reduce, group, stream, out, in, count, t, op, root)
}

func (c *call) gather(group, stream handle, out, in address, count uint64, t C.mscclgo_type, root int) error {
	return c.collect(collective.Gather, group, stream, out, in, count, t, 0, root)
}

func (c *call) scatter(group, stream handle, out, in address, count uint64, t C.mscclgo_type, root int) error {
	return c.collect(collective.Scatter, group, stream, out, in, count, t, 0, root)
}

func (c *call) sendReceive(group, stream handle, out, in address, count uint64, t C.mscclgo_type) error {
	return c.collect(collective.SendReceive, group, stream, out, in, count, t, 0, 0)
}

func (c *call) allToAllV(group, stream handle, out, in address, sends, receives *C.uint64_t, elements C.mscclgo_type) error {
	g, s := c.to("all-to-all with counts").group(group), c.stream(stream)
	t, vouched, err := elementsOf(c.op, elements)
	c.check(err)
	sendCounts, sent := c.counts(sends, g.comm.Size())
	receiveCounts, received := c.counts(receives, g.comm.Size())
	to := c.memory(g, "out", out, received, uint64(t.Size()), vouched)
	from := c.memory(g, "in", in, sent, uint64(t.Size()), vouched)
	r, err := g.collectives()
	c.check(err)
	return r.AllToAllV(s, to, from, sendCounts, receiveCounts, t)
}

func (c *call) collectiveLoad(group handle, kind C.mscclgo_collective, count uint64, elements C.mscclgo_type, operation C.mscclgo_operation, root int) error {
	g := c.to("prepare the first call of a collective").group(group)
	t, _, err := elementsOf(c.op, elements)
	c.check(err)
	if kind > 255 || operation > 255 {
		return invalid(c.op, "there is no collective %d, or no operation %d", int(kind), int(operation))
	}
	r, err := g.collectives()
	c.check(err)
	return r.Load(context.Background(), collective.Call{
		Kind: collective.Kind(kind), Type: t, Op: collective.Op(operation), Count: count, Root: root,
	})
}

// counts returns a count for each rank, and their sum.
func (c *call) counts(at *C.uint64_t, ranks int) (all []uint64, sum uint64) {
	given, err := array(c.op, at, ranks)
	c.check(err)
	all = make([]uint64, ranks)
	for i, n := range given {
		all[i] = uint64(n)
		if sum += all[i]; sum < all[i] {
			c.check(invalid(c.op, "no memory has room for the elements of all ranks"))
		}
	}
	return all, sum
}
