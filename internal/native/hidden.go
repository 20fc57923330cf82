package native

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/internal/signature"
)

// Functions with which packages of this module reach parts of each other's types
// that users do not see. Each is set once, by an init function of the package that
// declares the type.
var (
	// QueueOf returns a *gpu.Stream to threads in C, the same each time, or nil
	// when the stream is closed or was made by Device.WrapStream.
	QueueOf func(stream any) *Queue
	// QueueError returns the error of an operation of a *gpu.Stream's queue.
	QueueError func(stream any, f Failure) error
	// CaptureOf returns a value for the capture that a *gpu.Stream takes part in, the
	// same for all its streams and != any other's, or nil when it does not capture.
	CaptureOf func(stream any) any
	// Enter is CaptureOf for a call that is about to queue work on a *gpu.Stream. It returns an error
	// where that would interfere with a capture of other code, as on the legacy default stream.
	Enter func(stream any, op string) (capture any, err error)
	// CapturedByOthers reports whether a *gpu.Stream takes part in a capture that other
	// code began, and of which package gpu sees neither the end nor the graph's launches.
	CapturedByOthers func(stream any) bool
	// OfThread reports whether a *gpu.Stream is the default stream of the calling thread,
	// and so another one to other threads.
	OfThread func(stream any) bool
	// InContext calls f on an OS thread on which the context of a *gpu.Stream is current, for
	// a library that takes the GPU from there, and returns its error. It is ErrUnsupported on
	// emulated devices, which have no contexts.
	InContext func(stream any, f func() error) error
	// RecordAcross has each launch of the graph that a *gpu.Stream is capturing record a
	// *gpu.Event, behind what was captured so far. The event does not become one of the
	// capture. WaitAcross has each launch wait for what the event marks then.
	RecordAcross, WaitAcross func(stream, event any) error
	// Carry has every launch of the graph that a *gpu.Stream is capturing made through
	// around: it gets the *gpu.Stream that the graph is launched on, which may itself
	// capture, and queues the graph by calling its Launch. If late is set, the graph is not made when the
	// capture ends, but at its first launch. The first call of an id counts;
	// the functions of several ids are nested, the lowest outermost. It does nothing
	// when the stream does not capture.
	Carry func(stream any, id uint64, late bool, around func(stream any, g GraphLaunch) error)
	// SlowDriver has a *gpu.Device call f where CUDA's driver may wait until kernels have ended: before it loads
	// code, and before it makes a graph. It is for tests.
	SlowDriver func(device any, f func())
	// Explain has what Synchronize of a *gpu.Stream returns pass through f, also when it is
	// nil.
	Explain func(stream any, f func(error) error)
	// Synchronize waits for the work of a *gpu.Stream, without what Explain adds.
	Synchronize func(ctx context.Context, stream any) error
	// BeforeClose has f called once, before a *gpu.Stream closes and while it still
	// takes work, instead of the f given before under this id. A nil f cancels it.
	BeforeClose func(stream any, id uint64, f func())
	// Usable returns an error if a *gpu.Stream or its device is closed; or, unless buffer is nil
	// itself, if it cannot access the first n bytes of a *gpu.Buffer. op is what was tried. It
	// does not ask the driver; see Enter.
	Usable func(stream, buffer any, op string, n uint64) error
	// Keep has the memory of a *gpu.Buffer outlive the buffer's Close until letGo is
	// called, once. It reports whether the memory was still there.
	Keep func(buffer any) (letGo func() error, ok bool)
	// Freed reports whether the memory of a *gpu.Buffer was closed by its owner, though it may
	// be kept.
	Freed func(buffer any) bool
	// Renew replaces the memory of a *gpu.Buffer of Device.Alloc by new memory at the
	// same address, of undefined content. No work of this process may use it meanwhile;
	// other processes that map the old keep that. It fails as ErrUnsupported where the
	// device cannot.
	Renew func(buffer any) error
	// Remap is likewise for a *gpu.Buffer of Device.Import, and another file of the same
	// size. The file stays the caller's.
	Remap func(buffer any, file *os.File) error
	// WrapVouched returns a *gpu.Buffer for memory of a *gpu.Device that other code owns, as its
	// Wrap does, without asking the driver about it; or nil where memory is always looked up: on
	// emulated devices.
	WrapVouched func(device any, address, bytes uint64) any
	// Lossy returns the peer of an *ethernet.Transport whose host has acknowledged nothing for longest, while this
	// host sends again what it sent there, and since when. The time is zero if there is none.
	Lossy func(transport any) (peer int, since time.Time)
	// UseDevice has closing a *gpu.Device be an error that names the user, until end is
	// called. It fails if the device is closed.
	UseDevice func(device any, by string) (end func(), err error)
	// LaunchesOf returns the last launches on each stream of a *gpu.Device, in their order.
	// With query it asks the driver whether the streams are idle; else only what the
	// program has waited for is known to have ended.
	LaunchesOf func(device any, query bool) [][]Launch
	// GroupLaunches has a *gpu.Device tell the launches of one more group from the others.
	GroupLaunches func(device any) LaunchGroup
	// StillOf returns when last all work of a *gpu.Device stood still; zeros where that is not
	// known, as on GPUs.
	StillOf func(device any) Still
	// TraceLaunches has a *gpu.Device write the begin and end of each launch to the ring
	// whose TraceHeader is at an address that kernels reach, until stop is called. Graphs that
	// were captured until then do so for ever. ok is false if the device does so already.
	TraceLaunches func(device any, ring uint64) (sites func() []LaunchSite, stop func(), ok bool)
	// ClockOf compares the clock of a *gpu.Device with the host's.
	ClockOf func(device any) (Clock, error)
	// TraceRegistry has the connections of a *registeredmem.Registry and the semaphores on
	// them add what they do to a trace; they must be made after it. TraceOf returns that
	// trace, or nil.
	TraceRegistry func(registry any, t *Trace)
	TraceOf       func(registry any) *Trace
	// TraceProxy has a *proxyservice.Proxy that is not started yet add what it does to a trace.
	TraceProxy func(proxy any, t *Trace)
	// ExplainProxy has Err, and the error of it that Stop and Close return, of a
	// *proxyservice.ProxyService pass through f. The service is not started yet.
	ExplainProxy func(service any, f func(error) error)
	// NameChannels has the errors of a *proxyservice.ProxyService name a channel as f does the number of its
	// semaphore's Watch. Without it, or where that is 0, they have the channel's number in the service.
	NameChannels func(service any, f func(number uint32) string)
	// ExplainConnection has what the methods of a *connection.Connection return of a failure of
	// its transport pass through f. The connection is not used yet.
	ExplainConnection func(conn any, f func(error) error)
	// Explained returns an error as the methods of a *connection.Connection return one of its transport.
	Explained func(conn any, err error) error
	// ProxyStill returns how often a *proxyservice.ProxyService has found nothing to do, or
	// ProxyEnded, a number that changes with each trigger that it takes, and whether nothing is
	// in its backlogs. It reads taken first and done last, so that of two calls with one taken,
	// and rounds two further at the second, the second tells whether all that it took is done.
	ProxyStill func(proxy any) (rounds, taken uint64, done bool)
	// InProxy reports whether the calling thread is that of a *proxyservice.ProxyService, which
	// calls its handler.
	InProxy func(proxy any) bool
	// RoomIn returns room in a *proxyservice.ProxyService, none at first.
	RoomIn func(service any) Room
	// ServiceClosed reports whether a *proxyservice.ProxyService was closed.
	ServiceClosed func(service any) bool
	// ServiceDevice returns the *gpu.Device of a *proxyservice.ProxyService.
	ServiceDevice func(service any) any
	// RunnersGroup returns the devicecode.Group of a *communicator.Communicator that all runners of package
	// collective share: like its HostGroup, with windows that no kernel of the user's reaches. They have no
	// scratch where there are several hosts.
	RunnersGroup func(ctx context.Context, comm any) (group any, err error)
	// ThreadsOf returns the *proxyservice.Threads of the options of a *communicator.Communicator, or nil.
	ThreadsOf func(comm any) any
	// Traced reports whether a *communicator.Communicator records a timeline.
	Traced func(comm any) bool
	// UntilFailure returns a context that ends when the group of a *communicator.Communicator
	// fails, with its error as the cause.
	UntilFailure func(ctx context.Context, comm any) (context.Context, context.CancelFunc)
	// Shared reports whether several ranks of one process share a GPU, in the group of a
	// *communicator.Communicator, and Beside whether such ranks share this rank's.
	Shared, Beside func(comm any) bool
	// Together notes that this rank has come to its last call of a *communicator.Communicator, or, with done, that
	// it is ready to queue it. With wait it waits until the ranks beside it are as far, for a second at most.
	Together func(comm any, done, wait bool)
	// Patient returns a context for what waits for ranks of a *communicator.Communicator: it ends with its
	// options' timeout, which begins anew while a rank compiles.
	Patient func(ctx context.Context, comm any) (context.Context, context.CancelFunc)
	// Operation returns a context with which the collective calls of a *communicator.Communicator are steps of one
	// call of that name. If ctx is one already, it is returned.
	Operation func(ctx context.Context, comm any, name string) context.Context
	// OwnError returns an error that names a rank by its number in the group of a *communicator.Communicator, so that
	// other groups of the rank know that, as of the errors of its collective calls.
	OwnError func(comm any, err error) error
	// GateOf returns the gate of a *gpu.Buffer's memory, one for all its views.
	GateOf func(buffer any) *Gate
	// RangeOf returns a *registeredmem.Memory to threads in C, the same each
	// time, or nil where it was closed.
	RangeOf func(memory any) *Range
	// JoinRegistry has a *registeredmem.Registry call wait before it unmaps or
	// withdraws a memory, until leave is called. ctx ends with the registry's
	// timeout.
	JoinRegistry func(registry any, wait func(ctx context.Context) error) (leave func())
	// FailedOf returns the flag of a *registeredmem.Registry that is to be set when its group has
	// failed, before kernels are told: proxies then drop what triggers ask of the registry's connections.
	FailedOf func(registry any) *Flag
	// WhenShort has tell called when a *registeredmem.Registry has had no descriptor, or no
	// memory, for a peer that asks for a memory, for the time after. It may not close the
	// registry.
	WhenShort func(registry any, after time.Duration, tell func(error))
	// PathOf returns a *connection.Connection to threads in C, the same each time.
	// Closing the connection closes the queue, before it waits for what is queued.
	PathOf func(conn any) *Path
	// PathError returns the error of an operation on a *connection.Connection's
	// path that failed in C: that of the method which does the same.
	PathError func(conn any, f Failure) error
	// KeptBy returns the one value that a *communicator.Communicator keeps for package
	// collective, which create makes at the first call. Closing the communicator
	// closes it, and Reform hands it on.
	KeptBy func(comm any, create func() Kept) Kept
	// Agree is a step of a collective call of a *collective.Runner: it fails on all ranks where one's part is
	// wrong, there with that error and as ErrRemote on the others, and where their texts differ.
	Agree func(ctx context.Context, runner any, step, text string, wrong error) error
	// TakeDevice makes the device of a *communicator.Communicator that Join returned the
	// caller's, to be closed after the communicator.
	TakeDevice func(comm any)
	// Leave does the part of a *communicator.Communicator's Close that waits for the other ranks
	// and ends the waits of kernels, and has what KeptBy keeps leave. Nothing is freed before Close.
	Leave func(comm any) error
	// ParamsOf returns the places of the parameters of a *gpu.Kernel in the bytes that
	// LaunchPacked takes.
	ParamsOf func(kernel any) []Param
	// SignatureOf returns what the parameters of a *gpu.Kernel are in its source, as many as
	// there are. They are zero where the image does not tell.
	SignatureOf func(kernel any) []signature.Param
	// LaunchPacked is the Launch of a *gpu.Kernel on a *gpu.Stream with a *gpu.LaunchConfig,
	// for arguments that lie in place already. It does not keep them.
	LaunchPacked func(kernel, stream, config any, args []byte) error
	// InstanceOf returns a number that no other *registeredmem.Registry has.
	InstanceOf func(registry any) uint64
	// OwnerOf returns that of the registry in which its rank has registered a *registeredmem.Memory.
	OwnerOf func(memory any) uint64
	// RingOf returns the state of a *fifo.Ring to the thread in C that polls it.
	RingOf func(ring any) *Ring
	// ServeRing has closing a *fifo.Ring and its device be an error that names the
	// server, until end is called. It fails if either is closed.
	ServeRing func(ring any, by string) (end func(), err error)
	// CountOf returns what threads in C need to signal a *semaphore.Host2Device.
	CountOf func(semaphore any) SemaphoreInfo
)

