package main

// #include "process.h"
import "C"

import (
	"context"
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// channelOptions are the options of both kinds of channels.
type channelOptions struct {
	perPeer int
	inbox   *gpu.Buffer
	name    string
}

// withChannelOptions has f called with options, which may be NULL, whose inbox is not destroyed
// meanwhile.
func withChannelOptions(op string, o *C.mscclgo_channel_options, f func(channelOptions) error) error {
	if o == nil {
		return f(channelOptions{})
	}
	options := channelOptions{perPeer: int(o.per_peer), name: text(o.name)}
	// The handle is read as a number, as it points nowhere.
	return optional(op, aBuffer, *(*C.uintptr_t)(unsafe.Pointer(&o.inbox)), func(_ *object, b *gpu.Buffer) error {
		options.inbox = b
		return f(options)
	})
}

//export capi_memory_channels_create
func capi_memory_channels_create(handle, local C.uintptr_t, o *C.mscclgo_channel_options, result *C.uintptr_t) C.mscclgo_status {
	const op = "make memory channels"
	return withGroup(op, handle, func(group *object, g *group) error {
		return of(op, aBuffer, local, func(_ *object, b *gpu.Buffer) error {
			return withChannelOptions(op, o, func(o channelOptions) error {
				if err := isNull(op, unsafe.Pointer(result)); err != nil {
					return err
				}
				m, err := g.comm.MemoryChannels(context.Background(), b, communicator.MemoryChannelOptions{PerPeer: o.perPeer, Inbox: o.inbox, Name: o.name})
				if err != nil {
					return err
				}
				objects.add(group, memoryChannels, m, m.Close).store(result)
				return nil
			})
		})
	})
}

//export capi_memory_channels_handles
func capi_memory_channels_handles(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "get the handles of memory channels"
	return call(func() error {
		return of(op, memoryChannels, handle, func(_ *object, m *communicator.MemoryChannels) error {
			return handles(op, m.Handles, result)
		})
	})
}

//export capi_memory_channels_handle
func capi_memory_channels_handle(handle C.uintptr_t, i, rank C.int, result *C.uintptr_t) C.mscclgo_status {
	const op = "get the handle of a memory channel"
	return call(func() error {
		return of(op, memoryChannels, handle, func(_ *object, m *communicator.MemoryChannels) error {
			return handleOf(op, m.Handles, unsafe.Sizeof(devicecode.MemoryChannel{}), m.Ranks, int(i), int(rank), result)
		})
	})
}

// A set for kernels, in C and in Go. An array of a negative length does not compile.
var (
	_ [unsafe.Sizeof(C.mscclgo_channel_set{}) - unsafe.Sizeof(devicecode.MemoryChannelSet{})]byte
	_ [unsafe.Sizeof(devicecode.MemoryChannelSet{}) - unsafe.Sizeof(C.mscclgo_channel_set{})]byte
)

//export capi_memory_channels_get_set
func capi_memory_channels_get_set(handle C.uintptr_t, result *C.mscclgo_channel_set) C.mscclgo_status {
	return storeHandle("get the set of memory channels", memoryChannels, handle, result, func(m *communicator.MemoryChannels) (devicecode.MemoryChannelSet, error) { return m.Set(), nil })
}

//export capi_memory_channels_destroy
func capi_memory_channels_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy memory channels", memoryChannels, handle) })
}

// handles stores the address of channels' handles.
func handles(op string, all *gpu.Buffer, result *C.uintptr_t) error {
	if err := isNull(op, unsafe.Pointer(result)); err != nil {
		return err
	}
	*result = C.uintptr_t(all.Ptr())
	return nil
}

// handleOf stores the address of the handle of a channel, of a size in bytes.
func handleOf(op string, all *gpu.Buffer, size uintptr, ranks []int, i, rank int, result *C.uintptr_t) error {
	at := slices.Index(ranks, rank)
	perPeer := int(all.Size() / uint64(size) / uint64(len(ranks)))
	if at < 0 || i < 0 || i >= perPeer {
		return invalid(op, "there is no channel %d to rank %d: there are %d to each of %d ranks", i, rank, perPeer, len(ranks))
	}
	if err := isNull(op, unsafe.Pointer(result)); err != nil {
		return err
	}
	*result = C.uintptr_t(uint64(all.Ptr()) + uint64(i*len(ranks)+at)*uint64(size))
	return nil
}

//export capi_port_channels_create
func capi_port_channels_create(handle, proxy, local C.uintptr_t, o *C.mscclgo_channel_options, result *C.uintptr_t) C.mscclgo_status {
	return newPortChannels("make port channels", handle, proxy, local, o, false, result)
}

//export capi_port_channels_create_for_streams
func capi_port_channels_create_for_streams(handle, proxy, local C.uintptr_t, o *C.mscclgo_channel_options, result *C.uintptr_t) C.mscclgo_status {
	return newPortChannels("make port channels for streams", handle, proxy, local, o, true, result)
}

// ports are what the handle of port channels stands for.
type ports struct {
	*communicator.PortChannels
	onStream bool // they take operations on streams
}

func newPortChannels(op string, handle, proxy, local C.uintptr_t, o *C.mscclgo_channel_options, onStream bool, result *C.uintptr_t) C.mscclgo_status {
	return withGroup(op, handle, func(group *object, g *group) error {
		return of(op, aProxy, proxy, func(service *object, p *proxyservice.ProxyService) error {
			return of(op, aBuffer, local, func(_ *object, b *gpu.Buffer) error {
				return withChannelOptions(op, o, func(o channelOptions) error {
					if err := isNull(op, unsafe.Pointer(result)); err != nil {
						return err
					}
					if service.parent != group {
						return invalid(op, "the proxy is another group's")
					}
					c, err := g.comm.PortChannels(context.Background(), p, b, communicator.PortChannelOptions{
						PerPeer: o.perPeer, Inbox: o.inbox, Name: o.name, OnStream: onStream,
					})
					if err != nil {
						return err
					}
					objects.add(service, portChannels, ports{c, onStream}, func() error { return closePorts(group, c, onStream) }).store(result)
					return nil
				})
			})
		})
	})
}

// closePorts closes port channels. Where the group goes too, a stream may still wait in a kernel of
// theirs, which is unloaded once leaving the group has ended the wait.
func closePorts(owner *object, c *communicator.PortChannels, onStream bool) error {
	if g := objects.group(owner); onStream && !objects.has(owner) {
		g.last = append(g.last, c.Close)
		return nil
	}
	return c.Close()
}

//export capi_port_channels_get_set
func capi_port_channels_get_set(handle C.uintptr_t, result *C.mscclgo_channel_set) C.mscclgo_status {
	return storeHandle("get the set of port channels", portChannels, handle, result, func(p ports) (devicecode.PortChannelSet, error) { return p.Set(), nil })
}

//export capi_port_channels_handles
func capi_port_channels_handles(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "get the handles of port channels"
	return call(func() error {
		return of(op, portChannels, handle, func(_ *object, p ports) error {
			return handles(op, p.Handles, result)
		})
	})
}

//export capi_port_channels_handle
func capi_port_channels_handle(handle C.uintptr_t, i, rank C.int, result *C.uintptr_t) C.mscclgo_status {
	const op = "get the handle of a port channel"
	return call(func() error {
		return of(op, portChannels, handle, func(_ *object, p ports) error {
			return handleOf(op, p.Handles, unsafe.Sizeof(devicecode.PortChannel{}), p.Ranks, int(i), int(rank), result)
		})
	})
}
