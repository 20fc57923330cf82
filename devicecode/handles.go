package devicecode

import (
	"fmt"
	"unsafe"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// The limits of <mscclgo/config.cuh>.
const (
	// MaxRanks is the most ranks whose memory a kernel can access by address.
	MaxRanks = 256
	// MaxBlocks is the most blocks of a grid that uses a group's barriers and epochs.
	MaxBlocks = 256
)

// The device handles are structs of the headers, which are passed to kernels by value or copied to device memory.
// What they hold is for the headers and this module.
type (
	// MemoryChannel is MemoryChannelHandle of <mscclgo/memory_channel.cuh>.
	MemoryChannel struct{ handle[layout.MemoryChannel] }
	// MemoryChannelSet is declared in <mscclgo/memory_channel.cuh>.
	MemoryChannelSet struct{ handle[layout.ChannelSet] }
	// PortChannel is PortChannelHandle of <mscclgo/port_channel.cuh>.
	PortChannel struct{ handle[layout.PortChannel] }
	// PortChannelSet is declared in <mscclgo/port_channel.cuh>.
	PortChannelSet struct{ handle[layout.ChannelSet] }
	// BasePortChannel is BasePortChannelHandle of <mscclgo/port_channel.cuh>.
	BasePortChannel struct{ handle[layout.BasePortChannel] }
	// PipeSet is declared in <mscclgo/pipe.cuh>.
	PipeSet struct{ handle[layout.PipeSet] }
	// Group is GroupHandle of <mscclgo/group.cuh>.
	Group struct{ handle[layout.Group] }
	// PeerMemory is declared in <mscclgo/group.cuh>.
	PeerMemory struct{ handle[layout.PeerMemory] }
	// Fifo is FifoHandle of <mscclgo/fifo.cuh>.
	Fifo struct{ handle[layout.Fifo] }
	// Device2DeviceSemaphore is Device2DeviceSemaphoreHandle of <mscclgo/semaphore.cuh>.
	Device2DeviceSemaphore struct {
		handle[layout.Device2DeviceSemaphore]
	}
	// Host2DeviceSemaphore is Host2DeviceSemaphoreHandle of <mscclgo/host_semaphore.cuh>.
	Host2DeviceSemaphore struct {
		handle[layout.Host2DeviceSemaphore]
	}
)

// handle is a handle that has the fields of an L.
type handle[L any] struct{ fields L }

// Internal is for packages of this module.
func (h handle[L]) Internal() L { return h.fields }

// GroupStatus is the state of a rank's group in pinned host memory, which a [Watch] has the address of; see
// <mscclgo/wait.cuh>. It is zeroed before kernels run.
type GroupStatus struct {
	Aborted uint32 // set by the host to end all waits
	_       [(unsafe.Sizeof(layout.GroupStatus{}) - 4) / 4]uint32
}

// Watch bounds the waits of kernels; see <mscclgo/wait.cuh>.
type Watch struct {
	Status  gpu.Ptr // of a GroupStatus, aligned to 16 bytes
	Timeout uint64  // nanoseconds, at most math.MaxInt64
	Peer    uint32  // the rank waited for
	Channel uint32  // the number that the report of a wait that times out has
}

// WaitResult is the result of a kernel's wait; see <mscclgo/wait.cuh>.
type WaitResult uint32

// The results of a wait.
const (
	WaitDone     WaitResult = 0 // the wait succeeded
	WaitTimedOut WaitResult = 1 // the timeout passed first
	WaitAborted  WaitResult = 2 // the group failed or was closed
)

// String returns the name of the result.
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
