package capi

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

// channelOptions reads options, which may be NULL.
func (c *call) channelOptions(o *C.mscclgo_channel_options) (options channelOptions) {
	if o == nil {
		return options
	}
	options = channelOptions{perPeer: int(o.per_peer), name: text(o.name)}
	// The handle is read as a number, as it points nowhere.
	if inbox := *(*handle)(unsafe.Pointer(&o.inbox)); inbox != 0 {
		options.inbox = c.buffer(inbox)
	}
	return options
}

func (c *call) memoryChannelsCreate(of, local handle, o *C.mscclgo_channel_options, result *handle) error {
	owner, g := get[*group](c.to("make memory channels"), aGroup, of)
	b, options := c.buffer(local), c.channelOptions(o)
	return makes(c, result, owner, memoryChannels, func() (*communicator.MemoryChannels, error) {
		return g.comm.MemoryChannels(context.Background(), b, communicator.MemoryChannelOptions{PerPeer: options.perPeer, Inbox: options.inbox, Name: options.name})
	})
}

func (c *call) memoryChannels(h handle) *communicator.MemoryChannels {
	_, m := get[*communicator.MemoryChannels](c, memoryChannels, h)
	return m
}

func (c *call) ports(h handle) ports {
	_, p := get[ports](c, portChannels, h)
	return p
}

func (c *call) memoryChannelsHandles(channels handle, result *address) error {
	return put(c, result, address(c.to("get the handles of memory channels").memoryChannels(channels).Handles.Ptr()), nil)
}

func (c *call) memoryChannelsHandle(channels handle, i, rank int, result *address) error {
	m := c.to("get the handle of a memory channel").memoryChannels(channels)
	return c.handleOf(m.Handles, unsafe.Sizeof(devicecode.MemoryChannel{}), m.Ranks, i, rank, result)
}

// A set for kernels, in C and in Go.
var _ [unsafe.Sizeof(C.mscclgo_channel_set{})]byte = [unsafe.Sizeof(devicecode.MemoryChannelSet{})]byte{}

func (c *call) memoryChannelsGetSet(channels handle, result *C.mscclgo_channel_set) error {
	return putHandle(c, result, c.to("get the set of memory channels").memoryChannels(channels).Set(), nil)
}

// handleOf stores the address of the handle of a channel, of a size in bytes.
func (c *call) handleOf(all *gpu.Buffer, size uintptr, ranks []int, i, rank int, result *address) error {
	at := slices.Index(ranks, rank)
	perPeer := int(all.Size() / uint64(size) / uint64(len(ranks)))
	if at < 0 || i < 0 || i >= perPeer {
		return invalid(c.op, "there is no channel %d to rank %d: there are %d to each of %d ranks", i, rank, perPeer, len(ranks))
	}
	return put(c, result, address(uint64(all.Ptr())+uint64(i*len(ranks)+at)*uint64(size)), nil)
}

func (c *call) portChannelsCreate(group, proxy, local handle, o *C.mscclgo_channel_options, result *handle) error {
	return c.to("make port channels").newPortChannels(group, proxy, local, o, false, result)
}

func (c *call) portChannelsCreateForStreams(group, proxy, local handle, o *C.mscclgo_channel_options, result *handle) error {
	return c.to("make port channels for streams").newPortChannels(group, proxy, local, o, true, result)
}

// ports are what the handle of port channels stands for.
type ports struct {
	*communicator.PortChannels
	onStream bool // they take operations on streams
}

func (c *call) newPortChannels(of, proxy, local handle, o *C.mscclgo_channel_options, onStream bool, result *handle) error {
	owner, g := get[*group](c, aGroup, of)
	service, p := get[*proxyservice.ProxyService](c, aProxy, proxy)
	b, options := c.buffer(local), c.channelOptions(o)
	need(c, result)
	if service.parent != owner {
		return invalid(c.op, "the proxy is another group's")
	}
	made, err := g.comm.PortChannels(context.Background(), p, b, communicator.PortChannelOptions{
		PerPeer: options.perPeer, Inbox: options.inbox, Name: options.name, OnStream: onStream,
	})
	if err == nil {
		objects.add(service, portChannels, ports{made, onStream}, func() error { return closePorts(owner, made, onStream) }).store(result)
	}
	return err
}

// closePorts closes port channels. Where the group goes too, a stream may still wait in a kernel of
// theirs, which is unloaded once leaving the group has ended the wait.
func closePorts(owner *object, p *communicator.PortChannels, onStream bool) error {
	if g := objects.group(owner); onStream && !objects.has(owner) {
		g.last = append(g.last, p.Close)
		return nil
	}
	return p.Close()
}

func (c *call) portChannelsGetSet(channels handle, result *C.mscclgo_channel_set) error {
	return putHandle(c, result, c.to("get the set of port channels").ports(channels).Set(), nil)
}

func (c *call) portChannelsHandles(channels handle, result *address) error {
	return put(c, result, address(c.to("get the handles of port channels").ports(channels).Handles.Ptr()), nil)
}

func (c *call) portChannelsHandle(channels handle, i, rank int, result *address) error {
	p := c.to("get the handle of a port channel").ports(channels)
	return c.handleOf(p.Handles, unsafe.Sizeof(devicecode.PortChannel{}), p.Ranks, i, rank, result)
}
