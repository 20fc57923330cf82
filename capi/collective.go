package main

// #include "process.h"
import "C"

import (
	"context"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
)

// collectiveCall is a collective that a rank calls: what all of them have in common.
type collectiveCall struct {
	kind          collective.Kind
	group, stream C.uintptr_t
	out, in       C.uintptr_t
	count         C.uint64_t
	elements      C.mscclgo_type
	op            C.mscclgo_operation
	root          C.int
}

// do makes the buffers of the call and has f called with them.
func (c *collectiveCall) do(f func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, op collective.Op, root int) error) C.mscclgo_status {
	name := c.kind.String()
	return withGroup(name, c.group, func(_ *object, g *group) error {
		return of(name, aStream, c.stream, func(_ *object, s *gpu.Stream) error {
			t, vouched, err := elementsOf(name, c.elements)
			if err != nil {
				return err
			}
			if c.op > 255 {
				return invalid(name, "%d is not an operation", int(c.op))
			}
			rank, ranks, root := g.comm.Rank(), g.comm.Size(), int(c.root)
			readsIn, writesOut := true, true
			if c.kind.Rooted() {
				readsIn = root == rank || c.kind == collective.Reduce || c.kind == collective.Gather
				writesOut = root == rank || c.kind == collective.Broadcast || c.kind == collective.Scatter
			}
			part := func(which string, address C.uintptr_t, parts int) (*gpu.Buffer, error) {
				return g.memory(name, which, address, uint64(c.count), uint64(parts)*uint64(t.Size()), vouched)
			}
			var out, in *gpu.Buffer
			if writesOut {
				if out, err = part("out", c.out, c.kind.OutParts(ranks)); err != nil {
					return err
				}
			}
			switch {
			case out != nil && readsIn && c.in == c.out && c.kind.InParts(ranks) == c.kind.OutParts(ranks):
				in = out // to look memory up takes a part of the call's time
			case readsIn:
				if in, err = part("in", c.in, c.kind.InParts(ranks)); err != nil {
					return err
				}
			}
			r, err := g.collectives()
			if err != nil {
				return err
			}
			return f(r, s, out, in, uint64(c.count), t, collective.Op(c.op), root)
		})
	})
}

// elementsOf returns the type of elements of a call, and whether the caller vouches for its memory.
func elementsOf(op string, given C.mscclgo_type) (t collective.Type, vouched bool, err error) {
	plain := given &^ C.MSCCLGO_VOUCHED
	if t = collective.Type(plain); plain > 255 || t.Size() == 0 {
		return t, false, invalid(op, "%d is not a type of elements", int(given))
	}
	return t, plain != given, nil
}

// memory returns the memory of count elements of some bytes at an address, or nil if count is 0.
func (g *group) memory(op, which string, address C.uintptr_t, count, bytes uint64, vouched bool) (*gpu.Buffer, error) {
	if count == 0 {
		return nil, nil
	}
	if address == 0 {
		return nil, invalid(op, "%s is NULL", which)
	}
	if count > 1<<62/bytes {
		return nil, invalid(op, "no device has memory for %d elements", count)
	}
	if vouched {
		last := &g.vouched[address/512%C.uintptr_t(len(g.vouched))]
		if b := last.Load(); b != nil && b.Ptr() == gpu.Ptr(address) && b.Size() == count*bytes {
			return b, nil
		}
		if b, ok := native.WrapVouched(g.comm.Device(), uint64(address), count*bytes).(*gpu.Buffer); ok {
			last.Store(b)
			return b, nil
		}
	}
	b, err := g.comm.Device().Wrap(gpu.Ptr(address), count*bytes)
	if err != nil {
		// Memory of the host is the device's as long as there is a buffer of it.
		if part := objects.part(g.device, gpu.Ptr(address), count*bytes); part != nil {
			return part, nil
		}
		if wrong := objects.address(op, which, address); wrong != nil {
			return nil, wrong
		}
	}
	return b, err
}

//export capi_all_reduce
func capi_all_reduce(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type, op C.mscclgo_operation) C.mscclgo_status {
	c := collectiveCall{kind: collective.AllReduce, group: group, stream: stream, out: out, in: in, count: count, elements: elements, op: op}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, op collective.Op, _ int) error {
		return r.AllReduce(s, out, in, n, t, op)
	})
}

//export capi_all_gather
func capi_all_gather(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type) C.mscclgo_status {
	c := collectiveCall{kind: collective.AllGather, group: group, stream: stream, out: out, in: in, count: count, elements: elements}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, _ collective.Op, _ int) error {
		return r.AllGather(s, out, in, n, t)
	})
}

//export capi_reduce_scatter
func capi_reduce_scatter(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type, op C.mscclgo_operation) C.mscclgo_status {
	c := collectiveCall{kind: collective.ReduceScatter, group: group, stream: stream, out: out, in: in, count: count, elements: elements, op: op}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, op collective.Op, _ int) error {
		return r.ReduceScatter(s, out, in, n, t, op)
	})
}

