// Package inside has the interfaces by which packages of this module reach parts of each other's types
// that users do not see. The method Internal of such a type returns one. The packages that declare the types
// import this one, so their types are type parameters here.
package inside

import (
	"context"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// Stream is the inside of a *gpu.Stream S. E is *gpu.Event, and B *gpu.Buffer.
type Stream[S, E, B any] interface {
	// Queue returns the stream to threads in C, the same each time, or nil if the stream is closed or was made
	// by Device.WrapStream. What they queue and what the stream's methods queue is done in the order of the
	// calls. Close waits for the threads that use it.
	Queue() *native.Queue
	// QueueError returns the error of an operation of the stream's queue.
	QueueError(f native.Failure) error
	// Capture returns the number of the capture that the stream takes part in, which no other capture of the
	// device has, or 0 if it does not capture.
	Capture() uint64
	// Enter is Capture for a call that is about to queue work on the stream. It returns an error
	// where that would interfere with a capture of other code, as on the legacy default stream.
	Enter(op string) (capture uint64, err error)
	// CapturedByOthers reports whether the stream takes part in a capture that other
	// code began, and of which package gpu sees neither the end nor the graph's launches.
	CapturedByOthers() bool
	// OfThread reports whether it is the default stream of the calling thread,
	// and so another one to other threads.
	OfThread() bool
	// InContext calls f on an OS thread on which the context of the stream is current, for
	// a library that takes the GPU from there, and returns its error. It is ErrUnsupported on
	// emulated devices, which have no contexts.
	InContext(f func() error) error
	// RecordAcross has each launch of the graph that the stream is capturing record an
	// event, behind what was captured so far. The event does not become one of the capture.
	RecordAcross(event E) error
	// WaitAcross has each launch wait for what the event marks then.
	WaitAcross(event E) error
	// Carry has around make every launch of the graph that the stream is capturing. It gets the
	// stream that the graph is launched on, which may itself capture, and queues the graph by
	// calling its Launch. If late is set, the graph is not made when the capture ends, but at its
	// first launch. The first call of an id counts;
	// the functions of several ids are nested, the lowest outermost. It does nothing
	// when the stream does not capture.
	Carry(id uint64, late bool, around func(stream S, g GraphLaunch) error)
	// Explain has what Synchronize of the *gpu.Stream returns pass through f, also when it is nil.
	Explain(f func(error) error)
	// Synchronize waits for the work of the stream, without what Explain adds.
	Synchronize(ctx context.Context) error
	// BeforeClose has f called once, before the stream closes and while it still
	// takes work, instead of the f given before under this id. A nil f cancels it.
	BeforeClose(id uint64, f func())
	// Usable returns an error if the stream is nil, or it or its device is closed. op is what was tried. It
	// does not ask the driver; see Enter.
	Usable(op string) error
	// Reaches returns an error if the device of the stream cannot access the first n bytes of a buffer.
	Reaches(buffer B, op string, n uint64) error
	// Add64 queues the addition of value to an 8-byte word, whose address must be a multiple of
	// 8. It is one atomic operation at system scope: in memory of a device of which
	// CanUpdate is true, with respect to all that kernels and streams do at that scope;
	// in memory of the host to what this device does, and, over most links to hosts, to nothing
	// else. A reader that acquires the sum at system scope sees all earlier work of the stream.
	//
	// On an NVIDIA GPU it is a kernel of one thread: it begins once a multiprocessor has room for
	// it, so that kernels which fill the device must not wait for it.
	//
	// Errors: as for WriteValue64.
	Add64(dst B, offset, value uint64) error
	// Exchange64 queues the replacement of an 8-byte word of dst, atomic as Add64 is, and the
	// store of what it was to one of old. Later work of the stream also sees what was released
	// with that.
	//
	// Errors: as for WriteValue64.
	Exchange64(dst B, offset, value uint64, old B, oldOffset uint64) error
}

// GraphLaunch is a launch of a graph under way.
type GraphLaunch interface {
	// Made reports whether the graph is ready to be launched, and Make makes it so. CUDA's driver may wait
	// meanwhile until kernels of the process on that GPU have ended.
	Made() bool
	Make() error
	// Launch makes the graph, if that is left to do, and queues it.
	Launch() error
}

// Buffer is the inside of a *gpu.Buffer.
type Buffer interface {
	// Gate returns the gate of the buffer's memory, one for all its views.
	Gate() *native.Gate
	// Keep has the memory outlive the buffer's Close until letGo is
	// called, once. It reports whether the memory was still there.
	Keep() (letGo func() error, ok bool)
	// Freed reports whether the memory was closed by its owner, though it may be kept.
	Freed() bool
	// Renew replaces the memory of a buffer of Device.Alloc by new memory at the
	// same address, of undefined content. No work of this process may use it meanwhile;
	// other processes that map the old keep that. It fails as ErrUnsupported where the
	// device cannot.
	Renew() error
	// Remap is likewise for a buffer of Device.Import, and another file of the same
	// size. The file stays the caller's.
	Remap(file *os.File) error
	// AllocationOffset returns the buffer's offset in the whole allocation.
	AllocationOffset() uint64
	// Capacity returns the bytes of the whole allocation that the buffer is part of, which
	// Import takes.
	Capacity() uint64
	// DMABuf returns a dma-buf, a file by which the drivers of other devices such as
	// network cards reach the buffer's device memory. The buffer starts at offset, which is
	// less than a page. The caller closes the file.
	//
	// Errors: ErrUnsupported for pinned host memory, on an emulated device, and if the
	// driver cannot export the memory; ErrInvalid if the buffer is empty.
	DMABuf() (file *os.File, offset uint64, err error)
	// Export returns a file by which another process can map the whole allocation; see
	// Import. The caller closes it.
	//
	// Errors: ErrUnsupported if the memory is not from Alloc, or from Wrap and
	// made by its owner to be shared so.
	Export() (*os.File, error)
	// IPCHandle returns the handle of the CUDA driver's cuIpcGetMemHandle by which other
	// processes can map the allocation that the buffer, made by Wrap, is part of.
	// offset is where the buffer starts in what OpenIPC maps.
	//
	// Errors: ErrUnsupported if the memory has no such handle, as memory from
	// Alloc has none.
	IPCHandle() (handle [64]byte, offset uint64, err error)
}

// Kernel is the inside of a *gpu.Kernel. S is *gpu.Stream, and C gpu.LaunchConfig.
type Kernel[S, C any] interface {
	// Params returns the kernel's parameters.
	Params() []Param
	// LaunchPacked is Launch for arguments that lie in place already. It does not keep them. There may be padding
	// behind the last, as in a struct of C.
	LaunchPacked(stream S, config C, args []byte) error
}

// Param is a parameter of a kernel.
type Param struct {
	Offset, Size    uint32 // in the bytes that LaunchPacked takes
	signature.Param        // in the source; zero where the image does not tell
}

// Device is the inside of a *gpu.Device. B is *gpu.Buffer.
type Device[B any] interface {
	// Use has closing the device be an error that names the user, until end is
	// called. It fails if the device is closed.
	Use(by string) (end func(), err error)
	// WrapVouched returns a buffer for memory of the device that other code owns, as its
	// Wrap does, without asking the driver about it; or nil where memory is always looked up: on
	// emulated devices.
	WrapVouched(address, bytes uint64) B
	// BeginBusy notes that the program does something for the device that may last, until end is called.
	BeginBusy(what string, compiles bool) (end func())
	// Busy returns what it does for the device, the oldest first.
	Busy() []Busy
	// SlowDriver has f called where CUDA's driver may wait until kernels have ended: before it loads
	// code, and before it makes a graph. It is for tests.
	SlowDriver(f func())
	// Launches returns the last launches on each stream, in their order. With query it asks the
	// driver whether the streams are idle; else only what the program has waited for is known to have ended.
	Launches(query bool) [][]Launch
	// GroupLaunches has the device tell the launches of one more group from the others.
	GroupLaunches() LaunchGroup
	// Still returns when last all work of the device stood still; zeros where that is not
	// known, as on GPUs.
	Still() Still
	// TraceLaunches has the device write the begin and end of each launch to the ring
	// whose native.TraceHeader is at an address that kernels reach, until stop is called. Graphs that
	// were captured until then do so for ever. ok is false if the device does so already.
	TraceLaunches(ring uint64) (sites func() []native.LaunchSite, stop func(), ok bool)
	// Clock compares the clock of the device with the host's.
	Clock() (native.Clock, error)
	// Import maps memory that another process exported with Export. capacity is
	// the exporter's Capacity. The file stays the caller's and can be closed when
	// Import returns. Closing the buffer unmaps the memory.
	//
	// Errors: ErrInvalid if the file is not such memory or has another size,
	// ErrUnsupported if d cannot reach the device that the memory is on.
	Import(file *os.File, capacity uint64) (B, error)
	// OpenIPC maps the first size bytes of the allocation of a handle that another process
	// got from IPCHandle. Closing the buffer unmaps the memory.
	//
	// Errors: ErrInvalid if the handle is not valid or the allocation is smaller,
	// ErrUnsupported if d cannot map memory by handle.
	OpenIPC(handle [64]byte, size uint64) (B, error)
	// CanUpdate reports whether kernels of d can make atomic read-modify-writes in memory of
	// the device with this UUID: its own, or over a link that has them, as NVLink does and PCIe
	// mostly does not.
	CanUpdate(uuid [16]byte) bool
	// PrepareAtomics loads what Add64 and Exchange64 need on streams of d.
	// Otherwise the first of them does, which may wait for kernels that run; these must not wait
	// for it then.
	PrepareAtomics() error
}

// Busy is what a rank's host does for a device, of which it tells other ranks.
type Busy struct {
	What     string    // such as "compiles sum.cu"
	Since    time.Time // when it began
	Compiles bool      // for which the deadlines of other ranks' waits are put off
}

// Launch is a launch of a kernel or of a graph.
type Launch struct {
	Number      uint64    // among the stream's launches, from 1
	Name        string    // of the kernel, or what graph it is
	Group       uint64    // LaunchGroup.Number, or 0 if that is not known
	Nth         uint64    // launch of that name in the group on the device, from 1
	Grid, Block [3]uint32 // of a graph its kernels', or 0 if they differ
	Hash        uint32    // of the arguments
	Ended       bool      // as far as is known
}

// LaunchGroup is a group of ranks to a device, which tells its launches by its memory.
type LaunchGroup interface {
	// Number returns the number of the group on the device, from 1.
	Number() uint64
	// Only reports whether the device has had no other group.
	Only() bool
	// Has tells of memory that is the group's alone. Launches with an argument that points there,
	// also in a struct, are the group's from then on.
	Has(address, bytes uint64)
	// HasBlocks tells of an address in that memory, of words for so many blocks of a one-dimensional grid.
	// Launches of other grids that have it among their arguments are refused.
	HasBlocks(address uint64, blocks uint32)
	// End has the device forget the memory, before that is freed or left to another group.
	End()
}

// Still is a moment at which no work of a device could go on by itself: its streams were idle,
// or waited for each other or for kernels, and each thread of these kernels waited in a wait of
// the library or for other threads of its block. Between two such moments with one Epoch all of
// it stood still.
type Still struct {
	Rounds  uint64 // counts the moments. Each thread has looked for what it waits for since the one before
	Epoch   uint64 // changes with all that begins or ends to wait
	Hosts   int    // goroutines that waited for work of the device
	Unbegun uint64 // blocks that had not begun, for which the device has no room
	Threads []StillThreads
}

// StillThreads is threads of a block that wait for the same.
type StillThreads struct {
	Kernel       string
	Block        uint32 // of the launch
	First, Count uint32 // the first thread's number, and how many there are
	At           StillAt

	Group         uint64 // the address of the devicecode.GroupStatus of a StillWaits; the rest as in its Watch
	Channel, Peer uint32
	Number        uint64 // of the signal, or 0
}

// StillAt is where a thread waits.
type StillAt uint8

// The places where threads wait.
const (
	StillWaits   StillAt = iota // in a wait of the library, for memory to change
	StillBarrier                // at __syncthreads
	StillWarp                   // in a warp function
)