// Kept is what a communicator keeps for package collective.
type Kept interface {
	// Closer closes the runners that are open, once all ranks have left the group.
	io.Closer
	// Leave ends what streams that close ask of it.
	Leave() error
	// Retire ends its part in the group, once all work of that has ended on this rank.
	Retire() error
	// Follow makes it that of the *communicator.Communicator which Reform has made.
	Follow(comm any)
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

// Param is the place of a parameter of a kernel, in bytes.
type Param struct{ Offset, Size uint32 }

// Launch is a launch of a kernel or of a graph.
type Launch struct {
	Number      uint64    // among the stream's launches, from 1
	Name        string    // of the kernel, or what graph it is
	Group       uint64    // LaunchGroup.Number, or 0 if that is not known
	Nth         uint64    // launch of that name in the group on the device, from 1
	Grid, Block [3]uint32 // of a graph those of its kernels, and 0 if they differ
	Hash        uint32    // of the arguments
	Ended       bool      // as far as is known
}

// LaunchGroup is a group of ranks to a device, which tells its launches by its memory.
type LaunchGroup interface {
	// Number is that of the group on the device, from 1.
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

// ProxyEnded stands for the rounds of a proxy that was closed.
const ProxyEnded = 1<<64 - 1

// Still is a moment at which no work of a device could go on by itself: its streams were
// idle, or waited for each other or for kernels, each thread of which waited in a wait of the
// library, or for other threads of its block. Of two such moments with one Epoch, all of it
// stood still in between.
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

// SemaphoreInfo is a semaphore as threads in C see it.
type SemaphoreInfo struct {
	Sent   *Count // claimed while the value after it is stored
	Peer   *Range // the peer's memory, or nil where it was closed
	Offset uint64 // in Peer, of the word that counts the host's signals

	Channel, Rank uint32 // the channel's number and the peer, as its Watch has them
}

// Room is what a proxy service keeps for channels until their peers are known to have made their ends: a service keeps
// what it has served. One goroutine at a time uses it.
type Room interface {
	// Semaphore keeps room for one more semaphore, whose connection is new too, or returns the error of AddSemaphore.
	Semaphore() error
	// Memories keeps room for each memory of a []*registeredmem.Memory that the service does not have and that is not nil,
	// and for so many more, or returns the error of AddMemory.
	Memories(memories any, more int) error
	// Add adds a semaphore and memories in that room.
	Add(semaphore, memories any) error
	// Leave gives up what is left of the room.
	Leave()
}
