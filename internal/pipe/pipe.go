// Package pipe has the ends of pipes, and the memory in which they lie.
package pipe

import (
	"math/bits"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// The sizes of a pipe.
const (
	defaultPipeSlots = 8
	DefaultSlotBytes = 128 << 10
	maxPipeSlots     = 1 << 12
	maxPipeSlotBytes = 1 << 40
	// Align is what the sizes of slots and the offsets of ends in their memory are
	// multiples of.
	Align = 128
)

// Size is the size of a pipe's ring, the same at both ends. The zero value is the
// default.
type Size struct {
	Slots     int    // as in channel.PipeSize
	SlotBytes uint64 // likewise
	// LotSlots is how many more slots a message of more than Slots chunks has while it is received, in
	// a lot that it borrows of the receiver's Pool: a power of two from Slots to MaxLot, or 0 for
	// none. Over a port the sender borrows as many of its own pool. If all lots are lent, the message
	// goes through the pipe's slots. See Pool.LotSlots.
	LotSlots int
}

// OrDefault returns the size with its zeros replaced.
func (s Size) OrDefault() Size {
	if s.Slots == 0 {
		s.Slots = defaultPipeSlots
	}
	if s.SlotBytes == 0 {
		s.SlotBytes = DefaultSlotBytes
	}
	return s
}

// Check returns an error of kind ErrInvalid for a size that a pipe cannot have.
func (s Size) Check() error {
	const op = "pipes: size of a pipe"
	s = s.OrDefault()
	switch {
	case s.Slots < 1 || s.Slots > maxPipeSlots || bits.OnesCount(uint(s.Slots)) != 1:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d slots; their number must be a power of two up to %d", s.Slots, maxPipeSlots)
	case s.SlotBytes > maxPipeSlotBytes || s.SlotBytes%Align != 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "slots of %d bytes; the size must be a multiple of %d up to %d", s.SlotBytes, Align, maxPipeSlotBytes)
	case s.LotSlots != 0 && (s.LotSlots < s.Slots || s.LotSlots > MaxLot || bits.OnesCount(uint(s.LotSlots)) != 1):
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d slots to borrow; their number must be a power of two from %d to %d, or 0", s.LotSlots, s.Slots, MaxLot)
	}
	return nil
}

// ControlBytes returns the bytes of device memory of an end that has no slots: the sending
// end of a pipe whose receiver's memory is mapped.
func (s Size) ControlBytes() uint64 {
	const header, perSlot = 128, 16 // as pipe.cuh lays them out
	n := uint64(header + perSlot*s.OrDefault().Slots)
	if s.LotSlots > 0 {
		n = header + perSlot*2*MaxLot
	}
	return (n + Align - 1) / Align * Align
}

// Bytes returns the bytes of device memory of an end with slots.
func (s Size) Bytes() uint64 {
	s = s.OrDefault()
	return s.ControlBytes() + uint64(s.Slots)*s.SlotBytes
}

// End is where an end lies.
type End struct {
	Memory *registeredmem.Memory
	Offset uint64 // in the memory, in bytes; a multiple of Align
}

// Config describes one end of a pipe, and what it needs to know of the other.
type Config struct {
	Size
	// Sends makes it the sending end.
	Sends bool
	// Own is this end's memory, Peer the peer's: Size.Bytes each, but for the sending
	// end of a pipe whose receiver's memory is mapped, Size.ControlBytes.
	Own, Peer End
	// Buffer is memory of the receiver's, or nil. With it the receiver tells the sender
	// where each message is wanted, and messages for a place in Buffer are written there
	// directly. It is the same memory at both ends: the receiver's own, imported by the
	// sender.
	Buffer *registeredmem.Memory
	// Source is memory of a sending rank, or nil: the host fetches messages from it
	// directly, where hosts move the bytes.
	Source *registeredmem.Memory
	// Pool is the pool of this rank that the end lies in, if Size.LotSlots is not 0. The peer's end
	// lies in a pool then too.
	Pool *Pool

	prepared bool // see PreparePort
}

// Pipe is one end of a one-way stream of messages between two ranks; the device functions
// are in <mscclgo/pipe.cuh>. Messages are cut into chunks, which go through a ring of slots
// of the receiver, or straight into a buffer that the receiver has registered. Hosts move the
// bytes, over the port, or, if that is nil, threads write them to mapped memory.
type Pipe struct {
	config    Config
	semaphore *semaphore.Device2Device
	port      *channel.PortChannel
	buffer    uint16 // id of config.Buffer in the service of the port
	source    uint16 // likewise
	closed    bool
}

