package ethernet

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Defaults and limits of [Options].
const (
	maxSockets     = 16
	defaultSockets = 1
	defaultStaging = 8 << 20
	minStaging     = 1 << 20
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
	// Fallback is used where Interface is "" and no interface is found. It is an address
	// of this machine at which peers reach the rank, such as its bootstrap's. Without it
	// the rank listens on the loopback interface, which only ranks of this host reach.
	Fallback netip.Addr
	// Sockets is the number of data sockets of the connections that this rank dials,
	// at most 16. 0 means 1. Large writes are spread over them.
	Sockets int
	// Staging bounds the pinned memory of a connection in bytes, both ends together.
	// Each rank has half: a quarter to send from and a quarter to receive into. It is
	// at least 1 MiB; 0 means 8 MiB.
	Staging uint64
	// Timeout is how long a peer may acknowledge nothing before the connection fails.
	// 0 means the registry's.
	Timeout time.Duration
	// TLS encrypts everything with TLS 1.3.
	TLS bool
	// Lost is called, in a goroutine of its own, when the connection to a peer breaks, the peer's bytes make no
	// sense, or the peer refuses what it was sent, since it has closed the buffer. It is not called when either
	// end closes the connection, and may be called for each connection. nil ignores it: the next call returns the error.
	Lost func(peer int, err error)
	// Dead reports whether a peer is known to have failed: closing a connection to it does not
	// wait until its host knows. nil means that no peer is.
	Dead func(peer int) bool

	// Logger gets a record of each refused stranger, and of what is refused of peers; nil
	// discards.
	Logger *slog.Logger
}

// shortShare is the part of Options.Timeout after which a lack of descriptors ends the wait
// for a peer to dial.
const shortShare = 4

// Transport is one rank's end of all its connections over TCP.
type Transport struct {
	rank     message.Rank
	opts     Options
	member   *handshake.Member
	patience time.Duration // bounds a handshake, and how long a peer that reads nothing holds up a Close

	nics     func() ([]nic, error) // the machine's interfaces
	acceptor *handshake.Acceptor
	machine  [idSize]byte // identifies the machine and its network; 0: unknown

	listenMu  sync.Mutex
	listening map[string]string // by IP address, with the port
	addrs     []string          // for the peers, best first
	bandwidth float64           // of the first one's interface, in GB/s; 0: unknown

	parts sync.WaitGroup // connections that are closed, of which the peers do not know yet

	// Guarded by rank.Mu.
	endpoints map[[idSize]byte]*endpoint
	arriving  map[[idSize]byte]*arrival
}

// New opens the sockets to listen on and attaches the transport to reg, in which
// nothing may be registered yet. The caller closes it after its connections and the
// registry.
//
// Errors: ErrInvalid for options out of range and for an interface that does not
// exist or is down; as for [registeredmem.Registry.Attach]; ErrSystem when it
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
		opts: o, patience: patience, nics: nics, listening: map[string]string{},
		endpoints: map[[idSize]byte]*endpoint{}, arriving: map[[idSize]byte]*arrival{},
	}
	err := t.rank.Init(reg, "ethernet", registeredmem.Ethernet, message.Options{Timeout: o.Timeout, Lost: o.Lost, Logger: o.Logger})
	switch {
	case err != nil:
		return nil, err
	case o.Sockets < 0 || o.Sockets > maxSockets:
		return nil, t.rank.Invalid(op, "Options.Sockets is %d; it must be at most %d", o.Sockets, maxSockets)
	case o.Staging != 0 && o.Staging < minStaging:
		return nil, t.rank.Invalid(op, "Options.Staging is %d; it must be at least %d", o.Staging, minStaging)
	}
	if o.Sockets == 0 {
		t.opts.Sockets = defaultSockets
	}
	if o.Staging == 0 {
		t.opts.Staging = defaultStaging
	}
	t.member = newMember(reg.Group(), &o, t.rank.Timeout, patience)
	if id, err := hostid.Kernel(); err == nil {
		sum := sha256.Sum256([]byte(id))
		copy(t.machine[:], sum[:])
	}
	t.acceptor = handshake.NewAcceptor("ethernet", t.rank.Log, t.shake)
	t.acceptor.WhenShort(t.rank.Timeout/shortShare, func(error) { t.wake() })
	if _, err := t.listen(); err != nil {
		return nil, errors.Join(t.rank.Wrap(mscclgo.ErrInvalid, op, mscclgo.NoRank, err), t.Close())
	}
	if err := reg.Attach(&t.rank); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.rank.Watch()
	return t, nil
}

// wake has all that wait for a peer to dial look again.
func (t *Transport) wake() {
	t.rank.Mu.Lock()
	endpoints := slices.Collect(maps.Values(t.endpoints))
	t.rank.Mu.Unlock()
	for _, e := range endpoints {
		e.mu.Lock()
		e.arrived.Broadcast()
		e.mu.Unlock()
	}
}

// Close stops listening and ends the connections that are left, without waiting for
// what they have queued. It waits, six seconds at most, until the peers of closed connections know
// that they are closed. It may be called again, also meanwhile: every call returns once that is done,
// with the same error.
func (t *Transport) Close() error {
	defer t.parts.Wait()
	return t.rank.Close(func() error {
		t.rank.Mu.Lock()
		for _, a := range t.arriving {
			a.drop()
		}
		t.rank.Mu.Unlock()
		t.acceptor.Stop()
		t.acceptor.Wait()
		return nil
	})
}

// String names the transport for messages.
func (t *Transport) String() string {
	t.listenMu.Lock()
	defer t.listenMu.Unlock()
	return fmt.Sprintf("Ethernet at %v", t.addrs)
}
