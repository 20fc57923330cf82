// Package layout has what the headers of package devicecode and this module's Go both know of memory that
// handles point to. A test of devicecode compares it with the compiled headers.
package layout

import "unsafe"

// ParseWaitNote returns the channel, peer and block of WaitNote.What, and whether the
// wait has timed out. A note that was never written is 0.
func ParseWaitNote(what uint64) (channel, peer, block int, timedOut bool) {
	return int(what >> 32 & (1<<31 - 1)), int(what >> 16 & 0xffff), int(what & 0xffff), what>>63 == 1
}

// FifoState is declared in <mscclgo/fifo.cuh>.
type FifoState struct {
	Head      uint64 // triggers pushed or being pushed
	Reserved0 [15]uint64
	Popped    uint64 // triggers popped when last read, or fewer
	Reserved1 [15]uint64
	Looking   uint64 // 1 while a thread reads Fifo.Tail
	Reserved2 [15]uint64
}

// PortState is declared in <mscclgo/port_channel.cuh>.
type PortState struct {
	Asked    uint64 // 1 + the position of the newest get
	Expected uint64 // signals waited for
	Pushed   uint64 // 1 + the position in the FIFO of the newest trigger
	Flushed  uint64 // Pushed at the newest flush that has completed
}

// PortProgress is declared in <mscclgo/port_channel.cuh>.
type PortProgress struct {
	Flushed uint64 // 1 + the position of the connection's newest flush that has completed
	Taken   uint64 // triggers that the transport has taken, where there is a PortQueue
}

// PortQueue is declared in <mscclgo/port_channel.cuh>.
type PortQueue struct {
	Asked    uint64 // triggers pushed or being pushed
	Taken    uint64 // PortProgress.Taken when last read, or less
	Looking  uint64 // 1 while a thread reads PortProgress.Taken
	Reserved uint64
}

// PortWaiting is the most triggers of a connection with a PortQueue that have been pushed
// and that the transport has not taken.
const PortWaiting = 1024

// RoomChannel is the channel number that a wait for the transport to take triggers is
// reported with, and the connection's peer.
const RoomChannel = 1<<31 - 3

// MessageChannel is the channel number with which kernels of package collective report waits
// for sends and receives.
const MessageChannel = 1<<31 - 4

// PipeControl is declared in <mscclgo/pipe.cuh>.
type PipeControl struct {
	Post      [3]uint64 // where the receiver wants a message, its bytes, and its first chunk's number; the peer writes it
	Reserved  uint64
	Posting   [3]uint64 // the post that a receiving end made last
	Posted    uint64    // 1 from a post until its message is received
	Answers   uint64    // the receiver's signals up to a sending end's last message
	Chunks    uint64    // the number of chunks sent or received
	Lent      uint64    // at a sending end, the receiver's lot that the message goes to; or 0
	Lot       uint64    // of this rank's, which the message goes through that a sending end by port sends last; or 0
	Reserved2 [4]uint64
}

// What the end of a pipe is; see PipeFlag in <mscclgo/pipe.cuh>.
const (
	PipeSends   = 1 // the sending end
	PipeByPort  = 2 // hosts move the data
	PipePosts   = 4 // the receiver posts where it wants each message
	PipeBorrows = 8 // messages of more than SlotCount chunks borrow slots of the receiver's pool

	PipeUnopened = 16 // it is not connected yet, and its calls fail
)

// MaxPipeLot is how many slots a message borrows at most.
const MaxPipeLot = 16

// PipeLot goes with the offset of a lot in a post.
const PipeLot = 1 << 63

// PipePool is declared in <mscclgo/pipe_pool.cuh>. Behind it is a word for each lot: 1 if it is free.
type PipePool struct {
	Lots     uint64 // how many there are
	First    uint64 // where the first is in the memory that the pool begins, in bytes
	LotBytes uint64
	Asked    uint64 // how often one was wanted
	Refused  uint64 // how often none was found
	Lent     uint64 // how often one was lent, less how often a kernel gave one back
	Returned uint64 // lots that the host gave back
	Reserved [9]uint64
}

// Handle returns the handle of package devicecode that has the fields.
func Handle[H interface{ Internal() L }, L any](fields L) H {
	return *(*H)(unsafe.Pointer(&fields))
}