// NewByThreads returns an end whose messages are written by threads. It zeroes this end's
// control words, so both ends must be made before either is used. All stays the caller's and
// must outlive the pipe.
//
// Errors: ErrInvalid when the semaphore is nil, for wrong sizes and ends that do not lie
// in memory of the two ranks, and when the peer's memory is not mapped here.
func NewByThreads(s *semaphore.Device2Device, c Config) (*Pipe, error) {
	const op = "pipes: make a pipe"
	if s == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the semaphore is nil")
	}
	c.Size, c.Source = c.OrDefault(), nil
	own, peer := c.Bytes(), c.ControlBytes()
	if c.Sends {
		own, peer = peer, own
	}
	if err := c.check(op, own, peer); err != nil {
		return nil, err
	}
	for _, m := range []*registeredmem.Memory{c.Peer.Memory, c.Buffer} {
		if m != nil && m.Buffer() == nil {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed, or not mapped here, where a port reaches it", m).At(c.Own.Memory.Rank(), c.Peer.Memory.Rank())
		}
	}
	return newPipe(&Pipe{config: c, semaphore: s})
}

// NewByPort returns an end whose messages a service moves over a semaphore's connection. It zeroes this end's
// control words, so both ends must be made, or prepared, before either is used. All stays the caller's and must
// outlive the pipe.
//
// Errors: those of the service's PortChannel and AddMemory; ErrInvalid for wrong sizes, and ends that do not lie in
// memory of the two ranks.
func NewByPort(service *proxyservice.ProxyService, s *semaphore.Host2Device, c Config) (*Pipe, error) {
	c.Size = c.OrDefault()
	if !c.Sends {
		c.Source = nil
	}
	if err := c.check("pipes: make a pipe", c.Bytes(), c.Bytes()); err != nil {
		return nil, err
	}
	port, err := service.PortChannel(s, c.Peer.Memory, c.Own.Memory)
	if err != nil {
		return nil, err
	}
	p := &Pipe{config: c, port: port}
	if c.Sends && c.Buffer != nil {
		if p.buffer, err = service.AddMemory(c.Buffer); err != nil {
			return nil, err
		}
	}
	if c.Source != nil {
		if p.source, err = service.AddMemory(c.Source); err != nil {
			return nil, err
		}
	}
	return newPipe(p)
}

// PreparePort does what NewByPort does but for the port: it checks the config, and zeroes this end's control
// words. NewByPort then leaves them alone, so that the peer may use its end already.
//
// Errors: as NewByPort.
func (c *Config) PreparePort() error {
	c.Size = c.OrDefault()
	if !c.Sends {
		c.Source = nil
	}
	if err := c.check("pipes: prepare a pipe", c.Bytes(), c.Bytes()); err != nil {
		return err
	}
	c.prepared = true
	return c.zero()
}

// check returns an error unless the ends have so many bytes in memory of the two ranks.
func (c *Config) check(op string, own, peer uint64) error {
	if err := c.Check(); err != nil {
		return err
	}
	if c.Own.Memory == nil || c.Peer.Memory == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory of an end is nil")
	}
	invalid := func(format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(c.Own.Memory.Rank(), c.Peer.Memory.Rank())
	}
	outside := func(whose string, e End, bytes uint64) error {
		if e.Offset%Align == 0 && e.Offset <= e.Memory.Size() && bytes <= e.Memory.Size()-e.Offset {
			return nil
		}
		return invalid("%s end needs %d bytes at offset %d of %v, which must be a multiple of %d and leave room for them", whose, bytes, e.Offset, e.Memory, Align)
	}
	if err := outside("this rank's", c.Own, own); err != nil {
		return err
	}
	if err := outside("the peer's", c.Peer, peer); err != nil {
		return err
	}
	receiver := c.Own.Memory
	if c.Sends {
		receiver = c.Peer.Memory
	}
	switch {
	case !c.Own.Memory.Local():
		return invalid("this end is in %v, not in memory of this rank", c.Own.Memory)
	case c.Own.Memory.Buffer() == nil:
		return invalid("%v is closed", c.Own.Memory)
	case uint64(c.Own.Memory.Buffer().Ptr())%Align != 0:
		return invalid("%v begins at %#x, which is not a multiple of %d", c.Own.Memory, uint64(c.Own.Memory.Buffer().Ptr()), Align)
	case c.Buffer != nil && (c.Buffer.Rank() != receiver.Rank() || c.Buffer.Local() != receiver.Local()):
		return invalid("the buffer is %v, not memory of the receiver, rank %d", c.Buffer, receiver.Rank())
	case c.Buffer != nil && c.Buffer.Local() && c.Buffer.Buffer() == nil:
		return invalid("%v is closed", c.Buffer)
	case c.Source != nil && (!c.Source.Local() || c.Source.Buffer() == nil):
		return invalid("the source is %v, which is closed, or not this rank's", c.Source)
	case c.LotSlots > 0 && (c.Pool == nil || c.Pool.memory != c.Own.Memory):
		return invalid("messages are to borrow slots, and this end is in %v, which has no pool", c.Own.Memory)
	case c.LotSlots > 0 && (c.Own.Offset < c.Pool.Begin() || own > c.Pool.End() || c.Own.Offset > c.Pool.End()-own):
		return invalid("the end lies at offset %d of %v, where ends lie from %d to %d", c.Own.Offset, c.Own.Memory, c.Pool.Begin(), c.Pool.End())
	case c.LotSlots > 0 && uint64(c.LotSlots) > c.Pool.layout.LotBytes/c.SlotBytes:
		return invalid("messages are to borrow %d slots of %d bytes, and a lot of the pool has %d bytes", c.LotSlots, c.SlotBytes, c.Pool.layout.LotBytes)
	}
	return nil
}

