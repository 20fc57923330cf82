package ethernet

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Defaults and limits of [Options].
const (
	MaxSockets     = 16
	DefaultSockets = 1
	DefaultStaging = 8 << 20
	MinStaging     = 1 << 20
)

// Options configure a [Transport]. Secret and TLS must be the same on all ranks.
type Options struct {
	// Secret is known to members of the group only.
	Secret [32]byte
	// Interface is the name of the network interface, or a subnet in CIDR form, to
	// listen on; peers get its addresses. "" means the value of EnvInterface, then the
	// bootstrap's MSCCLGO_INTERFACE, then the fastest interface that is up and not a
	// container bridge. Each endpoint looks again, so that a link that comes up later
	// is found.
	Interface string
	// Fallback is an address of this machine at which peers reach the rank, such as
	// that of its bootstrap, where Interface is "" and no interface is found. Without
	// it that is the loopback interface, which only ranks of this host reach.
	Fallback netip.Addr
	// Sockets is the number of data sockets of the connections that this rank dials,
	// at most MaxSockets. 0 means DefaultSockets. Large writes are spread over them.
	Sockets int
	// Staging bounds the pinned memory of a connection in bytes, both ends together.
	// Each rank has half: a quarter to send from and a quarter to receive into. It is
	// at least MinStaging; 0 means DefaultStaging.
	Staging uint64
	// Timeout is how long a peer may acknowledge nothing before the connection fails.
	// 0 means the registry's.
	Timeout time.Duration
	// TLS encrypts everything with TLS 1.3.
	TLS bool
	// Lost is called, in a goroutine of its own, when the connection to a peer breaks, its bytes
	// make no sense, or it refuses what it was sent, as it has closed the buffer, and not when either
	// end closes the connection. It may be called for each connection. nil ignores it: the next call on the connection returns the error.
	Lost func(peer int, err error)
	// Dead reports whether a peer is known to have failed: closing a connection to it does not
	// wait until its host knows. nil means that no peer is.
	Dead func(peer int) bool

	// Logger gets a record of each refused stranger; nil discards.
	Logger *slog.Logger
}

// shortShare is the part of Options.Timeout after which a lack of descriptors ends the wait
// for a peer to dial.
const shortShare = 4

// Transport is one rank's end of all its connections over TCP, and a
// [registeredmem.Registrar].
type Transport struct {
	rank     message.Rank
	opts     Options
	member   *handshake.Member
	log      *slog.Logger
	patience time.Duration // bounds a handshake
	parting  time.Duration // for a peer to read why a frame of its was refused

	nics     func() ([]nic, error) // the machine's interfaces
	acceptor *handshake.Acceptor
	machine  [idSize]byte // identifies the machine and its network; 0: unknown

	listenMu  sync.Mutex
	listening map[string]string // by IP address, with the port
	addrs     []string          // for the peers, best first
	bandwidth float64           // of the first one's interface, in GB/s; 0: unknown

	ctx     context.Context // ends when Close begins
	cancel  context.CancelFunc
	watched sync.WaitGroup
	failed  atomic.Pointer[time.Time] // when this rank knew that the group has failed, or nil
	parts   sync.WaitGroup            // connections that are closed, of which the peers do not know yet

	closeOnce sync.Once
	closeErr  error

	mu        sync.Mutex
	closed    bool
	endpoints map[[idSize]byte]*Endpoint
	arriving  map[[idSize]byte]*arrival
	conns     map[*conn]struct{}
}

// New opens the sockets to listen on and attaches the transport to reg, in which
// nothing may be registered yet. The caller closes it after its connections and the
// registry.
//
// Errors: ErrInvalid for options out of range and for an interface that does not
// exist or is down; those of [registeredmem.Registry.Attach]; ErrSystem when it
// cannot listen.
func New(reg *registeredmem.Registry, o Options) (*Transport, error) {
	return newTransport(reg, o, handshake.DefaultPatience)
}

