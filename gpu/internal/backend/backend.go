// Package backend is the seam between package gpu and what drives a device:
// the CUDA driver or the emulated device. Package gpu checks every argument
// first (ranges, sizes, which device, closed or not), so a backend checks only what
// it alone can know.
//
// Addresses are plain 64-bit numbers, sizes and offsets are bytes. Errors are
// *mscclgo.Error values. Every method may be called from any goroutine.
package backend

import (
	"context"
	"time"

	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Driver finds and opens the devices of one kind.
type Driver interface {
	// List describes the devices of this machine in ordinal order. Where there is
	// no device, or no driver, the error is ErrUnsupported and names what is missing. It
	// is another where there is a driver that does not work.
	List() ([]Info, error)
	// Open opens a device. An ordinal can be opened more than once; the devices are
	// then independent to their users, and memory of one is reachable from the others.
	Open(ordinal int) (Device, error)
}

// Info describes a device. It is converted to gpu.Info, which documents the fields
// and must have the same.
type Info struct {
	Name, Model        string
	UUID               [16]byte
	Arch, PCIBusID     string
	Multiprocessors    int
	MaxBlocksPerSM     int
	MaxThreadsPerSM    int
	MaxThreadsPerBlock int
	MaxSharedPerBlock  int
	WarpSize, L2Bytes  int
	TotalMemory        uint64
	MemoryGranularity  uint64
	CooperativeLaunch  bool
	LaunchOverlap      bool
	StreamMemoryOps    bool
	DescriptorExport   bool
	RDMAOrdered        bool
	DriverVersion      string
}

// Device is one open device.
type Device interface {
	Info() Info
	// MemoryInfo returns the free and the total bytes of device memory.
	MemoryInfo() (free, total uint64, err error)
	// Alloc allocates device memory that another process can map. Its content is
	// undefined.
	Alloc(size uint64) (Memory, error)
	// AllocHost allocates pinned host memory, zeroed, that kernels and the host
	// both reach.
	AllocHost(size uint64) (HostMemory, error)
	// ImportFD maps memory that another process exported by ExportFD. The
	// descriptor stays the caller's. size is the size of the exporter's Memory.
	ImportFD(fd int, size uint64) (Memory, error)
	// IPCHandle returns a handle by which other processes can map memory that was
	// not allocated here (cudaMalloc), and the offset of ptr in that mapping.
	IPCHandle(ptr uint64) (handle [64]byte, offset uint64, err error)
	// OpenIPC maps the memory of a handle. size counts from the mapping's start.
	OpenIPC(handle [64]byte, size uint64) (Memory, error)
	// DMABuf returns a descriptor, the caller's to close, by which other drivers
	// reach device memory. ptr and size are multiples of the host's page size.
	DMABuf(ptr, size uint64) (int, error)
	// WrapHost lets kernels reach memory of the host that is not the device's. Its Free
	// ends that and leaves the memory alone.
	WrapHost(host []byte) (HostMemory, error)
	// Range returns the base and size of the allocation around ptr. Where it is virtual
	// memory of several mappings in a row, these are the base and size of the mappings that hold the
	// size bytes from ptr, as far as there are such.
	Range(ptr, size uint64) (base, all uint64, err error)
	// Export returns a descriptor, the caller's to close, of the allocation that holds
	// size bytes from ptr, whoever made it. It is ErrUnsupported if there is none.
	Export(ptr, size uint64) (int, error)
	// CanAccess reports whether kernels of this device can reach memory of the other
	// one, which may be open in another process only, or be the same device.
	CanAccess(uuid [16]byte) bool
	// CanUpdate reports whether kernels of this device can also make atomic
	// read-modify-writes in that memory.
	CanUpdate(uuid [16]byte) bool
	// Access lets kernels and copies of this device reach memory that owner,
	// another open device of this process, has size bytes of at ptr.
	Access(owner Device, ptr, size uint64) error
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// PrepareAtomics loads what Stream.Add64 and Stream.Exchange64 need, so that they wait
	// for no kernel.
	PrepareAtomics() error
	// WrapStream and WrapEvent make objects of handles that other code has. Closing them
	// leaves what the handle is of alone.
	WrapStream(handle uintptr) (Stream, error)
	WrapEvent(handle uintptr) (Event, error)
	// HostClock reports whether the clock of kernels is the host's CLOCK_MONOTONIC.
	HostClock() bool
	LoadModule(image []byte) (Module, error)
	// CopyToHost and CopyFromHost return when the copy is done.
	CopyToHost(dst []byte, src uint64) error
	CopyFromHost(dst uint64, src []byte) error
	Close() error
}

// Memory is one allocation or one mapping. If it implements HostMemory too, the
// host can load and store it.
type Memory interface {
	Ptr() uint64
	Size() uint64 // bytes mapped, at least those asked for
	// ExportFD returns a new descriptor of the whole allocation, the caller's to
	// close, or ErrUnsupported for a mapping of another process's memory.
	ExportFD() (int, error)
	Free() error
}

// Stiller is a Device that knows when its work can not go on by itself.
type Stiller interface {
	// Still returns the last such moment; see inside.Still.
	Still() inside.Still
}

// Replaceable is Memory whose content can be replaced at its address. No work may use
// the memory meanwhile. After an error the memory is as it was, if possible.
type Replaceable interface {
	// Renew replaces memory of Alloc by new memory of undefined content. Other processes
	// that map the memory keep the old.
	Renew() error
	// Remap replaces memory of ImportFD by the memory of another descriptor, of the same size.
	// The descriptor stays the caller's.
	Remap(fd int) error
}

// HostMemory is memory that kernels and the host both reach, such as pinned host
// memory.
type HostMemory interface {
	Ptr() uint64   // the address for kernels
	Bytes() []byte // the memory for the host, invalid after Free
	Free() error
}

// Stream runs its work in order.
type Stream interface {
	Copy(dst, src, n uint64) error
	Fill(dst uint64, value byte, n uint64) error
	// WriteValue64 stores value once all earlier work of the stream is visible at
	// system scope.
	WriteValue64(dst, value uint64) error
	// Add64 adds to the 8 bytes at dst, and Exchange64 replaces them and stores what they
	// were at old. Each is one atomic operation at system scope, which releases all earlier
	// work of the stream; Exchange64 also acquires.
	Add64(dst, value uint64) error
	Exchange64(dst, value, old uint64) error
	// WaitValue64 waits until the 8 bytes at src equal value or, without equal, are
	// not less than it as a signed difference.
	WaitValue64(src, value uint64, equal bool) error
	// Launch must not keep args.
	Launch(k Kernel, cfg LaunchConfig, args []byte) error
	// Stamp writes an event of no length to the ring of <mscclgo/trace.cuh> whose TraceRing
	// is at an address that kernels reach, once all earlier work is done.
	Stamp(ring, what, value uint64) error
	Record(e Event) error
	WaitEvent(e Event) error
	// RecordAcross and WaitAcross are Record and WaitEvent in a capture, for an event
	// outside: each launch of the graph records it once, behind the work captured before
	// the last RecordAcross, or waits for what it marks then. One goroutine at a time calls
	// RecordAcross of an event.
	RecordAcross(e Event) error
	WaitAcross(e Event) error
	BeginCapture() error
	EndCapture() (Graph, error)
	// DropCapture ends a capture, which may have become invalid, without a graph.
	DropCapture()
	// Capture returns the number of the capture that the stream takes part in, whoever
	// began it, which no other of the device has, or 0. The error is for a stream that cannot
	// be used at all while another one captures.
	Capture() (uint64, error)
	// Query reports whether all work is done, and returns the error if it failed. It fails
	// while the stream captures, and leaves the capture valid.
	Query() (done bool, err error)
	Synchronize(ctx context.Context) error
	// Native returns the stream for threads in C. It is called once at most, and the
	// queue is closed before the stream.
	Native() *native.Queue
	// NativeError returns the error of an operation of Native that failed.
	NativeError(f native.Failure) error
	Handle() uintptr // for other code of the process
	Close() error
}

// Enterer is a Stream whose device has contexts.
type Enterer interface {
	// Enter makes the stream's context current on the calling OS thread.
	Enter() error
}

// Event marks a point of a stream.
type Event interface {
	Query() (done bool, err error)
	Synchronize(ctx context.Context) error
	// Since returns the time from start to this event; both have happened.
	Since(start Event) (time.Duration, error)
	Handle() uintptr // for other code of the process
	Close() error
}

// Graph is captured work that is ready to run.
type Graph interface {
	// Make prepares it to be launched, once. The driver may wait meanwhile until kernels have ended.
	Make() error
	Launch(s Stream) error
	Close() error
}

// Module is loaded device code.
type Module interface {
	Kernel(name string) (Kernel, error)
	// Symbol returns the address and size of a __device__ variable.
	Symbol(name string) (ptr, size uint64, err error)
	Close() error
}

// Param is the place of an argument in the bytes that Launch takes.
type Param struct{ Offset, Size uint32 }

// Attributes are the resources that a kernel uses. They are converted to
// gpu.Attributes, which documents the fields and must have the same.
type Attributes struct {
	MaxThreadsPerBlock int
	StaticShared       int
	MaxDynamicShared   int
	Registers          int
	LocalBytes         int
}

// Kernel is an entry point of a module.
type Kernel interface {
	Params() []Param
	Attributes() (Attributes, error)
	// SetMaxDynamicShared raises the limit of dynamic shared memory, in bytes.
	SetMaxDynamicShared(bytes int) error
	// MaxResidentBlocks returns how many blocks of this size the whole device can
	// hold at once.
	MaxResidentBlocks(threads, dynamicShared int) (int, error)
}

// LaunchConfig is the shape of a launch.
type LaunchConfig struct {
	Grid, Block   [3]uint32
	DynamicShared uint32 // bytes
	Cooperative   bool   // fail unless all blocks can be resident at once
	Overlap       bool   // may begin while the kernel before it ends
}