// newPipe zeroes the control words of an end, unless that is done.
func newPipe(p *Pipe) (*Pipe, error) {
	if p.config.prepared {
		return p, nil
	}
	if err := p.config.zero(); err != nil {
		return nil, err
	}
	return p, nil
}

// zero zeroes the control words of this end.
func (c *Config) zero() error {
	words, err := c.Own.Memory.Buffer().Slice(c.Own.Offset, c.ControlBytes())
	if err != nil {
		return err
	}
	return gpu.CopyIn(words, make([]byte, c.ControlBytes()))
}

// Handle returns the end as kernels use it.
func (p *Pipe) Handle() layout.Pipe {
	c := &p.config
	h := layout.Pipe{
		Control:   c.Own.Memory.Buffer().Ptr() + gpu.Ptr(c.Own.Offset),
		SlotBytes: c.SlotBytes,
		SlotCount: uint32(c.Slots),

		ControlOffset: c.Own.Offset, PeerOffset: c.Peer.Offset,
	}
	h.Slots = h.Control + gpu.Ptr(c.ControlBytes())
	if c.Sends {
		h.Flags |= layout.PipeSends
	}
	if c.LotSlots > 0 {
		h.Flags |= layout.PipeBorrows
		h.Pool, h.LotSlots = c.Own.Memory.Buffer().Ptr(), uint32(c.LotSlots)
	}
	if c.Buffer != nil {
		h.Flags |= layout.PipePosts
		h.BufferSize = c.Buffer.Size()
		if b := c.Buffer.Buffer(); b != nil {
			h.Buffer = b.Ptr()
		}
	}
	if p.port == nil {
		h.Semaphore = p.semaphore.Handle().Internal()
		h.PeerControl = c.Peer.Memory.Buffer().Ptr() + gpu.Ptr(c.Peer.Offset)
		if c.Sends {
			h.Slots = h.PeerControl + gpu.Ptr(c.ControlBytes())
		}
		return h
	}
	h.Flags |= layout.PipeByPort
	h.Port = p.port.Handle().Internal()
	h.Semaphore = layout.Device2DeviceSemaphore{Inbound: h.Port.Base.Semaphore.Inbound, Watch: h.Port.Base.Semaphore.Watch}
	h.BufferNumber, h.SourceNumber = uint32(p.buffer), uint32(p.source)
	if c.Source != nil {
		h.Source, h.SourceSize = c.Source.Buffer().Ptr(), c.Source.Size()
	}
	return h
}

// Close gives back the lots that the end still has: of a message that was posted and has not been received, or
// whose call has failed. No kernel and no service of either rank may use the pipe any longer; the memory of the
// ends is there, or this rank's is closed. It frees nothing else, may be called twice, and does nothing on nil.
func (p *Pipe) Close() error {
	if p == nil || p.closed || p.config.LotSlots == 0 {
		return nil
	}
	c := &p.config
	b := c.Own.Memory.Buffer()
	if b == nil {
		return nil
	}
	p.closed = true
	words, err := b.Slice(c.Own.Offset, uint64(unsafe.Sizeof(layout.PipeControl{})))
	if err != nil {
		return err
	}
	now := []layout.PipeControl{{}}
	if err := gpu.CopyOut(now, words); err != nil {
		return err
	}
	switch {
	case !c.Sends && now[0].Posted != 0 && now[0].Posting[0]&layout.PipeLot != 0:
		return c.Pool.giveBack(now[0].Posting[0] &^ layout.PipeLot)
	case c.Sends && now[0].Lot != 0:
		return c.Pool.giveBack(now[0].Lot)
	}
	return nil
}
