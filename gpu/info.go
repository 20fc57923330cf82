package gpu

import (
	"errors"

	"github.com/mscclgo/mscclgo"
)

// Info describes a device.
type Info struct {
	// Name is what [Open] takes: "cuda:0" or "emu:0".
	Name string
	// Model is the product's name, such as "NVIDIA H200".
	Model string
	// UUID is the same in every process that can use the device.
	UUID [16]byte
	// Arch is the architecture that package devicecode compiles for: "sm_90" and the
	// like, or "emu".
	Arch string
	// PCIBusID is the device's address, such as "0000:1b:00.0". It is empty for an
	// emulated device.
	PCIBusID string
	// Multiprocessors is the number of streaming multiprocessors.
	Multiprocessors int
	// MaxBlocksPerSM is the most blocks that a multiprocessor holds at once.
	MaxBlocksPerSM int
	// MaxThreadsPerSM is the most threads that a multiprocessor holds at once.
	MaxThreadsPerSM int
	// MaxThreadsPerBlock is the most threads that a block can have.
	MaxThreadsPerBlock int
	// MaxSharedPerBlock is the most bytes of shared memory that a block can have once
	// [Kernel.SetMaxDynamicShared] allows them.
	MaxSharedPerBlock int
	// WarpSize is the number of threads of a warp.
	WarpSize int
	// L2Bytes is the size of the level 2 cache.
	L2Bytes int
	// TotalMemory is the bytes of device memory.
	TotalMemory uint64
	// MemoryGranularity is what [Device.Alloc] rounds sizes up to a multiple of, in
	// bytes.
	MemoryGranularity uint64
	// CooperativeLaunch reports whether [LaunchConfig.Cooperative] can be used.
	CooperativeLaunch bool
	// LaunchOverlap reports whether [LaunchConfig.Overlap] has an effect.
	LaunchOverlap bool
	// StreamMemoryOps reports whether [Stream.WriteValue64] and [Stream.WaitValue64]
	// can be used.
	StreamMemoryOps bool
	// DescriptorExport reports whether other processes can map memory by descriptor that is from
	// [Device.Alloc].
	DescriptorExport bool
	// RDMAOrdered reports whether kernels see what RDMA devices write to the device's memory
	// in the order in which they write it.
	RDMAOrdered bool
	// DriverVersion is the version of the driver, as its vendor writes it.
	DriverVersion string
}

// List describes the devices of this machine: NVIDIA GPUs first, then the emulated
// ones. It is no error if the machine has no NVIDIA driver or GPU; emulated devices are then
// all there is.
//
// Errors: ErrSystem, with the driver's text, if there is a driver and it does not work.
func List() ([]Info, error) {
	gpus, err := devices(kindCUDA)
	if err != nil && !errors.Is(err, mscclgo.ErrUnsupported) {
		return nil, err
	}
	emulated, err := devices(kindEmu)
	if err != nil {
		return nil, err
	}
	return append(gpus, emulated...), nil
}
