// Package communicator joins ranks into a group and gives one rank's view of
// it: its device, its bootstrap, the peers' memory as its kernels reach it,
// channels to all peers in one call, and the group's failure state.
//
// Calls marked collective are made by every rank of the group, in the same
// order and with arguments that fit; they are matched by that order. All others
// concern this rank alone. A Communicator may be used from many goroutines, but
// collective calls from one at a time.
package communicator

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Options are what a rank may choose; the zero value is right for most.
type Options struct {
	// Device names the device, as [gpu.Open] does. "auto" (the default), "cuda"
	// and "emu" give each rank of a machine one in turn. Only [Join] uses it.
	Device string
	// Timeout bounds every wait of kernels and the exchanges of collective
	// calls. 0 means 30 seconds.
	Timeout time.Duration
	// Scratch is the bytes of packet memory in each rank's window, the same on
	// all ranks; see [Communicator.Group]. 0 means 4 MiB.
	Scratch uint64
	// Transports are those that may be used, the same or others on each rank. 0
	// means all. Without CudaIPC no memory is mapped, not even of ranks on the same
	// host. The variable MSCCLGO_TRANSPORTS overrides it for [Join].
	Transports registeredmem.Transports
	// InfiniBand is for peers that are reached by RDMA, which is preferred where both
	// ranks have a device with an active port.
	InfiniBand ib.Options
	// Ethernet is for peers that are reached over TCP. The secret is filled in.
	Ethernet ethernet.Options
	// Logger gets what is worth knowing and no error of a call, such as
	// strangers on the ports. nil discards it.
	Logger *slog.Logger
}

