// Package communicator joins ranks into a group. A [Communicator] is one rank's view
// of the group: its device, its bootstrap, the peers' memory as its kernels access
// it, channels to all peers in one call, and the group's failure state.
//
// Methods marked collective are called by every rank of the group, in the same
// order and with matching arguments. All others concern this rank only. A
// Communicator may be used by several goroutines at a time, but its collective
// methods by one at a time.
package communicator

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/connection/shm"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Options configure a communicator. The zero value is right for most uses.
type Options struct {
	// Device names the device, as for [gpu.Open]. With "auto" (the default), "cuda"
	// or "emu" the ranks of a machine take its devices in turn. Only [Join] uses it.
	Device string
	// Timeout bounds every wait in kernels and every exchange of collective calls. While a
	// rank of the group compiles it begins anew, for 10 minutes at most. 0 means 30 seconds.
	Timeout time.Duration
	// HeartbeatTimeout is for how long a rank may give no sign of life before the others
	// take it for stopped, and fail the group. Each rank's process gives one every 20
	// milliseconds, whatever its kernels and calls wait for; a debugger that holds the
	// process stops that too. 0 means 5 seconds, less than 0 for ever; at least 100
	// milliseconds. That a rank of this host has ended is known without it. [Join] uses the
	// variable MSCCLGO_HEARTBEAT_TIMEOUT instead if it is set: a duration such as 20s, or off.
	HeartbeatTimeout time.Duration
	// Scratch is the size of the packet memory in each rank's window in bytes, the
	// same on all ranks; see [Communicator.Group]. Group, HostGroup and the runners of package
	// collective together have one each, from their first use on. 0 means 48 MiB.
	Scratch uint64
	// PipePool is the size of the memory for pipes with PipeOptions.Shared in bytes, which each rank
	// has from its first such pipes on; it may differ among ranks. 0 means 64 MiB.
	PipePool uint64
	// Transports are the transports that may be used; they may differ among ranks. 0
	// means all. Without CudaIPC no memory is mapped, not even between ranks on the
	// same host. [Join] uses the variable MSCCLGO_TRANSPORTS instead if it is set.
	Transports registeredmem.Transports
	// Host is the identity of this rank's host: ranks with the same one may map each other's
	// memory, others need a network. Ranks of one machine with several are a group on several
	// hosts, to try a program there. "" means the value of the variable MSCCLGO_HOST_ID, or else
	// the kernel's identity.
	Host string
	// SHM configures the transport through shared memory of the host, for peers on this host
	// whose memory is not mapped. Its secret is set by the communicator. A Timeout of 0, here and for the
	// other networks, means a second more than the time-out of waits, so that waits end first.
	SHM shm.Options
	// InfiniBand configures the transport for peers on other hosts that is used where
	// both ranks have an RDMA device with an active port.
	InfiniBand ib.Options
	// Ethernet configures the transport over TCP, for all other peers. Its secret is
	// set by the communicator.
	Ethernet ethernet.Options
	// Threads are shared by the proxy services of this rank, and of the other ranks of the
	// process that have them: one thread for the devices of each NUMA node. nil means a
	// thread for each service; the services of one runner of package collective share a thread.
	// See [proxyservice.Threads].
	Threads *proxyservice.Threads
	// FindDeadlocks has the group fail as soon as nothing of it can go on, on emulated devices
	// of one host. Then every thread of every kernel of all ranks waits, in a wait of the library
	// or for other threads of its block; no stream or proxy has work; and every rank's host waits
	// for its device, or in an exchange that some rank has not begun. The error has what each
	// waits for. With this option the program promises that no other goroutine of such a rank, and
	// no other process, will end a wait by a signal, a launch or a store; and that a host does not
	// do so either after a context has ended its wait. See docs/RACES.md. All ranks set it, or
	// nothing is found. [Join], [Local] and [RunTogether] use the variable MSCCLGO_DEADLOCKS
	// instead if it is set: 0 or 1.
	FindDeadlocks bool
	// Trace is a file to which Close of rank 0 writes a timeline of all ranks, for
	// ui.perfetto.dev; if the group fails, each rank writes its own to this name with .rankN
	// behind it. All ranks or none have one. Kernels that were compiled with
	// [devicecode.Options].Trace tell of puts, signals and waits; the others only of their
	// launches. See docs/TIMELINE.md for what is recorded and what it costs. "" records
	// nothing. [Join], [Local] and [RunTogether] use the variable MSCCLGO_TRACE instead if it is
	// set.
	Trace string
	// TraceEvents is how many events of kernels each rank keeps for Trace, and how many of
	// its host, at 64 bytes: the newest, and the trace tells how many there were before. It
	// is rounded up to a power of two. 0 means 65536; from 16 to 1<<24. The variable
	// MSCCLGO_TRACE_EVENTS is used instead in the same places.
	TraceEvents int
	// Logger receives events that are not errors of a call, such as refused
	// connections. nil discards them. If the variable MSCCLGO_LOG is debug, info, warn or error,
	// events of that level and above are written to the standard error too.
	Logger *slog.Logger

	process *inside.Process[*registeredmem.Registry] // of the ranks of RunTogether, else nil
	branch  *branch                                  // of a group that was split from another, else nil
}

