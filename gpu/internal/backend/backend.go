// Package backend is the seam between package gpu and what drives a device:
// the CUDA driver or the emulated device. Package gpu checks every argument
// before it comes here (ranges, sizes, which device, closed or not), so a
// backend checks only what it alone can know.
//
// Addresses are plain 64-bit numbers, sizes and offsets are bytes. Errors are
// *mscclgo.Error values. Every method may be called from any goroutine.
package backend

import (
	"context"
	"time"

	"github.com/mscclgo/mscclgo/internal/native"
)

// Driver finds and opens the devices of one kind.
type Driver interface {
	// List describes the devices of this machine in ordinal order. A machine
	// that has none, or no driver, gives ErrUnsupported that says which.
	List() ([]Info, error)
	// Open opens the device. Several opens of one ordinal are independent
	// devices to their users, and memory of one is reachable from the others.
	Open(ordinal int) (Device, error)
}

// Info describes a device.
type Info struct {
	Name               string   // "cuda:0" or "emu:0", what gpu.Open takes
	Model              string   // the product's name
	UUID               [16]byte // the same in every process that sees this device
	Arch               string   // what devicecode compiles for: "sm_90" or "emu"
	PCIBusID           string   // "0000:1b:00.0", empty for an emulated device
	Multiprocessors    int      // blocks run here
	MaxBlocksPerSM     int      // resident blocks a multiprocessor at most
	MaxThreadsPerBlock int      //
	MaxSharedPerBlock  int      // bytes, with opt-in
	WarpSize           int      //
	TotalMemory        uint64   // bytes
	CooperativeLaunch  bool     //
	LaunchOverlap      bool     // launches may begin while the kernel before ends
	StreamMemoryOps    bool     // 64-bit stream write and wait values
	DescriptorExport   bool     // Alloc gives memory that ExportFD can share
	L2Bytes            int      //
	MaxThreadsPerSM    int      //
	MemoryGranularity  uint64   // Alloc rounds sizes up to a multiple of this
	DriverVersion      string   // as its vendor writes it
}

// Device is one open device.
type Device interface {
	Info() Info
	// MemoryInfo gives the free and the total bytes of device memory.
	MemoryInfo() (free, total uint64, err error)
	// Alloc gives device memory that another process can map. Its content is
	// undefined.
	Alloc(size uint64) (Memory, error)
	// AllocHost gives pinned host memory, zeroed, that kernels and the host
	// both reach.
	AllocHost(size uint64) (HostMemory, error)
	// ImportFD maps memory that another process exported by ExportFD. The
	// descriptor stays the caller's. size is what the exporter's Memory had.
	ImportFD(fd int, size uint64) (Memory, error)
	// IPCHandle names memory that was not allocated here (cudaMalloc) for
	// other processes; offset is where ptr lies in what OpenIPC will map.
	IPCHandle(ptr uint64) (handle [64]byte, offset uint64, err error)
	// OpenIPC maps what IPCHandle named. size is offset plus what is used.
	OpenIPC(handle [64]byte, size uint64) (Memory, error)
	// DMABuf gives a descriptor, the caller's to close, by which other drivers
	// reach device memory. ptr and size are multiples of the host's page size.
	DMABuf(ptr, size uint64) (int, error)
	// Range gives the base and size of the allocation around ptr.
	Range(ptr uint64) (base, size uint64, err error)
	// CanAccess says whether kernels here can reach memory of the other
	// device, which may belong to another process or be the same device.
	CanAccess(uuid [16]byte) bool
	// Access lets kernels and copies of this device reach memory that owner,
	// another open device of this process, allocated at ptr.
	Access(owner Device, ptr uint64) error
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	LoadModule(image []byte) (Module, error)
	// CopyToHost and CopyFromHost copy at once: they return when done.
	CopyToHost(dst []byte, src uint64) error
	CopyFromHost(dst uint64, src []byte) error
	Close() error
}

// Memory is one allocation or one mapping. One that is a HostMemory too the host
// can load and store.
type Memory interface {
	Ptr() uint64
	Size() uint64 // bytes mapped, at least what was asked
	// ExportFD gives a new descriptor of the whole allocation, the caller's
	// to close; ErrUnsupported for a mapping that is not this process's own.
	ExportFD() (int, error)
	Free() error
}

// HostMemory is memory that kernels and the host both reach, such as pinned host
// memory.
type HostMemory interface {
	Ptr() uint64   // what a kernel uses
	Bytes() []byte // what the host uses; invalid after Free
	Free() error
}

// Compare is how WaitValue64 compares.
type Compare int

// The comparisons of WaitValue64.
const (
	GreaterOrEqual Compare = iota // as signed difference, so wrap-around works
	Equal
)

// Stream runs what is given to it in order.
type Stream interface {
	Copy(dst, src, n uint64) error
	Fill(dst uint64, value byte, n uint64) error
	// WriteValue64 stores after all earlier work of the stream is visible at
	// system scope.
	WriteValue64(dst, value uint64) error
	WaitValue64(src, value uint64, how Compare) error
	// Launch must not keep args.
	Launch(k Kernel, cfg LaunchConfig, args []byte) error
	Record(e Event) error
	WaitEvent(e Event) error
	BeginCapture() error
	EndCapture() (Graph, error)
	// Query says whether all work is done, and how it failed if it did.
	Query() (done bool, err error)
	Synchronize(ctx context.Context) error
	// Native gives the stream to threads in C. It is asked once, and what it gives
	// is closed before the stream.
	Native() *native.Queue
	// NativeError gives the error of an operation of Native that failed.
	NativeError(f native.Failure) error
	Handle() uintptr // what the driver calls it, 0 where there is no such thing
	Close() error
}

// Event marks a point of a stream.
type Event interface {
	Query() (done bool, err error)
	Synchronize(ctx context.Context) error
	// Since gives the time from start to this event; both have happened.
	Since(start Event) (time.Duration, error)
	Handle() uintptr // as Stream's
	Close() error
}

// Graph is captured work, ready to run.
type Graph interface {
	Launch(s Stream) error
	Close() error
}

// Module is loaded device code.
type Module interface {
	Kernel(name string) (Kernel, error)
	// Symbol gives the address and size of a __device__ variable.
	Symbol(name string) (ptr, size uint64, err error)
	Close() error
}

// Param is where an argument lies in the bytes given to Launch.
type Param struct{ Offset, Size uint32 }

// Attributes are what the compiler settled for a kernel.
type Attributes struct {
	MaxThreadsPerBlock int
	StaticShared       int // bytes
	MaxDynamicShared   int // bytes, as last set
	Registers          int // a thread; 0 on an emulated device
	LocalBytes         int // a thread
}

// Kernel is an entry point of a module.
type Kernel interface {
	Params() []Param
	Attributes() (Attributes, error)
	// SetMaxDynamicShared raises the limit of dynamic shared memory, in bytes.
	SetMaxDynamicShared(bytes int) error
	// MaxResidentBlocks says how many blocks of this size the whole device
	// holds at once.
	MaxResidentBlocks(threads, dynamicShared int) (int, error)
}

// LaunchConfig is the shape of a launch.
type LaunchConfig struct {
	Grid, Block   [3]uint32
	DynamicShared uint32 // bytes
	Cooperative   bool   // fail unless all blocks are resident at once
	Overlap       bool   // begin while the kernel before ends
}
