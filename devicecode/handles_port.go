package devicecode

import (
	"fmt"

	"github.com/mscclgo/mscclgo/gpu"
)

// WaitResult is how a device's wait ended; see <mscclgo/wait.cuh>.
type WaitResult uint32

// The ends of a wait.
const (
	WaitDone     WaitResult = 0 // what was awaited is there
	WaitTimedOut WaitResult = 1 // the deadline passed first
	WaitAborted  WaitResult = 2 // the group failed or was closed
)

// String names the end.
func (r WaitResult) String() string {
	switch r {
	case WaitDone:
		return "done"
	case WaitTimedOut:
		return "timed out"
	case WaitAborted:
		return "aborted"
	}
	return fmt.Sprintf("result %d", uint32(r))
}

// Fifo is declared in <mscclgo/fifo.cuh>.
type Fifo struct {
	Entries      gpu.Ptr // of 32 bytes each, pinned
	Tail         gpu.Ptr // pinned
	State        gpu.Ptr // of a FifoState, in device memory
	Size         uint64  // entries
	Payloads     gpu.Ptr // pinned, or 0
	PayloadBytes uint64  // of an entry
	Watch        Watch
}

// FifoState is declared in <mscclgo/fifo.cuh>.
type FifoState struct {
	Head      uint64
	Reserved0 [15]uint64
	Popped    uint64
	Reserved1 [15]uint64
	Looking   uint64
	Reserved2 [15]uint64
}

// Host2DeviceSemaphore is declared in <mscclgo/host_semaphore.cuh>.
type Host2DeviceSemaphore struct {
	Inbound  gpu.Ptr
	Expected gpu.Ptr
	Watch    Watch
}

// PortState is declared in <mscclgo/port_channel.cuh>.
type PortState struct {
	Sent     uint64
	Expected uint64
	Pushed   uint64
	Flushed  uint64
}

// BasePortChannel is declared in <mscclgo/port_channel.cuh>.
type BasePortChannel struct {
	Fifo      Fifo
	Semaphore Host2DeviceSemaphore
	State     gpu.Ptr // of a PortState
	PeerSent  gpu.Ptr
	Served    gpu.Ptr
	Number    uint64
}

// PortChannel is declared in <mscclgo/port_channel.cuh>.
type PortChannel struct {
	Base        BasePortChannel
	Remote      gpu.Ptr
	Local       gpu.Ptr
	RemoteSize  uint64 // bytes
	LocalSize   uint64 // bytes
	Direct      uint64 // bytes
	InlineLimit uint64 // bytes
	Dst         uint32
	Src         uint32
}

// The kinds of a port's trigger, any sum of these; see PortRequest in
// <mscclgo/port_channel.cuh>.
const (
	PortPut    = 1
	PortSignal = 2
	PortFlush  = 4
	PortInline = 8
)