// fill sets the defaults.
func (o *Options) fill() {
	o.Device = cmp.Or(o.Device, "auto")
	o.Timeout = min(cmp.Or(max(o.Timeout, 0), defaultTimeout), mostTimeout)
	o.HeartbeatTimeout = cmp.Or(o.HeartbeatTimeout, defaultHeartbeat)
	o.Scratch = cmp.Or(o.Scratch, defaultScratch)
	o.PipePool = cmp.Or(o.PipePool, mostPipeBytes)
	o.Transports = cmp.Or(o.Transports, registeredmem.CudaIPC|registeredmem.SHM|registeredmem.InfiniBand|registeredmem.Ethernet)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

const (
	defaultTimeout = 30 * time.Second
	mostTimeout    = math.MaxInt64 / 2 // 146 years, so that what is added to it does not overflow
	defaultScratch = 48 << 20          // holds what rules of tunings send as packets, up to a broadcast of 16 MiB
	maxScratch     = 1 << 40

	defaultHeartbeat = 5 * time.Second
	minHeartbeat     = 100 * time.Millisecond
)

// Communicator is one rank's view of its group.
type Communicator struct {
	*lasting
	given    Bootstrap
	boot     fullBootstrap        // given, or over
	over     *bootstrap.Bootstrap // over the messages of one that is a program's own, or nil
	dev      *gpu.Device
	options  Options
	registry *registeredmem.Registry
	failure  *failure
	patience time.Duration      // lostPatience
	shared   *arena             // memory that peers write: semaphores
	pipes    *pipePool          // memory of shared pipes
	launches inside.LaunchGroup // by which the device knows this group's launches
	sharers  int                // ranks that use this rank's device, itself included
	beside   []int              // of these, the others of this process
	crowded  bool               // some rank of the group has such
	hosts    [][]int
	links    []registeredmem.Transports // the transport to each peer
	networks []network
	board    *watch.SharedBoard          // of this host's ranks
	calls    atomic.Pointer[watch.Calls] // that MatchCall compares; nil before there is a board
	tracer   *tracer                     // of the timeline, or nil

	reforming sync.Mutex                    // held by Reform and Close
	together  bool                          // the other ranks have left too; see leave
	retired   bool                          // Reform has ended the group's part, and no communicator has what lasts
	latest    *atomic.Pointer[Communicator] // the newest that Reform has made, from the first on; they share it

	mu         sync.Mutex
	retiring   bool                   // Reform is ending the group's part, or could not
	begun      uint64                 // collective calls so far
	channels   uint32                 // channels so far
	named      map[uint32]channelName // the channels that have a name, or are for other blocks than 0
	owned      []func() error
	leftOpen   []func() error // close what other ranks may use; see call.giveUp
	leftClosed bool           // these are closed, and what afterwards does has ended

	answering  context.Context // of what afterwards does, or nil
	endAnswers context.CancelFunc
	running    sync.WaitGroup

	openers map[int]*opener // by rank; see turnAway
	closed  bool
	left    bool // leave is done or under way
	closing sync.Once
	ended   atomic.Bool // Close or Reform has ended the waits in kernels
}

// Join joins the group that the environment describes, as set by torchrun, mpirun,
// srun, a Kubernetes indexed job or mscclgo run. It opens a device of this machine
// for the rank, which the variable MSCCLGO_DEVICE names, or else Options.Device.
// Close releases everything. The Logger of rank 0 hears who might join besides the
// ranks; see [bootstrap.Env.Warning]. Collective.
//
// Errors: as for [bootstrap.FromEnv], [bootstrap.Connect], [gpu.Open] and
// [New].
func Join(ctx context.Context, o Options) (*Communicator, error) {
	if os.Getenv(explore.Variable) != "" {
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, "communicator: join", "mscclgo explore has all ranks in one process; a program for it calls Run, Local or RunTogether, and not Join")
	}
	env, err := bootstrap.FromEnv(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	if err := logFromEnv(&o); err != nil {
		return nil, err
	}
	timeout := o.Timeout
	o.fill()
	o.Timeout = timeout // New checks it
	if env.Warning != "" && env.Options.Rank == 0 {
		o.Logger.Warn(env.Warning)
	}
	if kind := os.Getenv("MSCCLGO_DEVICE"); kind != "" {
		o.Device = kind
	}
	if o.Transports, err = registeredmem.TransportsFromEnv(o.Transports); err != nil {
		return nil, err
	}
	if err := cmp.Or(heartbeatFromEnv(&o), traceFromEnv(&o), deadlocksFromEnv(&o)); err != nil {
		return nil, err
	}
	name, err := gpu.Assign(o.Device, env.LocalRank)
	if err != nil {
		return nil, err
	}
	dev, err := gpu.Open(name)
	if err != nil {
		return nil, err
	}
	options := env.Options
	options.Logger, options.HeartbeatTimeout = o.Logger, o.HeartbeatTimeout
	boot, err := bootstrap.Connect(ctx, options)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	c, err := New(ctx, boot, dev, o)
	if err != nil {
		boot.Abort(err)
		return nil, errors.Join(err, boot.Close(), dev.Close())
	}
	c.ownsDevice, c.owned = true, append(c.owned, boot.Close)
	return c, nil
}

// heartbeatFromEnv sets what MSCCLGO_HEARTBEAT_TIMEOUT says.
func heartbeatFromEnv(o *Options) error {
	const name = "MSCCLGO_HEARTBEAT_TIMEOUT"
	text := os.Getenv(name)
	switch text {
	case "":
		return nil
	case "off":
		o.HeartbeatTimeout = -1
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minHeartbeat {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: join", "%s is %q, neither off nor a duration of at least %v such as 20s", name, text, minHeartbeat)
	}
	o.HeartbeatTimeout = d
	return nil
}

// New returns the communicator of a rank, from a bootstrap that has joined the group
// and an open device. Both stay the caller's, to be closed after the communicator.
// Collective.
//
// Errors: ErrInvalid for invalid options, ErrSystem when memory is short,
// ErrUnsupported when no transport reaches a peer; ErrRemote, naming the rank, when
// another rank failed.
func New(ctx context.Context, boot Bootstrap, dev *gpu.Device, o Options) (*Communicator, error) {
	return newCommunicator(ctx, boot, dev, o, nil)
}

// newCommunicator is New. from is what lasts of a communicator, or nil; after an error it stays the caller's.
func newCommunicator(ctx context.Context, boot Bootstrap, dev *gpu.Device, o Options, from *lasting) (*Communicator, error) {
	op := "communicator: make one"
	if boot == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bootstrap is nil")
	}
	if dev != nil {
		op += " for " + dev.String()
	}
	c := &Communicator{lasting: from, given: boot, dev: dev, options: o, patience: lostPatience, latest: new(atomic.Pointer[Communicator])}
	if from == nil {
		c.lasting = &lasting{private: &arena{dev: dev}, groups: map[uint32]*group{}}
	}
	c.latest.Store(c)
	var err error
	if c.boot, err = c.complete(ctx, op); err != nil {
		return nil, err
	}
	err = c.build(op)
	if err == nil {
		c.boot.Internal().AskDead(c.knowsDead(nil))
	}
	if err := c.explore(ctx, c.begin("make a communicator", op), err); err != nil {
		if c.over != nil && !errors.Is(err, mscclgo.ErrTimeout) { // whose time is up soon is told by the others' errors
			c.over.Internal().Blame(c.Rank(), err)
		}
		if from != nil {
			return nil, errors.Join(err, c.end(c.registry.Close), c.closeBootstrap())
		}
		return nil, errors.Join(err, c.release())
	}
	c.logFormed()
	return c, nil
}

// build makes what needs no peer. It fills in the options even if it fails.
func (c *Communicator) build(op string) error {
	o := c.options
	err := logFromEnv(&c.options)
	c.options.fill()
	switch {
	case err != nil:
		return err
	case c.dev == nil:
		return c.invalid(op, "the device is nil")
	case o.Timeout < 0:
		return c.invalid(op, "Options.Timeout is %v, not 0, which is the default, or more", o.Timeout)
	case o.HeartbeatTimeout > 0 && o.HeartbeatTimeout < minHeartbeat:
		return c.invalid(op, "Options.HeartbeatTimeout is %v, not %v or more, 0, which is the default, or negative for none", o.HeartbeatTimeout, minHeartbeat)
	case o.Scratch > maxScratch:
		return c.invalid(op, "a scratch of %d bytes is more than %d", o.Scratch, uint64(maxScratch))
	case o.PipePool > maxScratch:
		return c.invalid(op, "a pool of pipes of %d bytes is more than %d", o.PipePool, uint64(maxScratch))
	}
	if err = c.options.checkTrace(); err != nil {
		return c.invalid(op, "%v", err)
	}
	c.launches = c.dev.Internal().GroupLaunches() // which the failure's watcher reads
	if c.failure, err = newFailure(c); err != nil {
		return err
	}
	c.launches.Has(uint64(c.status.Ptr()), c.status.Size())
	if c.registry, err = registeredmem.NewRegistry(registeredmem.Options{
		Rank: c.Rank(), Group: c.boot.Group(), Secret: c.boot.Key("registered memory"), Device: c.dev,
		Logger: c.options.Logger, Timeout: c.options.Timeout, Unmapped: !c.options.Transports.Has(registeredmem.CudaIPC),
		Host: c.options.Host, Failed: c.boot.Done(),
	}); err != nil {
		return err
	}
	c.registry.Internal().JoinProcess(c.options.process)
	c.failure.stops(c.registry.Internal().Failed())
	c.registry.Internal().WhenShort(c.options.Timeout/shortShare, c.short)
	if c.options.Trace != "" {
		if c.tracer, err = newTracer(c); err != nil {
			return err
		}
	}
	c.shared, c.pipes = &arena{dev: c.dev, registry: c.registry}, &pipePool{c: c, load: c.registry.Import}
	c.private.groups(c.launches)
	return nil
}

// invalid returns the error of wrong arguments of this rank's.
func (c *Communicator) invalid(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(c.Rank(), mscclgo.NoRank)
}

// Rank returns this rank's number, from 0.
func (c *Communicator) Rank() int { return c.boot.Rank() }

// Size returns the number of ranks in the group.
func (c *Communicator) Size() int { return c.boot.Size() }

// everyone returns all ranks.
func (c *Communicator) everyone() []int {
	all := make([]int, c.Size())
	for rank := range all {
		all[rank] = rank
	}
	return all
}

// Device returns this rank's device.
func (c *Communicator) Device() *gpu.Device { return c.dev }

// Bootstrap returns the group's bootstrap: the one given to [New], or after [Join] a
// [*bootstrap.Bootstrap]. Tags of its messages are below 1<<63.
func (c *Communicator) Bootstrap() Bootstrap { return c.given }

// Registry returns this rank's registry of memory.
func (c *Communicator) Registry() *registeredmem.Registry { return c.registry }

// Barrier waits until all ranks have called it. It does not wait for streams.
// Options.Timeout bounds the wait as well as ctx. Collective.
func (c *Communicator) Barrier(ctx context.Context) error {
	const op = "communicator: barrier"
	if err := c.usable(op); err != nil {
		return err
	}
	return c.begin("barrier", op).agree(ctx, nil)
}

// Close leaves the group, frees the communicator's memory and unmaps the peers'.
// Waits in running kernels end as aborted; kernels queued behind them must not use
// the communicator. What the methods returned must not be used any longer, but
// connections, [MemoryChannels] and [Pipes] may still be closed. The runners of package
// collective that are open are closed with it. Close waits for the other
// ranks to close too, for at most 5 seconds, since their kernels may still use this
// rank's memory. It may be called twice, and does nothing on nil.
func (c *Communicator) Close() error {
	if c == nil {
		return nil
	}
	var err error
	c.closing.Do(func() { err = c.close() })
	return err
}

func (c *Communicator) close() error {
	c.reforming.Lock()
	defer c.reforming.Unlock()
	if c.leave() {
		time.Sleep(abortGrace)
		var err error
		if c.tracer != nil {
			err = c.tracer.finish(c.together)
		}
		return errors.Join(err, c.release())
	}
	if !c.retired {
		return nil
	}
	c.retired = false
	return errors.Join(c.closeKept(), c.lasting.close(), c.closeDevice())
}

// leave waits for the other ranks to leave too, and ends the waits of kernels. It reports false if
// the communicator was re-formed. The caller holds reforming.
func (c *Communicator) leave() bool {
	c.mu.Lock()
	again, reformed := c.left, c.closed && !c.retiring && !c.left
	c.closed, c.left = true, !reformed
	c.mu.Unlock()
	if again || reformed {
		return again
	}
	c.calls.Load().Refuse()
	c.together = c.part()
	c.ended.Store(true)
	c.failure.abort()
	return true
}

func (c communicatorInside) Leave() error {
	c.reforming.Lock()
	defer c.reforming.Unlock()
	if !c.leave() {
		return nil
	}
	c.mu.Lock()
	kept := c.kept
	c.mu.Unlock()
	if kept == nil {
		return nil
	}
	return kept.Leave()
}

// part waits until the other ranks of a group that works close too, and reports whether they
// do.
func (c *Communicator) part() bool {
	if c.failure.err() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(c.options.Timeout, closePatience))
	defer cancel()
	err := c.begin(closing, "communicator: close").agree(ctx, nil)
	if err != nil {
		c.options.Logger.Info("closed before all ranks did", "rank", c.Rank(), "error", err)
	}
	return err == nil
}

