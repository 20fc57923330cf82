package native

import (
	"context"
	"io"
)

// Functions with which packages of this module reach parts of each other's types
// that users do not see. Each is set once, by an init function of the package that
// declares the type.
var (
	// TraceProxy has a *proxyservice.Proxy that is not started yet add what it does to a trace.
	TraceProxy func(proxy any, t *Trace)
	// ExplainProxy has Err, and the error of it that Stop and Close return, of a
	// *proxyservice.ProxyService pass through f. The service is not started yet.
	ExplainProxy func(service any, f func(error) error)
	// NameChannels has the errors of a *proxyservice.ProxyService name a channel as f does the number of its
	// semaphore's Watch. Without it, or where that is 0, they have the channel's number in the service.
	NameChannels func(service any, f func(number uint32) string)
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

// ProxyEnded stands for the rounds of a proxy that was closed.
const ProxyEnded = 1<<64 - 1

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
