// Package semaphore signals between ranks: between kernels of two devices with
// [Device2Device], from a host to the kernels of another device with [Host2Device],
// and between two hosts with [Host2Host].
//
// A semaphore is a pair of ends, each with a count of the signals that have arrived,
// which its peer writes. Counts only grow, so nothing is reset between uses.
package semaphore

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// Device2DeviceBytes is the device memory of one end, aligned to its size. The
// count that the peer writes has a 32-byte sector of its own, so that polling
// it and counting do not disturb each other.
const Device2DeviceBytes = 64

// Where the counts lie in an end's memory.
const (
	inboundOffset  = 0
	outboundOffset = 32
	expectedOffset = 40
)

// Device2Device is one end of a semaphore between kernels of two devices.
type Device2Device struct {
	words, peer *gpu.Buffer
	watch       devicecode.Watch
}

// NewDevice2Device makes an end from its own memory and the peer's as this
// device maps it, [Device2DeviceBytes] each. It zeroes its own, so both ends
// must be made before either is used. The memories stay the caller's and must
// outlive the semaphore; watch bounds the waits, and has a status and a time-out.
//
// Errors: ErrInvalid for nil memory, memory of another size or alignment, memory of
// two devices, and a watch that would not end waits.
func NewDevice2Device(words, peer *gpu.Buffer, watch devicecode.Watch) (*Device2Device, error) {
	const op = "semaphore: make a Device2Device"
	for _, b := range []*gpu.Buffer{words, peer} {
		if err := checkWords(op, b, Device2DeviceBytes); err != nil {
			return nil, err
		}
	}
	if words.Device() != peer.Device() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the peer's memory is mapped on %v, this rank's is on %v", peer.Device(), words.Device())
	}
	if err := checkWatch(op, watch); err != nil {
		return nil, err
	}
	if err := gpu.CopyIn(words, make([]byte, Device2DeviceBytes)); err != nil {
		return nil, err
	}
	return &Device2Device{words: words, peer: peer, watch: watch}, nil
}

// Handle returns what kernels use.
func (s *Device2Device) Handle() devicecode.Device2DeviceSemaphore {
	base := s.words.Ptr()
	return layout.Handle[devicecode.Device2DeviceSemaphore](layout.Device2DeviceSemaphore{
		Inbound:     base + inboundOffset,
		PeerInbound: s.peer.Ptr() + inboundOffset,
		Outbound:    base + outboundOffset,
		Expected:    base + expectedOffset,
		Watch:       layout.Watch(s.watch),
	})
}
