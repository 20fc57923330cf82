// Package channel moves data between two ranks from inside kernels.
// [MemoryChannel] is for peers whose memory is mapped: threads copy straight into
// it. [PortChannel] is for any peer: a thread asks its host, and a connection moves
// the data. [Pipe] is a one-way stream of messages through a ring of slots, by either.
//
// A channel's handle is a plain struct that kernels take by value or read from
// device memory; the device functions are in <mscclgo/memory_channel.cuh>,
// <mscclgo/port_channel.cuh> and <mscclgo/pipe.cuh>.
package channel

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// MemoryChannel is one end of a channel between two ranks.
type MemoryChannel struct {
	semaphore *semaphore.Device2Device
	remote    *gpu.Buffer
	local     *gpu.Buffer
	packets   *gpu.Buffer
}

// NewMemoryChannel returns an end. remote is the peer's buffer, imported and mapped.
// local is this rank's. packets, which may be nil, is where the putPackets of the peer
// arrive: memory of this rank that is the remote of the peer's channel, zeroed
// before its first use, and aligned as the packets are: to 8 bytes for LL8, 16 for LL16,
// 128 for LL128. Everything stays the caller's and must outlive the channel.
//
// Errors: ErrInvalid when the peer's memory is not mapped here, the local one is not
// this rank's, or one of them or packets is closed, or when anything but packets is nil.
func NewMemoryChannel(s *semaphore.Device2Device, remote, local *registeredmem.Memory, packets *gpu.Buffer) (*MemoryChannel, error) {
	const op = "channel: new MemoryChannel"
	if s == nil || remote == nil || local == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the semaphore or a memory is nil")
	}
	if packets != nil {
		if _, err := packets.Slice(0, 0); err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "packets: %w", err).At(local.Rank(), remote.Rank())
		}
	}
	c := &MemoryChannel{semaphore: s, remote: remote.Buffer(), local: local.Buffer(), packets: packets}
	switch {
	case !local.Local():
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "local is %v, not memory of this rank", local).At(remote.Registry().Rank(), remote.Rank())
	case c.local == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed", local).At(local.Rank(), remote.Rank())
	case c.remote == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed, or not mapped here, where a PortChannel reaches it", remote).At(local.Rank(), remote.Rank())
	}
	return c, nil
}

// Handle returns what kernels use.
func (c *MemoryChannel) Handle() devicecode.MemoryChannel {
	h := layout.MemoryChannel{
		Semaphore:  c.semaphore.Handle().Internal(),
		Remote:     c.remote.Ptr(),
		Local:      c.local.Ptr(),
		RemoteSize: c.remote.Size(),
		LocalSize:  c.local.Size(),
	}
	if c.packets != nil {
		h.Packets, h.PacketsSize = c.packets.Ptr(), c.packets.Size()
	}
	return layout.Handle[devicecode.MemoryChannel](h)
}
