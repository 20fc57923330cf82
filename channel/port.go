package channel

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// Direct is the size in bytes of the largest puts, gets, stores, adds and exchanges that a
// kernel's thread makes itself. It does so, and signals itself, where the peer's memory is
// mapped and the host has nothing left to do for the channel.
type Direct uint64

const (
	// HostOnly leaves everything to the host.
	HostOnly = ^Direct(0)
	// DefaultDirect is about what a thread copies before a copy engine begins.
	DefaultDirect Direct = 2048
)

// BasePortChannel is one end of a channel whose puts, gets, stores, adds and exchanges name
// memories by their ids in the service that serves the ring. It takes no memory of its own; the
// semaphore's is enough.
type BasePortChannel struct {
	ring      *fifo.Ring
	semaphore *semaphore.Host2Device
	number    uint16
	progress  gpu.Ptr
	queue     gpu.Ptr
	direct    Direct
}

// NewBasePortChannel returns an end for a service that serves the ring. number is the
// channel's in the service. progress is the address of a PortProgress (port_channel.cuh) of the
// semaphore's connection, pinned, which the service keeps. queue is the address of a
// PortQueue (port_channel.cuh) of the connection, or 0 if kernels may ask for any number of
// operations before the first is queued. Most programs call
// proxyservice.ProxyService.BasePortChannel.
func NewBasePortChannel(ring *fifo.Ring, s *semaphore.Host2Device, number uint16, progress, queue gpu.Ptr, direct Direct) *BasePortChannel {
	return &BasePortChannel{ring: ring, semaphore: s, number: number, progress: progress, queue: queue, direct: direct}
}

// Handle returns what kernels use.
func (c *BasePortChannel) Handle() devicecode.BasePortChannel {
	in := c.semaphore.Internal()
	h := layout.BasePortChannel{
		Fifo:      c.ring.Handle().Internal(),
		Semaphore: c.semaphore.Handle().Internal(),
		State:     gpu.Ptr(in.State),
		Progress:  c.progress,
		Queue:     c.queue,
		Number:    uint64(c.number),
	}
	if c.direct != HostOnly {
		h.PeerSent = gpu.Ptr(in.PeerSent)
	}
	return layout.Handle[devicecode.BasePortChannel](h)
}

// PortChannel is one end of a channel between two memories.
type PortChannel struct {
	base     *BasePortChannel
	dst, src *registeredmem.Memory
	to, from uint16 // their ids in the service
}

// NewPortChannel returns an end between the peer's memory dst and this rank's src, which have the
// ids to and from in the service. Most programs call proxyservice.ProxyService.PortChannel.
//
// Errors: ErrInvalid when dst is not the semaphore's peer's or src not this
// rank's, one of the three is nil, or a memory is in another registry than the semaphore's connection; ErrUnsupported when the connection does not reach dst.
func NewPortChannel(base *BasePortChannel, dst, src *registeredmem.Memory, to, from uint16) (*PortChannel, error) {
	const op = "channel: new PortChannel"
	if base == nil || dst == nil || src == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the channel that it is based on or a memory is nil")
	}
	fail := func(kind mscclgo.Kind, format string, args ...any) error {
		return mscclgo.Errorf(kind, op, format, args...).At(src.Rank(), base.semaphore.Peer())
	}
	transport := base.semaphore.Connection().Transport()
	in := base.semaphore.Connection().Internal().Path().Registry
	switch {
	case dst.Registry().Internal().Instance() != in:
		return nil, fail(mscclgo.ErrInvalid, "dst, %v, is in another registry than the semaphore's connection", dst)
	case src.Registry().Internal().Instance() != in:
		return nil, fail(mscclgo.ErrInvalid, "src, %v, is in another registry than the semaphore's connection", src)
	case dst.Rank() != base.semaphore.Peer():
		return nil, fail(mscclgo.ErrInvalid, "the semaphore's connection leads to rank %d, dst is %v", base.semaphore.Peer(), dst)
	case !src.Local():
		return nil, fail(mscclgo.ErrInvalid, "src is %v, not this rank's", src)
	case !dst.Transports().Has(transport):
		return nil, fail(mscclgo.ErrUnsupported, "the connection is over %v, and %v is reached over %v", transport, dst, dst.Transports())
	}
	return &PortChannel{base: base, dst: dst, src: src, to: to, from: from}, nil
}

// Handle returns what kernels use.
func (c *PortChannel) Handle() devicecode.PortChannel {
	h := layout.PortChannel{
		Base:       c.base.Handle().Internal(),
		RemoteSize: c.dst.Size(),
		LocalSize:  c.src.Size(),
		Dst:        uint32(c.to),
		Src:        uint32(c.from),
	}
	remote, local := c.dst.Buffer(), c.src.Buffer()
	if remote != nil && local != nil && h.Base.PeerSent != 0 {
		h.Remote, h.Local, h.Direct = remote.Ptr(), local.Ptr(), uint64(c.base.direct)
	}
	if limit := c.base.semaphore.Connection().InlineLimit(); limit > 0 && local != nil {
		h.Local, h.InlineLimit = local.Ptr(), min(limit, uint64(c.base.ring.Internal().PayloadSize()))
	}
	return layout.Handle[devicecode.PortChannel](h)
}
