package main

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

// The handle for kernels, in C and in Go. An array of a negative length does not compile.
var (
	_ [unsafe.Sizeof(C.mscclgo_pipe_set{}) - unsafe.Sizeof(devicecode.PipeSet{})]byte
	_ [unsafe.Sizeof(devicecode.PipeSet{}) - unsafe.Sizeof(C.mscclgo_pipe_set{})]byte
)

//export capi_pipes_create
func capi_pipes_create(handle C.uintptr_t, o *C.mscclgo_pipe_options, result *C.uintptr_t) C.mscclgo_status {
	const op = "make pipes"
	return withGroup(op, handle, func(group *object, g *group) error {
		options, buffer, proxy, wrong := pipeOptions(op, group, g, o)
		defer buffer.done()
		defer proxy.done()
		if wrong = cmp.Or(isNull(op, unsafe.Pointer(result)), wrong); wrong != nil {
			options = communicator.PipeOptions{PerPeer: -1} // with which Pipes tells the other ranks that the call is wrong
		}
		pipes, err := g.comm.Pipes(context.Background(), options)
		if err = cmp.Or(wrong, err); err != nil {
			return err
		}
		newPipes(group, proxy, pipes).store(result)
		return nil
	})
}

//export capi_group_get_pipe_pool
func capi_group_get_pipe_pool(handle C.uintptr_t, result *C.mscclgo_pipe_pool) C.mscclgo_status {
	const op = "look at the pool of pipes"
	return withGroup(op, handle, func(_ *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		s, err := g.comm.PipePool()
		if err != nil {
			return err
		}
		*result = C.mscclgo_pipe_pool{
			bytes: C.uint64_t(s.Bytes), for_ends: C.uint64_t(s.ForEnds), taken: C.uint64_t(s.Taken),
			lots: C.uint64_t(s.Lots), lent: C.uint64_t(s.Lent), asked: C.uint64_t(s.Asked), refused: C.uint64_t(s.Refused),
		}
		return nil
	})
}

// pipeOptions returns the options of a call. The caller ends the use of the buffer and the proxy, of
// which each may be nil, also where there is an error.
func pipeOptions(op string, owner *object, g *group, o *C.mscclgo_pipe_options) (options communicator.PipeOptions, buffer, proxy *object, err error) {
	if err = isNull(op, unsafe.Pointer(o)); err != nil {
		return options, nil, nil, err
	}
	options = communicator.PipeOptions{
		PerPeer: int(o.per_peer), Size: channel.PipeSize{Slots: int(o.slots), SlotBytes: uint64(o.slot_bytes)},
		Ports: o.ports != 0, Shared: o.shared != 0, Lazy: o.lazy != 0, Name: text(o.name),
	}
	if options.To, err = rankNumbers(op, o.to, o.to_count, g.comm.Size()); err != nil {
		return options, nil, nil, err
	}
	if options.From, err = rankNumbers(op, o.from, o.from_count, g.comm.Size()); err != nil {
		return options, nil, nil, err
	}
	// The handles are read as numbers, as they point nowhere.
	if at := *(*C.uintptr_t)(unsafe.Pointer(&o.buffer)); at != 0 {
		if buffer, err = objects.use(op, aBuffer, at); err != nil {
			return options, nil, nil, err
		}
		options.Buffer = buffer.value.(*gpu.Buffer)
	}
	if at := *(*C.uintptr_t)(unsafe.Pointer(&o.proxy)); at != 0 {
		if proxy, err = objects.use(op, aProxy, at); err != nil {
			return options, buffer, nil, err
		}
		if proxy.parent != owner {
			return options, buffer, proxy, invalid(op, "the proxy is another group's")
		}
		options.Service = proxy.value.(*proxyservice.ProxyService)
	}
	return options, buffer, proxy, nil
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
func rankNumbers(op string, at *C.int, n C.int, ranks int) ([]int, error) {
	if n < 0 || int(n) > ranks {
		return nil, invalid(op, "%d ranks are named, and the group has %d", int(n), ranks)
	}
	if n == 0 {
		return nil, nil
	}
	given, err := array(op, at, int(n))
	if err != nil {
		return nil, err
	}
	all := make([]int, n)
	for i, rank := range given {
		all[i] = int(rank)
	}
	return all, nil
}

//export capi_pipes_open
func capi_pipes_open(handle C.uintptr_t, at *C.int, n C.int) C.mscclgo_status {
	const op = "open pipes"
	return call(func() error {
		return of(op, aPipes, handle, func(o *object, p *communicator.Pipes) error {
			owner := o.parent
			if owner.kind() == aProxy {
				owner = owner.parent
			}
			ranks, err := rankNumbers(op, at, n, objects.group(owner).comm.Size())
			if err != nil {
				return err
			}
			return p.Open(context.Background(), ranks...)
		})
	})
}

//export capi_pipes_get_set
func capi_pipes_get_set(handle C.uintptr_t, result *C.mscclgo_pipe_set) C.mscclgo_status {
	return storeHandle("get the set of pipes", aPipes, handle, result, func(p *communicator.Pipes) (devicecode.PipeSet, error) { return p.Set(), nil })
}

//export capi_pipes_destroy
func capi_pipes_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy pipes", aPipes, handle) })
}