// release frees in reverse order whatever was made.
func (c *Communicator) release() error {
	return errors.Join(c.closeKept(), c.end(c.registry.Close), c.lasting.close(), c.closeBootstrap(), c.closeDevice())
}

// closeKept closes what package collective keeps.
func (c *Communicator) closeKept() error {
	c.mu.Lock()
	kept := c.kept
	c.mu.Unlock()
	if kept == nil {
		return nil
	}
	return kept.Close()
}

// end ends this rank's part in the group, and frees what does not last. The registry is closed or retired by a function.
func (c *Communicator) end(registry func() error) error {
	if c.launches != nil {
		c.launches.End()
	}
	errs := []error{c.leaveBoard(), c.closeLeft()}
	if c.shared != nil {
		errs = append(errs, c.shared.close(), c.pipes.close())
	}
	errs = append(errs, registry(), c.closeNetworks())
	if c.failure != nil {
		c.failure.close()
	}
	c.tracer.end()
	return errors.Join(errs...)
}

// closeDevice closes the device if Join opened it.
func (c *Communicator) closeDevice() error {
	if !c.ownsDevice {
		return nil
	}
	return c.dev.Close()
}

// closeBootstrap closes what was opened for the communicator, but the device.
func (c *Communicator) closeBootstrap() error {
	c.over.Close()
	var errs []error
	for i := len(c.owned) - 1; i >= 0; i-- {
		errs = append(errs, c.owned[i]())
	}
	c.owned = nil
	return errors.Join(errs...)
}