// fill puts the defaults where nothing is said.
func (o *Options) fill() {
	if o.Device == "" {
		o.Device = "auto"
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Scratch == 0 {
		o.Scratch = defaultScratch
	}
	if o.Transports == 0 {
		o.Transports = registeredmem.CudaIPC | registeredmem.InfiniBand | registeredmem.Ethernet
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

const (
	defaultTimeout = 30 * time.Second
	defaultScratch = 4 << 20
	maxScratch     = 1 << 40
)

// Communicator is one rank's view of its group.
type Communicator struct {
	given    Bootstrap
	boot     fullBootstrap // given, with what it lacked
	endBoot  func()        // ends what was added
	dev      *gpu.Device
	options  Options
	registry *registeredmem.Registry
	failure  *failure
	shared   *arena // memory that peers write: semaphores
	private  *arena // memory of this rank's kernels alone: handles
	sharers  int    // ranks that share this rank's device, itself included
	hosts    [][]int
	links    []registeredmem.Transports // over what each peer is reached
	carriers []carrier
	matcher  *matcher

	mu       sync.Mutex
	group    *group // made by the first Group call
	local    *group // by the first HostGroup call
	calls    uint64 // collective calls so far
	channels uint32 // numbers given to channels so far
	owned    []func() error
	closed   bool
	closing  sync.Once
}

// Join joins the group that the environment describes, as torchrun, mpirun,
// srun, a Kubernetes indexed job or mscclgo run set it, with a device of this
// machine for each of its ranks. The variable MSCCLGO_DEVICE overrides
// Options.Device. Close releases everything. Collective.
//
// Errors: those of [bootstrap.FromEnv], [bootstrap.Connect], [gpu.Open] and
// [New].
func Join(ctx context.Context, o Options) (*Communicator, error) {
	env, err := bootstrap.FromEnv(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	o.fill()
	if kind := os.Getenv("MSCCLGO_DEVICE"); kind != "" {
		o.Device = kind
	}
	if o.Transports, err = registeredmem.TransportsFromEnv(o.Transports); err != nil {
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
	options.Logger = o.Logger
	boot, err := bootstrap.Connect(ctx, options)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	c, err := New(ctx, boot, dev, o)
	if err != nil {
		boot.Abort(err)
		return nil, errors.Join(err, boot.Close(), dev.Close())
	}
	c.owned = append(c.owned, dev.Close, boot.Close)
	return c, nil
}

// New returns the communicator of a rank, from a bootstrap that has joined the group
// and an open device. Both stay the caller's, to be closed after the communicator.
// Collective.
//
// Errors: ErrInvalid for options that cannot be, ErrSystem when memory is short,
// ErrUnsupported when no transport leads to a peer; on the other ranks ErrRemote, naming the rank that failed.
func New(ctx context.Context, boot Bootstrap, dev *gpu.Device, o Options) (*Communicator, error) {
	op := "communicator: make one"
	if boot == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bootstrap is nil")
	}
	if dev != nil {
		op += " for " + dev.String()
	}
	c := &Communicator{given: boot, dev: dev, options: o}
	var err error
	if c.boot, c.endBoot, err = c.completeBoot(ctx, op); err != nil {
		return nil, err
	}
	if err := c.explore(ctx, c.begin("make a communicator", op), c.build(op)); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// completeBoot is complete within the options' time-out.
func (c *Communicator) completeBoot(ctx context.Context, op string) (fullBootstrap, func(), error) {
	timeout := c.options.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return complete(ctx, c.given, op)
}

// build makes what concerns this rank alone. The options are filled in any case.
func (c *Communicator) build(op string) error {
	o := c.options
	c.options.fill()
	invalid := func(format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(c.Rank(), mscclgo.NoRank)
	}
	switch {
	case c.dev == nil:
		return invalid("the device is nil")
	case o.Timeout < 0:
		return invalid("the timeout %v is negative", o.Timeout)
	case o.Scratch > maxScratch:
		return invalid("a scratch of %d bytes is more than %d", o.Scratch, uint64(maxScratch))
	}
	var err error
	if c.failure, err = newFailure(c.boot, c.dev); err != nil {
		return err
	}
	if c.registry, err = registeredmem.NewRegistry(registeredmem.Options{
		Rank: c.Rank(), Group: c.boot.Group(), Secret: c.boot.Key("registered memory"), Device: c.dev,
		Logger: c.options.Logger, Timeout: c.options.Timeout, Unmapped: !c.options.Transports.Has(registeredmem.CudaIPC),
	}); err != nil {
		return err
	}
	c.shared = &arena{dev: c.dev, registry: c.registry}
	c.private = &arena{dev: c.dev}
	return nil
}

// Rank gives this rank's number, from 0.
func (c *Communicator) Rank() int { return c.boot.Rank() }

// Size gives the number of ranks in the group.
func (c *Communicator) Size() int { return c.boot.Size() }

// everyone gives all ranks.
func (c *Communicator) everyone() []int {
	all := make([]int, c.Size())
	for rank := range all {
		all[rank] = rank
	}
	return all
}

// Device gives this rank's device.
func (c *Communicator) Device() *gpu.Device { return c.dev }

// Bootstrap returns the group's bootstrap: that of [New], or after [Join] a
// [*bootstrap.Bootstrap]. Tags of its messages are below 1<<63.
func (c *Communicator) Bootstrap() Bootstrap { return c.given }

// Registry gives this rank's table of memories.
func (c *Communicator) Registry() *registeredmem.Registry { return c.registry }

// Barrier waits until all ranks have called it. It says nothing of what streams
// have done. Options.Timeout bounds it beside ctx. Collective.
func (c *Communicator) Barrier(ctx context.Context) error {
	const op = "communicator: barrier"
	if err := c.usable(op); err != nil {
		return err
	}
	return c.begin("barrier", op).agree(ctx, nil)
}

// Close leaves the group and releases the communicator's memory and what it
// mapped of the peers'; waits of kernels that still run end as aborted, but
// queued kernels that follow must not use the communicator. What its
// methods gave must not be used any more; a [Communicator.Connect]ion and
// [MemoryChannels] may still be closed. It waits a while for the other ranks to
// close too, since their kernels may still use this rank's memory. It is safe to
// call twice.
func (c *Communicator) Close() error {
	var err error
	c.closing.Do(func() { err = c.close() })
	return err
}

func (c *Communicator) close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.matcher.refuse()
	if c.failure.err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), min(c.options.Timeout, closePatience))
		if err := c.begin(closing, "communicator: close").agree(ctx, nil); err != nil {
			c.options.Logger.Info("closed before all ranks did", "rank", c.Rank(), "error", err)
		}
		cancel()
	}
	c.failure.abort()
	time.Sleep(abortGrace)
	return c.release()
}

// release gives everything back, in reverse order, as far as it was made.
func (c *Communicator) release() error {
	var errs []error
	for _, g := range []*group{c.local, c.group} {
		if g != nil {
			errs = append(errs, g.close(c))
		}
	}
	if c.matcher != nil {
		errs = append(errs, c.matcher.close())
	}
	if c.shared != nil {
		errs = append(errs, c.private.close(), c.shared.close())
	}
	if c.registry != nil {
		errs = append(errs, c.registry.Close(), c.closeCarriers())
	}
	if c.failure != nil {
		errs = append(errs, c.failure.close())
	}
	c.endBoot()
	for i := len(c.owned) - 1; i >= 0; i-- {
		errs = append(errs, c.owned[i]())
	}
	return errors.Join(errs...)
}

const (
	// closePatience bounds the wait of Close for the other ranks.
	closePatience = 5 * time.Second
	// abortGrace is what waits of kernels get to end as aborted before their
	// memory goes: many times what lies between two looks at the abort word.
	abortGrace = 20 * time.Millisecond
)

// usable gives the error of a call on a closed communicator or a failed group.
func (c *Communicator) usable(op string) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the communicator is closed").At(c.Rank(), mscclgo.NoRank)
	}
	return c.failure.err()
}

// watch gives what bounds the waits of a handle.
func (c *Communicator) watch(peer int, channel uint32) devicecode.Watch {
	return devicecode.Watch{
		Status:  c.failure.status.Ptr(),
		Timeout: uint64(c.options.Timeout.Nanoseconds()),
		Peer:    uint32(peer),
		Channel: channel,
	}
}
