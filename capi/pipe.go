package capi

// #include "process.h"
import "C"

import (
	"cmp"
	"context"
	"unsafe"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// The handle for kernels, in C and in Go.
var _ [unsafe.Sizeof(C.mscclgo_pipe_set{})]byte = [unsafe.Sizeof(devicecode.PipeSet{})]byte{}

func (c *call) pipesCreate(of handle, o *C.mscclgo_pipe_options, result *handle) error {
	owner, g := get[*group](c.to("make pipes"), aGroup, of)
	options, proxy, wrong := c.pipeOptions(owner, g, o)
	if wrong = cmp.Or(isNull(c.op, unsafe.Pointer(result)), wrong); wrong != nil {
		options = communicator.PipeOptions{PerPeer: -1} // with which Pipes tells the other ranks that the call is wrong
	}
	pipes, err := g.comm.Pipes(context.Background(), options)
	if err = cmp.Or(wrong, err); err != nil {
		return err
	}
	newPipes(owner, proxy, pipes).store(result)
	return nil
}

func (c *call) groupGetPipePool(group handle, result *C.mscclgo_pipe_pool) error {
	s, err := c.to("look at the pool of pipes").group(group).comm.PipePool()
	return put(c, result, C.mscclgo_pipe_pool{
		bytes: C.uint64_t(s.Bytes), for_ends: C.uint64_t(s.ForEnds), taken: C.uint64_t(s.Taken),
		lots: C.uint64_t(s.Lots), lent: C.uint64_t(s.Lent), asked: C.uint64_t(s.Asked), refused: C.uint64_t(s.Refused),
	}, err)
}

// pipeOptions reads options, and returns the proxy too, which may be nil.
func (c *call) pipeOptions(owner *object, g *group, o *C.mscclgo_pipe_options) (options communicator.PipeOptions, proxy *object, err error) {
	if err = isNull(c.op, unsafe.Pointer(o)); err != nil {
		return options, nil, err
	}
	options = communicator.PipeOptions{
		PerPeer: int(o.per_peer), Size: channel.PipeSize{Slots: int(o.slots), SlotBytes: uint64(o.slot_bytes)},
		Ports: o.ports != 0, Shared: o.shared != 0, Lazy: o.lazy != 0, Name: text(o.name),
	}
	if options.To, err = rankNumbers(c.op, o.to, int(o.to_count), g.comm.Size()); err != nil {
		return options, nil, err
	}
	if options.From, err = rankNumbers(c.op, o.from, int(o.from_count), g.comm.Size()); err != nil {
		return options, nil, err
	}
	// The handles are read as numbers, as they point nowhere.
	if at := *(*handle)(unsafe.Pointer(&o.buffer)); at != 0 {
		if _, options.Buffer, err = find[*gpu.Buffer](c, aBuffer, at); err != nil {
			return options, nil, err
		}
	}
	if at := *(*handle)(unsafe.Pointer(&o.proxy)); at != 0 {
		if proxy, options.Service, err = find[*proxyservice.ProxyService](c, aProxy, at); err != nil {
			return options, nil, err
		}
		if proxy.parent != owner {
			return options, proxy, invalid(c.op, "the proxy is another group's")
		}
	}
	return options, proxy, nil
}

// newPipes makes the object of pipes. If a proxy moves their messages, it is closed before.
func newPipes(group, proxy *object, pipes *communicator.Pipes) *object {
	closes := func() error { return closePipes(group, pipes) }
	if proxy == nil {
		return objects.add(group, aPipes, pipes, closes)
	}
	o := objects.add(proxy, aPipes, pipes, closes)
	o.owned = "the proxy's"
	return o
}

// closePipes closes pipes once all ranks come to that, as another rank's proxy may still have to tell
// this one's that slots are free. Where the group goes too, they wait for each other as they leave it.
func closePipes(owner *object, pipes *communicator.Pipes) error {
	g := objects.group(owner)
	if !objects.has(owner) {
		g.last = append(g.last, pipes.Close)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), partingTime)
	defer cancel()
	_ = g.comm.Barrier(ctx) // a rank that is gone tells nothing any more
	return pipes.Close()
}

// rankNumbers returns the numbers of an array of C, which may be NULL if there are none. Where there
// are more than ranks, it reads none.
func rankNumbers(op string, at *C.int, n, ranks int) ([]int, error) {
	if n < 0 || n > ranks {
		return nil, invalid(op, "%d ranks are named, and the group has %d", n, ranks)
	}
	if n == 0 {
		return nil, nil
	}
	given, err := array(op, at, n)
	if err != nil {
		return nil, err
	}
	all := make([]int, n)
	for i, rank := range given {
		all[i] = int(rank)
	}
	return all, nil
}

func (c *call) pipesOpen(pipes handle, at *C.int, n int) error {
	o, p := get[*communicator.Pipes](c.to("open pipes"), aPipes, pipes)
	ranks, err := rankNumbers(c.op, at, n, objects.group(objects.owner(o)).comm.Size())
	c.check(err)
	return p.Open(context.Background(), ranks...)
}

func (c *call) pipesGetSet(pipes handle, result *C.mscclgo_pipe_set) error {
	_, p := get[*communicator.Pipes](c.to("get the set of pipes"), aPipes, pipes)
	return putHandle(c, result, p.Set(), nil)
}
