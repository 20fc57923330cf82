package main

// #include "process.h"
import "C"

import (
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
		if err := isNull(op, unsafe.Pointer(o), unsafe.Pointer(result)); err != nil {
			return err
		}
		options := communicator.PipeOptions{
			PerPeer: int(o.per_peer), Size: channel.PipeSize{Slots: int(o.slots), SlotBytes: uint64(o.slot_bytes)},
			Ports: o.ports != 0, Name: text(o.name),
		}
		var err error
		if options.To, err = rankNumbers(op, o.to, o.to_count, g.comm.Size()); err != nil {
			return err
		}
		if options.From, err = rankNumbers(op, o.from, o.from_count, g.comm.Size()); err != nil {
			return err
		}
		// The handles are read as numbers, as they point nowhere.
		buffer, proxy := *(*C.uintptr_t)(unsafe.Pointer(&o.buffer)), *(*C.uintptr_t)(unsafe.Pointer(&o.proxy))
		return optional(op, aBuffer, buffer, func(_ *object, b *gpu.Buffer) error {
			return optional(op, aProxy, proxy, func(service *object, p *proxyservice.ProxyService) error {
				if service != nil && service.parent != group {
					return invalid(op, "the proxy is another group's")
				}
				options.Buffer, options.Service = b, p
				pipes, err := g.comm.Pipes(context.Background(), options)
				if err != nil {
					return err
				}
				newPipes(group, service, g.comm, pipes).store(result)
				return nil
			})
		})
	})
}

// newPipes makes the object of pipes. If a proxy moves their messages, it is closed before.
func newPipes(group, service *object, comm *communicator.Communicator, pipes *communicator.Pipes) *object {
	closes := func() error {
		// Another rank's proxy may still have to tell this one's pipes that slots are free.
		ctx, cancel := context.WithTimeout(context.Background(), partingTime)
		defer cancel()
		_ = comm.Barrier(ctx) // a rank that is gone tells nothing any more
		return pipes.Close()
	}
	if service == nil {
		return objects.add(group, aPipes, pipes, closes)
	}
	o := objects.add(service, aPipes, pipes, closes)
	o.owned = "the proxy's"
	return o
}

// rankNumbers returns the numbers of an array of C, which may be NULL if there are none. There are no
// more than ranks, since each is named once.
func rankNumbers(op string, at *C.int, n C.int, ranks int) ([]int, error) {
	if n < 0 || int(n) > ranks {
		return nil, invalid(op, "%d ranks are named, and the group has %d", int(n), ranks)
	}
	if n == 0 {
		return nil, nil
	}
	if err := isNull(op, unsafe.Pointer(at)); err != nil {
		return nil, err
	}
	all := make([]int, n)
	for i, rank := range unsafe.Slice(at, int(n)) {
		all[i] = int(rank)
	}
	return all, nil
}

//export capi_pipes_get_set
func capi_pipes_get_set(handle C.uintptr_t, result *C.mscclgo_pipe_set) C.mscclgo_status {
	const op = "get the set of pipes"
	return call(func() error {
		return of(op, aPipes, handle, func(_ *object, p *communicator.Pipes) error {
			if err := isNull(op, unsafe.Pointer(result)); err != nil {
				return err
			}
			*(*devicecode.PipeSet)(unsafe.Pointer(result)) = p.Set()
			return nil
		})
	})
}

//export capi_pipes_destroy
func capi_pipes_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy pipes", aPipes, handle) })
}
