package inside

import (
	"context"
	"io"
)

// Communicator is the inside of a *communicator.Communicator C. G is devicecode.Group, and T *proxyservice.Threads.
type Communicator[C, G, T any] interface {
	// Keep returns the one value that the communicator keeps for package collective, which
	// create makes at the first call. Closing the communicator closes it, and Reform hands it on.
	Keep(create func() Kept[C]) Kept[C]
	// RunnersGroup returns the group that all runners of package collective share: like
	// HostGroup, with windows that no kernel of the user's reaches. They have no scratch where there
	// are several hosts.
	RunnersGroup(ctx context.Context) (G, error)
	// Threads returns Options.Threads.
	Threads() T
	// Traced reports whether the communicator records a timeline.
	Traced() bool
	// UntilFailure returns a context that ends when the group fails, with its error as the cause.
	UntilFailure(ctx context.Context) (context.Context, context.CancelFunc)
	// Patient returns a context for what waits for ranks: it ends with Options.Timeout, which
	// begins anew while a rank compiles.
	Patient(ctx context.Context) (context.Context, context.CancelFunc)
	// Operation returns a context with which collective calls of the communicator are steps of
	// one call of that name. If ctx is one already, it is returned.
	Operation(ctx context.Context, name string) context.Context
	// OwnError marks an error as one whose ranks have this group's numbers. Other groups of this
	// rank then know so, as they know of errors of its collective calls.
	OwnError(err error) error
	// Sharers returns the number of ranks that use this rank's device, this one included.
	Sharers() int
	// Shared reports whether several ranks of one process share a GPU, in the group, and Beside
	// whether such ranks share this rank's.
	Shared() bool
	Beside() bool
	// Together notes that this rank has come to its last call, or, with done, that it is ready to
	// queue it. With wait it waits until the ranks beside it are as far, for a second at most.
	Together(done, wait bool)
	// TakeDevice makes the device that Join opened the caller's, to be closed after the communicator.
	TakeDevice()
	// Leave does the part of Close that waits for the other ranks and ends the waits of
	// kernels, and has what Keep keeps leave. Nothing is freed before Close.
	Leave() error
}

// Kept is what a communicator, a C, keeps for package collective.
type Kept[C any] interface {
	// Closer closes the runners that are open, once all ranks have left the group.
	io.Closer
	// Leave ends what streams that close ask of it.
	Leave() error
	// Retire ends its part in the group, once all work of that has ended on this rank.
	Retire() error
	// Follow makes it the communicator's which Reform has made.
	Follow(comm C)
}

// Runner is the inside of a *collective.Runner. C is collective.Call.
type Runner[C any] interface {
	// Agree is a step of a collective call: it fails on all ranks where one's part is wrong,
	// there with that error and as ErrRemote on the others, and where their texts differ.
	Agree(ctx context.Context, step, text string, wrong error) error
	// Compile compiles what some calls need and is not loaded, as many kernels at a time as there are processors, so
	// that Prepare finds it in the cache. It only saves time. It ends when the group fails.
	//
	// Errors: of an algorithm that is not the collective's, or a type that it does not
	// reduce, as for devicecode.Compile, and the group's.
	Compile(ctx context.Context, calls []C) error
	// Fits returns why a call's algorithm cannot be used by these ranks at this size, or
	// nil. Kernels reach the memory of one host's ranks only. Packets, where there
	// are any, have to fit into the scratch (see the Inboxes of collective.cuh). Packets of 128 bytes are
	// for ranks that NVLink connects, and for emulated devices.
	Fits(c C) error
}

// Kind is the inside of a collective.Kind. P is topology.Path.
type Kind[P any] interface {
	// ByModel returns the algorithms that the model of time chooses for a collective of so many bytes, as
	// Kind.Parts counts them, among the ranks of a fabric. The first that can be done counts. It has the
	// least predicted time or less than a tenth more, and the algorithms behind it are for larger sizes.
	ByModel(f Fabric[P], bytes uint64) []string
	// ByHost reports whether an algorithm moves data through the host, which takes
	// channels for each pair of buffers.
	ByHost(algorithm string) bool
	// InOffset returns where a rank's input starts in its buffer, in parts: 0 but in
	// place, where both are in the output's buffer.
	InOffset(rank int, inPlace bool) int
	// OutOffset returns where a rank's output starts in its buffer, in parts: 0 but in
	// place.
	OutOffset(rank int, inPlace bool) int
	// InPlace reports whether the output may hold the input; see InOffset.
	InPlace() bool
	// Sources returns what out part `part` of a rank is made of: in part `theirs` of
	// the ranks `from`, reduced if they are several. from is empty if the part is not
	// written.
	Sources(rank, part, ranks, root int) (from []int, theirs int)
}