//export capi_all_to_all
func capi_all_to_all(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type) C.mscclgo_status {
	c := collectiveCall{kind: collective.AllToAll, group: group, stream: stream, out: out, in: in, count: count, elements: elements}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, _ collective.Op, _ int) error {
		return r.AllToAll(s, out, in, n, t)
	})
}

//export capi_broadcast
func capi_broadcast(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type, root C.int) C.mscclgo_status {
	c := collectiveCall{kind: collective.Broadcast, group: group, stream: stream, out: out, in: in, count: count, elements: elements, root: root}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, _ collective.Op, root int) error {
		return r.Broadcast(s, out, in, n, t, root)
	})
}

//export capi_reduce
func capi_reduce(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type, op C.mscclgo_operation, root C.int) C.mscclgo_status {
	c := collectiveCall{kind: collective.Reduce, group: group, stream: stream, out: out, in: in, count: count, elements: elements, op: op, root: root}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, op collective.Op, root int) error {
		return r.Reduce(s, out, in, n, t, op, root)
	})
}

//export capi_gather
func capi_gather(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type, root C.int) C.mscclgo_status {
	c := collectiveCall{kind: collective.Gather, group: group, stream: stream, out: out, in: in, count: count, elements: elements, root: root}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, _ collective.Op, root int) error {
		return r.Gather(s, out, in, n, t, root)
	})
}

//export capi_scatter
func capi_scatter(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type, root C.int) C.mscclgo_status {
	c := collectiveCall{kind: collective.Scatter, group: group, stream: stream, out: out, in: in, count: count, elements: elements, root: root}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, _ collective.Op, root int) error {
		return r.Scatter(s, out, in, n, t, root)
	})
}

//export capi_send_receive
func capi_send_receive(group, stream, out, in C.uintptr_t, count C.uint64_t, elements C.mscclgo_type) C.mscclgo_status {
	c := collectiveCall{kind: collective.SendReceive, group: group, stream: stream, out: out, in: in, count: count, elements: elements}
	return c.do(func(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, n uint64, t collective.Type, _ collective.Op, _ int) error {
		return r.SendReceive(s, out, in, n, t)
	})
}

//export capi_all_to_all_v
func capi_all_to_all_v(handle, stream, out, in C.uintptr_t, sends, receives *C.uint64_t, elements C.mscclgo_type) C.mscclgo_status {
	const op = "all-to-all with counts"
	return withGroup(op, handle, func(_ *object, g *group) error {
		return of(op, aStream, stream, func(_ *object, s *gpu.Stream) error {
			t, vouched, err := elementsOf(op, elements)
			if err != nil {
				return err
			}
			ranks := g.comm.Size()
			sendCounts, sent, err := counts(op, sends, ranks)
			if err != nil {
				return err
			}
			receiveCounts, received, err := counts(op, receives, ranks)
			if err != nil {
				return err
			}
			to, err := g.memory(op, "out", out, received, uint64(t.Size()), vouched)
			if err != nil {
				return err
			}
			from, err := g.memory(op, "in", in, sent, uint64(t.Size()), vouched)
			if err != nil {
				return err
			}
			r, err := g.collectives()
			if err != nil {
				return err
			}
			return r.AllToAllV(s, to, from, sendCounts, receiveCounts, t)
		})
	})
}

//export capi_collective_load
func capi_collective_load(handle C.uintptr_t, kind C.mscclgo_collective, count C.uint64_t, elements C.mscclgo_type, operation C.mscclgo_operation, root C.int) C.mscclgo_status {
	const op = "prepare the first call of a collective"
	return withGroup(op, handle, func(_ *object, g *group) error {
		t, _, err := elementsOf(op, elements)
		if err != nil {
			return err
		}
		if kind > 255 || operation > 255 {
			return invalid(op, "there is no collective %d, or no operation %d", int(kind), int(operation))
		}
		r, err := g.collectives()
		if err != nil {
			return err
		}
		return r.Load(context.Background(), collective.Call{
			Kind: collective.Kind(kind), Type: t, Op: collective.Op(operation), Count: uint64(count), Root: int(root),
		})
	})
}

// counts returns a count for each rank, and their sum.
func counts(op string, at *C.uint64_t, ranks int) (all []uint64, sum uint64, err error) {
	given, err := array(op, at, ranks)
	if err != nil {
		return nil, 0, err
	}
	all = make([]uint64, ranks)
	for i, n := range given {
		all[i] = uint64(n)
		if sum += all[i]; sum < all[i] {
			return nil, 0, invalid(op, "no memory has room for the elements of all ranks")
		}
	}
	return all, sum, nil
}
