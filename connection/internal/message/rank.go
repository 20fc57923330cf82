// Package message is what two transports have in common whose operations are messages to the peer's
// transport: what a rank has for all connections ([Rank]), the [Frame], the [Queue] with its marks, what
// a frame does to memory ([Applier]), and how a connection ends ([End]). A transport is the [Carrier] of
// a queue, and a [Half] that is told of the end.
package message

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/spin"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// IDSize is the size of the random numbers of transports and endpoints, in bytes.
const IDSize = 16

// Rank is what a rank's connections over a transport share.
type Rank struct {
	Name     string // of the transport, for errors
	Registry *registeredmem.Registry
	Instance [IDSize]byte             // of the transport
	Host     func(*gpu.Buffer) []byte // the memory, or nil if the host does not reach it
	Spin     spin.Spinner
	Targets  *target.Table
	Timeout  time.Duration // how long a peer may be silent
	Parting  time.Duration // the constant, but in tests
	Log      *slog.Logger
	Ctx      context.Context // ends when Close begins

	Mu     sync.Mutex
	Closed bool // guarded by Mu

	Failed atomic.Pointer[time.Time] // when this rank knew that the group has failed, or nil

	kind     registeredmem.Transports
	lost     func(peer int, err error)
	ends     map[*End]struct{} // of connections that are open; guarded by Mu
	cancel   context.CancelFunc
	watching sync.WaitGroup
	once     sync.Once
	closeErr error
}

// Parting is how long a peer may take to read why a connection ends.
const Parting = time.Second

// Options are what the options of all transports have in common.
type Options struct {
	Timeout time.Duration             // how long a peer may be silent; 0 means the registry's
	Lost    func(peer int, err error) // or nil
	Logger  *slog.Logger              // or nil
}

// Init begins a transport of a registry's rank.
func (r *Rank) Init(reg *registeredmem.Registry, name string, kind registeredmem.Transports, o Options) error {
	r.Registry, r.Name, r.kind, r.lost = reg, name, kind, o.Lost
	if o.Timeout < 0 {
		return r.Invalid(name+": new transport", "Options.Timeout is %v", o.Timeout)
	}
	if r.Timeout = o.Timeout; r.Timeout == 0 {
		r.Timeout = reg.Timeout()
	}
	if r.Log = o.Logger; r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	r.Log = r.Log.With("rank", reg.Rank())
	r.Parting, r.Host, r.ends = Parting, (*gpu.Buffer).HostBytes, map[*End]struct{}{}
	rand.Read(r.Instance[:])
	r.Ctx, r.cancel = context.WithCancel(context.Background())
	r.Targets = new(target.Table)
	r.Spin.Allow()
	return nil
}

const (
	watchShare = 32                     // the part of Timeout after which a transport looks for peers that are silent
	mostWatch  = 250 * time.Millisecond // at most
)

// Watch has connections look for peers that are silent, and notes when the group fails, until Close.
func (r *Rank) Watch() {
	r.watching.Go(func() {
		tick := time.NewTicker(min(max(r.Timeout/watchShare, time.Millisecond), mostWatch))
		defer tick.Stop()
		failed := r.Registry.Failed()
		for {
			select {
			case <-r.Ctx.Done():
				return
			case <-failed:
				now := time.Now()
				r.Failed.Store(&now)
				failed = nil
			case now := <-tick.C:
				for _, h := range All[Half](r) {
					h.Watch(now)
				}
			}
		}
	})
}

// GroupFailed returns when this rank knew that the group has failed, or now.
func (r *Rank) GroupFailed() time.Time {
	if at := r.Failed.Load(); at != nil {
		return *at
	}
	return time.Now()
}

// All returns the connections that are open and of a type.
func All[H Half](r *Rank) (all []H) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for e := range r.ends {
		if h, ok := e.half.(H); ok {
			all = append(all, h)
		}
	}
	return all
}

// Close has stop end what listens, and closes the connections that are left. It does so once: every call returns
// once that is done, with the same error.
func (r *Rank) Close(stop func() error) error {
	r.once.Do(func() {
		r.Mu.Lock()
		r.Closed = true
		r.Mu.Unlock()
		r.cancel()
		errs := []error{stop()}
		r.watching.Wait()
		for _, h := range All[Half](r) {
			errs = append(errs, h.Close())
		}
		r.closeErr = errors.Join(errs...)
	})
	return r.closeErr
}

// Transport returns the one transport that this is. Offer, Withdraw and it are for package registeredmem.
func (r *Rank) Transport() registeredmem.Transports { return r.kind }

// Offer lets peers write to m and read it.
func (r *Rank) Offer(m *registeredmem.Memory) ([]byte, error) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if r.Closed {
		return nil, r.Invalid(r.Name+": offer a memory", "the transport is closed")
	}
	r.Targets.Offer(m)
	return r.Instance[:], nil
}

// Withdraw refuses whatever peers send for m from now on, but for what this rank has read into it, which is
// dropped. It waits for copies into it and out of it that are under
// way, and has the peers told. None of that depends on the peers.
func (r *Rank) Withdraw(m *registeredmem.Memory) error {
	one := r.Targets.Remove(m.ID())
	if one == nil {
		return nil
	}
	r.Mu.Lock()
	for e := range r.ends {
		if e.Receives {
			e.tellGone(one.ID)
		}
	}
	r.Mu.Unlock()
	return one.Withdraw()
}

// Invalid returns an ErrInvalid error of this rank.
func (r *Rank) Invalid(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(r.Registry.Rank(), mscclgo.NoRank)
}

// Wrap returns err with the operation and the ranks. It keeps err's kind; kind is for one that has none.
func (r *Rank) Wrap(kind mscclgo.Kind, op string, peer int, err error) error {
	var e *mscclgo.Error
	if errors.As(err, &e) {
		kind = e.Kind
	}
	return mscclgo.Errorf(kind, op, "%w", err).At(r.Registry.Rank(), peer)
}

// place returns the memory of this rank that bytes of the peer's come to. Memories of another transport of the
// rank have the same numbers.
func (r *Rank) place(m *registeredmem.Memory, offset, n uint64, word bool) (*target.Memory, error) {
	if !bytes.Equal(m.Key(r.kind), r.Instance[:]) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, r.Name+": find the place", "%v is of another transport of the rank than the connection", m)
	}
	at, err := r.Targets.Find(m.ID(), offset, n, word)
	if err != nil { // it was closed meanwhile
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, r.Name+": find the place", "%v is closed", m)
	}
	return at, nil
}
