package layout

import (
	"strings"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// RanksByValue is how many ranks' addresses handles hold themselves; the others are in device memory.
const RanksByValue = 72

// The types below are the device handles: C structs of the headers, field by field,
// which are passed to kernels by value or copied to device memory. A test compares
// sizes and offsets with the compiled headers.

// GroupStatus is the state of a rank's group in pinned host memory; see
// <mscclgo/wait.cuh>.
type GroupStatus struct {
	Aborted     uint32 // set by the host to end all waits
	Faulted     uint32 // set by a kernel when a check fails; see Checked
	FirstFailed uint64 // set by a kernel when a wait times out; see ParseFailedWait
	PutOff      uint64 // set by the host: nanoseconds by which the deadlines of waits are put off
	FaultPeer   uint32
	Fault       [faultBytes]byte
	Notes       [WaitNotes]WaitNote
	Trace       TraceRing // set by the host before kernels run
}

// TraceRing is where kernels that were compiled with devicecode.Options.Trace write events for a
// timeline; see <mscclgo/trace.cuh>. The zero value means that there is no trace.
type TraceRing struct {
	Events   gpu.Ptr // pinned, aligned to 16 bytes
	Count    gpu.Ptr // of the number of events so far, in device memory
	Size     uint64  // the most events, a power of two
	Reserved uint64
}

// The constants of a fault in <mscclgo/wait.cuh>.
const (
	faultBytes = 228
	faultTold  = 2
	noPeer     = 1<<32 - 1
)

// Checked returns what a check in a kernel found wrong, with block, thread and the line of the
// kernel's call, and the peer that it concerns, or [mscclgo.NoRank]. ok reports whether one did.
// There are checks on the emulated device, and in kernels that were compiled with devicecode.Options.Check;
// groups of sends and receives report messages that do not match in every build, without a line.
func (s *GroupStatus) Checked() (text string, peer int, ok bool) {
	if atomic.LoadUint32(&s.Faulted) != faultTold {
		return "", mscclgo.NoRank, false
	}
	text, _, _ = strings.Cut(string(s.Fault[:]), "\x00")
	if s.FaultPeer == noPeer {
		return text, mscclgo.NoRank, true
	}
	return text, int(s.FaultPeer), true
}

// WaitNotes is the number of notes in a [GroupStatus].
const WaitNotes = 64

// WaitNote is what a kernel tells of a wait that lasts; see <mscclgo/wait.cuh>. The wait
// goes on as long as Last moves.
type WaitNote struct {
	What     uint64 // see ParseWaitNote
	Start    uint64 // of the wait, in nanoseconds of the device's clock
	Last     uint64 // when the note was written, by the same clock
	Expected uint64 // see Awaited
}

// Awaited returns the number of the signal that the wait is for, from 1, or 0 if it is for
// something else.
func (n WaitNote) Awaited() uint64 {
	if n.Expected>>48 != n.Start&0xffff {
		return 0 // another wait's
	}
	return n.Expected & (1<<48 - 1)
}

// ParseFailedWait returns the channel and peer of [GroupStatus].FirstFailed. ok reports
// whether a wait has timed out.
func ParseFailedWait(word uint64) (channel, peer int, ok bool) {
	return int(word >> 32 & (1<<31 - 1)), int(uint32(word)), word>>63 == 1
}

// Watch bounds the waits of kernels; see <mscclgo/wait.cuh>.
type Watch struct {
	Status  gpu.Ptr // of a GroupStatus, aligned to 16 bytes
	Timeout uint64  // nanoseconds, at most math.MaxInt64
	Peer    uint32  // the rank waited for
	Channel uint32  // the number that GroupStatus.FirstFailed has if a wait times out
}

// Device2DeviceSemaphore is declared in <mscclgo/semaphore.cuh>.
type Device2DeviceSemaphore struct {
	Inbound     gpu.Ptr // of the number of signals received, which the peer writes
	PeerInbound gpu.Ptr // of the peer's Inbound, mapped here
	Outbound    gpu.Ptr // of the number of signals sent
	Expected    gpu.Ptr // of the number of signals waited for
	Watch       Watch
}

// MemoryChannel is declared in <mscclgo/memory_channel.cuh>.
type MemoryChannel struct {
	Semaphore   Device2DeviceSemaphore
	Remote      gpu.Ptr // the peer's buffer, mapped here
	Local       gpu.Ptr // this rank's buffer
	Packets     gpu.Ptr // this rank's packet memory, which the peer writes
	RemoteSize  uint64  // bytes
	LocalSize   uint64  // bytes
	PacketsSize uint64  // bytes
}

// ChannelSet is a MemoryChannelSet of <mscclgo/memory_channel.cuh>, and a PortChannelSet of <mscclgo/port_channel.cuh>.
type ChannelSet struct {
	Handles  gpu.Ptr // of the handles: channel i to peer j is number i*Size + j
	Rank     uint32  // the index of this rank among the peers, or Size if it is not one
	Size     uint32  // the number of peers
	PerPeer  uint32  // the number of channels to each
	Reserved uint32
	Watch    Watch
}

// Group is declared in <mscclgo/group.cuh>.
type Group struct {
	Rank          uint32  // this rank's number in the group
	Size          uint32  // the number of ranks
	ScratchOffset uint64  // of the scratch in every window, in bytes
	ScratchSize   uint64  // bytes
	Epochs        gpu.Ptr // of MaxBlocks call numbers of 4 bytes
	Arrivals      gpu.Ptr // of MaxBlocks barrier counts of 4 bytes
	Watch         Watch
	Windows       [RanksByValue]gpu.Ptr // the windows of the first ranks, mapped here
	More          gpu.Ptr               // of the addresses of the other ranks' windows
	Unused        [7]uint64
}

// PeerMemory is declared in <mscclgo/group.cuh>.
type PeerMemory struct {
	Ranks   [RanksByValue]gpu.Ptr // a buffer of each of the first ranks, mapped here
	More    gpu.Ptr               // of the addresses of the other ranks' buffers
	Offset  uint64                // bytes by which those are further
	Stride  uint64                // and bytes for each rank before
	Own     gpu.Ptr               // the buffer of OwnRank
	OwnRank uint64                // one of the other ranks whose buffer is not at More, or 0
	Size    uint64                // ranks, or 0 if that is not told
	Status  gpu.Ptr               // of the group's GroupStatus, or 0
	Unused  uint64
}

// Set sets the address of a rank's buffer. Of the ranks from RanksByValue on, a handle has that
// of one that was set, which Shift does not change.
func (p *PeerMemory) Set(rank uint64, at gpu.Ptr) {
	if rank < RanksByValue {
		p.Ranks[rank] = at
	} else {
		p.Own, p.OwnRank = at, rank
	}
}

// Shift adds to the addresses of all of the group's ranks an offset, and a stride for each rank
// before. It comes before Set.
func (p *PeerMemory) Shift(ranks int, offset, stride uint64) {
	for rank := range uint64(min(ranks, RanksByValue)) {
		p.Ranks[rank] += gpu.Ptr(offset + rank*stride)
	}
	p.Offset += offset
	p.Stride += stride
}

// Fifo is declared in <mscclgo/fifo.cuh>.
type Fifo struct {
	Entries      gpu.Ptr // of Size entries of 32 bytes, pinned
	Tail         gpu.Ptr // of the number of triggers popped, pinned
	State        gpu.Ptr // of a FifoState, in device memory
	Size         uint64  // entries, a power of two
	Payloads     gpu.Ptr // of Size payloads of PayloadBytes, pinned; or 0
	PayloadBytes uint64  // of an entry, a multiple of 128
	Watch        Watch
}

// Host2DeviceSemaphore is declared in <mscclgo/host_semaphore.cuh>.
type Host2DeviceSemaphore struct {
	Inbound  gpu.Ptr // of two numbers of signals received: from the peer's host, from its kernels
	Expected gpu.Ptr // of the number of signals waited for
	Watch    Watch
}

// BasePortChannel is declared in <mscclgo/port_channel.cuh>.
type BasePortChannel struct {
	Fifo      Fifo
	Semaphore Host2DeviceSemaphore
	State     gpu.Ptr // of a PortState
	PeerSent  gpu.Ptr // of the peer's number of signals from kernels, which these count up; or 0
	Progress  gpu.Ptr // of a PortProgress of the connection, pinned
	Queue     gpu.Ptr // of a PortQueue of the connection; or 0
	Number    uint64  // the channel's number in the service
}

// PortChannel is declared in <mscclgo/port_channel.cuh>.
type PortChannel struct {
	Base        BasePortChannel
	Remote      gpu.Ptr // the peer's memory, mapped here; or 0
	Local       gpu.Ptr // this rank's memory if it is mapped
	RemoteSize  uint64  // bytes
	LocalSize   uint64  // bytes
	Direct      uint64  // the most bytes of a put, get or store that the kernel's thread makes itself
	InlineLimit uint64  // the most bytes of a put whose data is in the FIFO entry's payload
	Dst         uint32  // ID of the peer's memory in the service
	Src         uint32  // ID of this rank's memory in the service
}

// Pipe is declared in <mscclgo/pipe.cuh> as PipeHandle.
type Pipe struct {
	Semaphore     Device2DeviceSemaphore
	Port          PortChannel
	Control       gpu.Ptr // of this end's PipeControl
	PeerControl   gpu.Ptr // of the peer's PipeControl, mapped here; or 0
	Slots         gpu.Ptr // of the receiver's slots, or for a port of this end's
	Buffer        gpu.Ptr // the buffer that the receiver posts, mapped here; or 0
	Source        gpu.Ptr // this rank's memory from which the host sends; or 0
	BufferSize    uint64  // bytes
	SourceSize    uint64  // bytes
	SlotBytes     uint64  // a multiple of 128
	ControlOffset uint64  // of this end in the memory that it lies in, in bytes
	PeerOffset    uint64  // of the peer's end in the memory that it lies in, in bytes
	Pool          gpu.Ptr // this rank's PipePool, at the beginning of that memory; or 0
	SlotCount     uint32  // a power of two
	Flags         uint32  // the sum of PipeSends and the like
	BufferNumber  uint32  // ID of the receiver's buffer in the service
	SourceNumber  uint32  // ID of the source in the service
	LotSlots      uint32  // slots that a long message borrows, a power of two of at least SlotCount; or 0
	Reserved      uint32
}

// PipeSet is declared in <mscclgo/pipe.cuh>.
type PipeSet struct {
	Out      gpu.Ptr // of the sending ends: pipe i to peer j is number i*Outs + j
	In       gpu.Ptr // of the receiving ends: pipe i from peer j is number i*Ins + j
	Outs     uint32  // the number of peers to send to
	Ins      uint32  // the number of peers to receive from
	PerPeer  uint32  // the number of pipes to or from each
	Reserved uint32
	Watch    Watch
}

// The kinds of a port channel's trigger, which can be added; see PortRequest in
// <mscclgo/port_channel.cuh>.
const (
	PortPut    = 1 // copy memory to the peer
	PortSignal = 2 // signal the peer's semaphore
	PortFlush  = 4 // complete when all earlier triggers have completed
	PortInline = 8 // the data of the put is in the FIFO entry's payload

	// These may be added to PortFlush alone.
	PortGet   = 16 // copy memory of the peer to this rank
	PortStore = 32 // store a value to a word of the peer's

	PortAdd      = 64 | PortStore // add a value to a word of the peer's
	PortExchange = 64 | PortGet   // replace a word of the peer's, and get what it was
)