const (
	// closePatience bounds the wait of Close for the other ranks.
	closePatience = 5 * time.Second
	// abortGrace is how long waits in kernels have to end before their memory is
	// freed: many times the interval at which they poll the abort word.
	abortGrace = 20 * time.Millisecond
)

// closedText is the error of a call on a closed communicator.
const closedText = "the communicator is closed"

// usable returns the error of a call on a closed communicator or a failed group.
func (c *Communicator) usable(op string) error {
	if c.isClosed() {
		return c.invalid(op, closedText)
	}
	return c.failure.err()
}

// isClosed reports whether Close or Reform has begun.
func (c *Communicator) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// bounded returns a context for what waits for one peer: it ends with the options' timeout,
// and when the group fails, with its error as the cause, since that peer may be the one that failed.
func (c *Communicator) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	ctx, end := c.untilFailure(ctx)
	return ctx, func() {
		end()
		cancel()
	}
}

// untilFailure returns a context that ends when the group fails, with its error as the cause.
func (c *Communicator) untilFailure(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.boot.Done():
			cancel(&groupEnd{c.boot.Err(), c})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// groupEnd is the cause of contexts that the failure of a group has ended.
type groupEnd struct {
	error
	of *Communicator
}

func (e *groupEnd) Unwrap() error { return e.error }

// endedWithGroup reports whether err is of a call that only the failure of the group has ended. It tells
// no more than that, and may name the peer that this rank waited for.
func (c *Communicator) endedWithGroup(err error) bool {
	var end *groupEnd
	return errors.As(err, &end) && end.of == c
}

// watch returns what bounds the waits of a handle.
func (c *Communicator) watch(peer int, channel uint32) devicecode.Watch {
	return devicecode.Watch{
		Status:  c.status.Ptr(),
		Timeout: uint64(c.options.Timeout.Nanoseconds()),
		Peer:    uint32(peer),
		Channel: channel,
	}
}
