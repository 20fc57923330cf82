package registeredmem

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// defaultTimeout is the value of Options.Timeout if that is 0.
const defaultTimeout = 30 * time.Second

// Options configure a [Registry].
type Options struct {
	Rank    int           // this rank's number
	Group   [16]byte      // the group's number, which is no secret
	Secret  [32]byte      // known to members of the group only
	Device  *gpu.Device   // this rank's device, which stays the caller's
	Logger  *slog.Logger  // for refused connections; nil discards
	Timeout time.Duration // bounds waiting for a peer; 0 means 30 s
	// Unmapped keeps memory from being mapped, so that it is reached over registrars.
	Unmapped bool
	// Host is the identity of this rank's host: only ranks whose hosts have the same one map each
	// other's memory. "" means the identity in the variable MSCCLGO_HOST_ID, or else the kernel's.
	Host string
	// Failed is closed when the group has failed. Closing a connection or a memory then abandons
	// what is queued to peers whose memory is not mapped, and does not wait for it. nil means
	// that the group does not fail.
	Failed <-chan struct{}
}

// Registry holds one rank's memories: its own, which peers may import, and the
// peers' that it has imported.
type Registry struct {
	options  Options
	instance uint64       // random: differs from an earlier registry's of the rank
	failed   *native.Flag // see Failed of inside.Registry
	server   *fdpass.Server

	ctx               context.Context // ends when Close begins
	cancel            context.CancelFunc
	imports           sync.WaitGroup // calls of Import under way
	retiring, closing sync.Once

	mu          sync.Mutex
	closed      bool
	registrars  []Registrar // no more are added once a memory is registered
	nextID      uint32
	local       map[uint32]*Memory
	imported    map[*Memory]struct{}
	allocations allocations
	transfers   map[*func(context.Context) error]struct{} // wait until what connections have queued is done

	mappings mappings
	process  *inside.Process[*Registry]   // or nil
	trace    atomic.Pointer[native.Trace] // of what connections do, or nil
}