// newTransport is New with a bound on handshakes.
func newTransport(reg *registeredmem.Registry, o Options, patience time.Duration) (*Transport, error) {
	const op = "ethernet: new transport"
	if reg == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the registry is nil")
	}
	t := &Transport{
		rank:     message.Rank{Name: "ethernet", Registry: reg, Host: (*gpu.Buffer).HostBytes},
		patience: patience, parting: partingTime, nics: nics, listening: map[string]string{},
		endpoints: map[[idSize]byte]*Endpoint{},
		arriving:  map[[idSize]byte]*arrival{}, conns: map[*conn]struct{}{},
	}
	switch {
	case o.Sockets < 0 || o.Sockets > MaxSockets:
		return nil, t.rank.Invalid(op, "Options.Sockets is %d; it must be at most %d", o.Sockets, MaxSockets)
	case o.Staging != 0 && o.Staging < MinStaging:
		return nil, t.rank.Invalid(op, "Options.Staging is %d; it must be at least %d", o.Staging, MinStaging)
	case o.Timeout < 0:
		return nil, t.rank.Invalid(op, "Options.Timeout is %v", o.Timeout)
	}
	if o.Sockets == 0 {
		o.Sockets = DefaultSockets
	}
	if o.Staging == 0 {
		o.Staging = DefaultStaging
	}
	if o.Timeout == 0 {
		o.Timeout = reg.Timeout()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	t.rank.Init(registeredmem.Ethernet, o.Timeout, o.Lost)
	t.opts, t.log = o, o.Logger.With("rank", reg.Rank())
	rand.Read(t.rank.Instance[:])
	t.member = newMember(reg.Group(), &o, patience)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if id, err := hostid.Kernel(); err == nil {
		sum := sha256.Sum256([]byte(id))
		copy(t.machine[:], sum[:])
	}
	t.acceptor = handshake.NewAcceptor("ethernet", t.log, t.shake)
	t.acceptor.WhenShort(o.Timeout/shortShare, func(error) { t.wake() })
	if _, err := t.listen(); err != nil {
		return nil, errors.Join(t.rank.Wrap(mscclgo.ErrInvalid, op, mscclgo.NoRank, err), t.Close())
	}
	if err := reg.Attach(t); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.watched.Add(1)
	go t.watch()
	return t, nil
}

const (
	watchShare = 32                     // the part of Options.Timeout after which a transport looks for peers that are stuck
	mostWatch  = 250 * time.Millisecond // at most
)

// watch fails the connections whose peers are stuck, and notes when the group fails.
func (t *Transport) watch() {
	defer t.watched.Done()
	tick := time.NewTicker(min(max(t.opts.Timeout/watchShare, time.Millisecond), mostWatch))
	defer tick.Stop()
	failed := t.rank.Registry.Failed()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-failed:
			now := time.Now()
			t.failed.Store(&now)
			failed = nil
		case now := <-tick.C:
			for _, c := range t.all() {
				c.watch(now)
			}
		}
	}
}

// told returns when the peers were told that this rank ends: when the group failed, or now.
func (t *Transport) told() time.Time {
	if at := t.failed.Load(); at != nil {
		return *at
	}
	return time.Now()
}

// wake has all that wait for a peer to dial look again.
func (t *Transport) wake() {
	t.mu.Lock()
	endpoints := slices.Collect(maps.Values(t.endpoints))
	t.mu.Unlock()
	for _, e := range endpoints {
		e.mu.Lock()
		e.arrived.Broadcast()
		e.mu.Unlock()
	}
}

func (t *Transport) all() []*conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		all = append(all, c)
	}
	return all
}

// Close stops listening and ends the connections that are left, without waiting for
// what they have queued. It waits until the peers of those that were closed know, six seconds at
// most. It may be called again, also meanwhile: every call returns once that is done, with the
// same error.
func (t *Transport) Close() error {
	t.closeOnce.Do(func() { t.closeErr = t.close() })
	return t.closeErr
}

func (t *Transport) close() error {
	t.mu.Lock()
	t.closed = true
	for _, a := range t.arriving {
		a.drop()
	}
	t.mu.Unlock()
	t.cancel()
	t.acceptor.Stop()
	t.acceptor.Wait()
	t.watched.Wait()
	var errs []error
	for _, c := range t.all() {
		errs = append(errs, c.Close())
	}
	t.parts.Wait()
	return errors.Join(errs...)
}

// String names the transport for messages.
func (t *Transport) String() string {
	t.listenMu.Lock()
	defer t.listenMu.Unlock()
	return fmt.Sprintf("Ethernet at %v", t.addrs)
}
