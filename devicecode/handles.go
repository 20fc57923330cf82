package devicecode

import "github.com/mscclgo/mscclgo/gpu"

// The limits of <mscclgo/config.cuh>.
const (
	// MaxRanks bounds the ranks whose memory one kernel reaches by address.
	MaxRanks = 72
	// MaxBlocks bounds the blocks of a grid that uses a group's barriers and
	// epochs.
	MaxBlocks = 256
)

// The types below are the device handles: the same C structs that the headers
// declare, field by field, to be passed to kernels by value or copied to device
// memory. A test compares sizes and offsets with the compiled headers.

// GroupStatus is a rank's state of its group in pinned host memory; see
// <mscclgo/wait.cuh>.
type GroupStatus struct {
	Aborted     uint32 // set by the host: ends all waits
	Reserved    uint32
	FirstFailed uint64 // set by a kernel whose wait timed out; see ParseFailedWait
}

// ParseFailedWait splits GroupStatus.FirstFailed; ok says whether it is set.
func ParseFailedWait(word uint64) (channel, peer int, ok bool) {
	return int(word >> 32 & (1<<31 - 1)), int(uint32(word)), word>>63 == 1
}

// Watch is what a device's wait needs to end by itself; see <mscclgo/wait.cuh>.
type Watch struct {
	Status  gpu.Ptr // of a GroupStatus
	Timeout uint64  // nanoseconds
	Peer    uint32  // rank
	Channel uint32  // number, for reports
}

// Device2DeviceSemaphore is declared in <mscclgo/semaphore.cuh>.
type Device2DeviceSemaphore struct {
	Inbound     gpu.Ptr
	PeerInbound gpu.Ptr
	Outbound    gpu.Ptr
	Expected    gpu.Ptr
	Watch       Watch
}

// MemoryChannel is declared in <mscclgo/memory_channel.cuh>.
type MemoryChannel struct {
	Semaphore   Device2DeviceSemaphore
	Remote      gpu.Ptr
	Local       gpu.Ptr
	Packets     gpu.Ptr
	RemoteSize  uint64 // bytes
	LocalSize   uint64 // bytes
	PacketsSize uint64 // bytes
}

// Group is declared in <mscclgo/group.cuh>.
type Group struct {
	Rank          uint32
	Size          uint32
	ScratchOffset uint64 // bytes
	ScratchSize   uint64 // bytes
	Epochs        gpu.Ptr
	Arrivals      gpu.Ptr
	Watch         Watch
	Windows       [MaxRanks]gpu.Ptr
}

// PeerMemory is declared in <mscclgo/group.cuh>: one buffer of each rank.
type PeerMemory struct {
	Ranks [MaxRanks]gpu.Ptr
}