// NewRegistry returns an empty registry and starts the server that peers on this
// host import from.
//
// Errors: ErrInvalid for Options without a device, with a negative rank or
// timeout, or with a host of more than 255 bytes, ErrSystem when the server's socket cannot be opened.
func NewRegistry(o Options) (*Registry, error) {
	const op = "registeredmem: new registry"
	switch {
	case o.Device == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Device is nil").At(o.Rank, mscclgo.NoRank)
	case o.Rank < 0 || o.Rank > math.MaxInt32:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Rank is %d", o.Rank)
	case o.Timeout < 0:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Timeout is %v", o.Timeout).At(o.Rank, mscclgo.NoRank)
	case len(o.Host) > hostid.MaxSize:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Host has %d bytes, at most %d are allowed", len(o.Host), hostid.MaxSize).At(o.Rank, mscclgo.NoRank)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if o.Host == "" {
		if o.Host, err = hostid.Get(); err != nil {
			return nil, wrap(err, op, o.Rank, mscclgo.NoRank)
		}
	}
	r := &Registry{
		options: o, instance: randomInstance(), failed: native.NewFlag(),
		local: map[uint32]*Memory{}, imported: map[*Memory]struct{}{}, transfers: map[*func(context.Context) error]struct{}{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.server, err = fdpass.Listen(r.key(), o.Timeout, o.Logger.With("rank", o.Rank), r.serve)
	if err != nil {
		r.cancel()
		return nil, wrap(err, op, o.Rank, mscclgo.NoRank)
	}
	return r, nil
}

// Rank returns this rank's number.
func (r *Registry) Rank() int { return r.options.Rank }

// Group returns the group's number.
func (r *Registry) Group() [16]byte { return r.options.Group }

// Device returns this rank's device.
func (r *Registry) Device() *gpu.Device { return r.options.Device }

// Host returns the identity of this rank's host. Ranks with equal hosts can map
// each other's memory.
func (r *Registry) Host() string { return r.options.Host }

// Timeout returns the bound on waiting for a peer.
func (r *Registry) Timeout() time.Duration { return r.options.Timeout }

// Failed returns Options.Failed.
func (r *Registry) Failed() <-chan struct{} { return r.options.Failed }

// Register lets the group reach buf, of this rank's device, until the memory or the
// registry is closed. The caller still owns the buffer, and closes it after that.
//
// If the buffer is a slice, calls reach that range only, but over [CudaIPC] the driver
// maps the whole allocation into the peer's process, whose kernels can read and write
// all of it. Keep what peers must not touch in allocations of its own: each
// [gpu.Device.Alloc] makes one. Where memory cannot be shared by descriptor, the driver
// may put allocations below 2 MiB together, and buffers of other code
// ([gpu.Device.Wrap]) often share an allocation.
//
// A range may be registered several times. The network cards pin it once then.
//
// Pinned host memory can be registered too. Peers cannot map it, and reach it only
// over a [Registrar].
//
// Errors: ErrInvalid for a buffer of another device, one that is closed and one of 0
// bytes; the errors of registrars.
func (r *Registry) Register(buf *gpu.Buffer) (*Memory, error) {
	const op = "registeredmem: register"
	if buf == nil {
		return nil, r.fault(op, "the buffer is nil")
	}
	if buf.Device() != r.options.Device {
		return nil, r.fault(op, "the buffer is of %v, the registry of %v%s", buf.Device(), r.options.Device, native.Twice(buf.Device(), r.options.Device))
	}
	if closed(buf) {
		return nil, r.fault(op, "the buffer or its device is closed")
	}
	if buf.Size() == 0 {
		return nil, r.fault(op, "the buffer has 0 bytes, of which peers can reach nothing")
	}
	transports := CudaIPC
	if buf.Bytes() != nil {
		transports = 0
	}
	m, err := r.number(op, buf, transports)
	if err != nil {
		return nil, err
	}
	// Without the lock, which others need: it takes long for gigabytes.
	err = r.offer(m)
	r.mu.Lock()
	late := err == nil && r.closed
	if err == nil && !late {
		r.local[m.about.id] = m
	} else {
		r.allocations.leave(m.allocation)
	}
	r.mu.Unlock()
	switch {
	case late:
		return nil, errors.Join(r.fault(op, "the registry was closed meanwhile"), m.withdraw(r.registrars))
	case err != nil:
		return nil, wrap(err, fmt.Sprintf("registeredmem: register %v", m), r.options.Rank, mscclgo.NoRank)
	}
	return m, nil
}

// number returns a new memory of this rank, with its number.
func (r *Registry) number(op string, buf *gpu.Buffer, transports Transports) (*Memory, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, r.fault(op, "the registry is closed")
	}
	if r.nextID == math.MaxUint32 {
		return nil, r.fault(op, "%d memories were registered before; make a new registry", r.nextID)
	}
	m := &Memory{reg: r, local: true, allocation: r.allocations.join(buf), about: description{
		group: r.options.Group, rank: uint32(r.options.Rank), instance: r.instance, id: r.nextID,
		transports: transports, size: buf.Size(), phase: uint32(buf.Ptr() % wordSize), host: r.options.Host, device: r.options.Device.Info().UUID, socket: r.server.Name(),
	}}
	m.buf.Store(buf)
	r.nextID++
	return m, nil
}

func (r registryInside) Retire() error {
	var errs []error
	r.retiring.Do(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		r.cancel()
		r.imports.Wait()
		r.process.Remove(r.instance)
		errs = append(errs, r.server.Close())
		r.mu.Lock()
		all := slices.Collect(maps.Values(r.local))
		r.mu.Unlock()
		for _, m := range all {
			errs = append(errs, m.Close())
		}
	})
	return errors.Join(errs...)
}

// Close stops the server, unmaps all imported memory and unregisters this rank's.
// Kernels that use imported memory must have ended. Calls of Import that are under
// way return ErrAborted. It is safe to call twice, and does nothing on nil.
func (r *Registry) Close() error {
	if r == nil {
		return nil
	}
	errs := []error{r.Internal().Retire()}
	r.closing.Do(func() {
		r.mu.Lock()
		all := slices.Collect(maps.Keys(r.imported))
		r.mu.Unlock()
		for _, m := range all {
			errs = append(errs, m.Close())
		}
	})
	return errors.Join(errs...)
}

// begin counts a call of Import, and reports whether the registry is open.
func (r *Registry) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.imports.Add(1)
	return true
}

func (r *Registry) key() fdpass.Key {
	return fdpass.Key{Group: r.options.Group, Secret: r.options.Secret}
}

// fault returns an ErrInvalid error of this rank.
func (r *Registry) fault(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(r.options.Rank, mscclgo.NoRank)
}

func randomInstance() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// closed reports whether buf or its device is closed.
func closed(buf *gpu.Buffer) bool {
	_, err := buf.Slice(0, 0)
	return err != nil
}

// wrap returns err, of a layer below, with the operation and the ranks. It keeps
// the kind.
func wrap(err error, op string, rank, peer int) error {
	return mscclgo.Errorf(mscclgo.KindOf(err), op, "%w", err).At(rank, peer)
}
