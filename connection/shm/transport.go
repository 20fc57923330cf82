package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Defaults and limits of [Options].
const (
	DefaultRing = defaultRing // 4 MiB
	MinRing     = minRing     // 64 KiB
	MaxRing     = maxRing     // 1 GiB
)

// Options configure a [Transport].
type Options struct {
	// Secret is known to members of the group only, and the same on all ranks.
	Secret [32]byte
	// Ring is how many bytes of data are under way at most from a peer to this rank, a
	// multiple of 4096 from MinRing to MaxRing. 0 means DefaultRing. The ring has as much
	// pinned memory and 68 KiB more, once for both ranks, for each connection that a peer
	// makes to this rank.
	Ring uint64
	// Timeout is how long a peer may do nothing with what it was sent before the
	// connection fails. 0 means the registry's.
	Timeout time.Duration
	// Lost is called, in a goroutine of its own, when the process at the other end of a
	// connection dies, what it sends makes no sense, or it refuses what it was sent, as it has
	// closed the buffer, and not when either end closes the connection. It may be called for each direction. nil ignores it: the next call on the
	// connection returns the error.
	Lost func(peer int, err error)

	// Logger gets a record of each refused stranger, and of what is refused of peers; nil
	// discards.
	Logger *slog.Logger
}

// Transport is one rank's end of all its connections through shared memory, and a
// [registeredmem.Registrar].
type Transport struct {
	rank   message.Rank
	opts   Options
	key    fdpass.Key
	log    *slog.Logger
	server *fdpass.Server

	ctx     context.Context // ends when Close begins
	cancel  context.CancelFunc
	watched sync.WaitGroup

	closeOnce sync.Once
	closeErr  error

	mu        sync.Mutex
	closed    bool
	endpoints map[[idSize]byte]*Endpoint
	conns     map[*conn]struct{}
	receivers map[*receiver]struct{}
}

// idSize is the size of the random numbers of transports and endpoints, in bytes.
const idSize = message.IDSize

// New listens for peers and attaches the transport to reg, in which nothing may be
// registered yet. The caller closes it after its connections and the registry.
//
// Errors: ErrInvalid for options out of range; those of [registeredmem.Registry.Attach];
// ErrSystem when there can be no socket.
func New(reg *registeredmem.Registry, o Options) (*Transport, error) {
	const op = "shm: new transport"
	if reg == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the registry is nil")
	}
	t := &Transport{
		rank:      message.Rank{Name: "shm", Registry: reg, Host: (*gpu.Buffer).HostBytes},
		key:       fdpass.Key{Group: reg.Group(), Secret: o.Secret},
		endpoints: map[[idSize]byte]*Endpoint{}, conns: map[*conn]struct{}{}, receivers: map[*receiver]struct{}{},
	}
	switch {
	case o.Ring != 0 && (o.Ring < MinRing || o.Ring > MaxRing || o.Ring%4096 != 0):
		return nil, t.rank.Invalid(op, "Options.Ring is %d; it must be a multiple of 4096 from %d to %d", o.Ring, MinRing, MaxRing)
	case o.Timeout < 0:
		return nil, t.rank.Invalid(op, "Options.Timeout is %v", o.Timeout)
	}
	if o.Ring == 0 {
		o.Ring = DefaultRing
	}
	if o.Timeout == 0 {
		o.Timeout = reg.Timeout()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	t.rank.Init(registeredmem.SHM, o.Timeout, o.Lost)
	t.opts, t.log = o, o.Logger.With("rank", reg.Rank())
	rand.Read(t.rank.Instance[:])
	t.ctx, t.cancel = context.WithCancel(context.Background())
	var err error
	if t.server, err = fdpass.Listen(t.key, o.Timeout, t.log, t.serve); err != nil {
		t.cancel()
		return nil, t.rank.Wrap(mscclgo.ErrSystem, op, mscclgo.NoRank, err)
	}
	if err := reg.Attach(t); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.watched.Go(t.watch)
	return t, nil
}

const (
	watchShare = 32                     // the part of Options.Timeout after which a transport looks for peers that are stuck
	mostWatch  = 100 * time.Millisecond // at most
)

// watch fails the connections whose peers are stuck.
func (t *Transport) watch() {
	tick := time.NewTicker(min(max(t.opts.Timeout/watchShare, time.Millisecond), mostWatch))
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case now := <-tick.C:
			conns, _ := t.all()
			for _, c := range conns {
				c.watch(now)
			}
		}
	}
}

// all returns what sends and what receives.
func (t *Transport) all() (conns []*conn, receivers []*receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		conns = append(conns, c)
	}
	for r := range t.receivers {
		receivers = append(receivers, r)
	}
	return conns, receivers
}

// Close stops listening and ends the connections that are left, without waiting for
// what they have queued. It may be called again, also meanwhile: every call returns
// once that is done, with the same error.
func (t *Transport) Close() error {
	t.closeOnce.Do(func() { t.closeErr = t.close() })
	return t.closeErr
}

func (t *Transport) close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	errs := []error{t.server.Close()}
	t.watched.Wait()
	conns, receivers := t.all()
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	for _, r := range receivers {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}

// String names the transport for messages.
func (t *Transport) String() string {
	return fmt.Sprintf("shared memory by way of %s", t.server.Name())
}

// Transport returns SHM.
func (t *Transport) Transport() registeredmem.Transports { return registeredmem.SHM }

// Offer lets peers write to m. Package registeredmem calls it.
func (t *Transport) Offer(m *registeredmem.Memory) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, t.rank.Invalid("shm: offer a memory", "the transport is closed")
	}
	t.rank.Targets.Offer(m)
	return t.rank.Instance[:], nil
}

// Withdraw refuses whatever peers send for m from now on, waits for copies into
// it that are under way, and has the peers told. None of that depends on the peers. Package
// registeredmem calls it.
func (t *Transport) Withdraw(m *registeredmem.Memory) error {
	one := t.rank.Targets.Remove(m.ID())
	if one == nil {
		return nil
	}
	_, receivers := t.all()
	for _, r := range receivers {
		r.tellGone(one.ID)
	}
	return one.Withdraw()
}
