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
	Entries gpu.Ptr // of 32 bytes each, pinned
	Tail    gpu.Ptr // pinned
	State   gpu.Ptr // of a FifoState, in device memory
	Size    uint64  // entries
	Watch   Watch
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
