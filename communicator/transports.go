package communicator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"weak"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/connection/shm"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/topology"
)

// network is a transport to ranks whose memory is not mapped here.
type network struct {
	transport registeredmem.Transports
	bandwidth float64 // of the NICs of this rank, in GB/s; 0: unknown, or there are none
	endpoint  func() (connection.Endpoint, error)
	close     func() error
	lossy     func() (peer int, since time.Time) // see Lossy of inside.Ethernet; nil: nobody knows
}

// networks are all that there are, in order of preference where nothing is known of them.
var networks = []struct {
	transport registeredmem.Transports
	near      bool // it reaches ranks of the same host only
	open      func(*Communicator) (network, error)
	named     func(*Communicator) bool // whether the user named a device of it
}{
	{registeredmem.SHM, true, openSHM, func(*Communicator) bool { return false }},
	{registeredmem.InfiniBand, false, openInfiniBand, func(c *Communicator) bool {
		return c.options.InfiniBand.Device != "" || os.Getenv(ib.EnvDevice) != ""
	}},
	{registeredmem.Ethernet, false, openEthernet, func(c *Communicator) bool {
		return c.options.Ethernet.Interface != "" || os.Getenv(ethernet.EnvInterface) != ""
	}},
}

// silenceGrace is how much longer than a wait lasts a network waits for a peer that does nothing with
// what it was sent. A wait for the same peer has a verdict by then, which knows the cause.
const silenceGrace = time.Second

// silence returns for how long a peer may do nothing with what a network has sent it.
func (c *Communicator) silence() time.Duration { return c.options.Timeout + silenceGrace }

func openSHM(c *Communicator) (network, error) {
	o := c.options.SHM
	o.Secret = c.boot.Key("shm")
	o.Logger = cmp.Or(o.Logger, c.options.Logger)
	o.Timeout = cmp.Or(o.Timeout, c.silence())
	o.Lost = c.lostBy(o.Lost)
	t, err := shm.New(c.registry, o)
	if err != nil {
		return network{}, err
	}
	return network{
		transport: registeredmem.SHM,
		endpoint:  func() (connection.Endpoint, error) { return t.NewEndpoint() },
		close:     t.Close,
	}, nil
}

func openInfiniBand(c *Communicator) (network, error) {
	t, err := ib.New(c.registry, c.infiniBandOptions())
	if err != nil {
		return network{}, err
	}
	return network{
		transport: registeredmem.InfiniBand,
		bandwidth: t.Bandwidth(),
		endpoint:  func() (connection.Endpoint, error) { return t.NewEndpoint() },
		close:     t.Close,
	}, nil
}

func (c *Communicator) infiniBandOptions() ib.Options {
	o := c.options.InfiniBand
	o.Logger = cmp.Or(o.Logger, c.options.Logger)
	o.Timeout = cmp.Or(o.Timeout, c.silence())
	o.Lost = c.lostBy(o.Lost)
	return o
}

// ethernetOptions returns the transport's options with what the group knows: where the user names no address
// to fall back on, that is the bootstrap's.
func (c *Communicator) ethernetOptions() ethernet.Options {
	o := c.options.Ethernet
	o.Secret = c.boot.Key("ethernet")
	o.Logger = cmp.Or(o.Logger, c.options.Logger)
	o.Timeout = cmp.Or(o.Timeout, c.silence())
	if !o.Fallback.IsValid() {
		o.Fallback = c.boot.Internal().LocalAddr()
	}
	o.Lost = c.lostBy(o.Lost)
	if o.Dead == nil {
		o.Dead = c.dead
	}
	return o
}

func openEthernet(c *Communicator) (network, error) {
	t, err := ethernet.New(c.registry, c.ethernetOptions())
	if err != nil {
		return network{}, err
	}
	return network{
		transport: registeredmem.Ethernet,
		bandwidth: t.Bandwidth(),
		endpoint:  func() (connection.Endpoint, error) { return t.NewEndpoint() },
		close:     t.Close,
		lossy:     func() (int, time.Time) { return t.Internal().Lossy() },
	}, nil
}

// lossyLinks returns this host's waits for other hosts to acknowledge what it has sent them, also while networks are opened.
func (c *Communicator) lossyLinks(now time.Time) (waits []watch.Wait) {
	add := func(peer int, since time.Time) {
		if !since.IsZero() {
			waits = append(waits, watch.Wait{Kind: watch.Link, Peer: peer, For: now.Sub(since)})
		}
	}
	add(c.boot.Internal().Lossy())
	c.mu.Lock()
	networks := slices.Clone(c.networks)
	c.mu.Unlock()
	for _, n := range networks {
		if n.lossy != nil {
			add(n.lossy())
		}
	}
	return waits
}

// lostBy returns what a transport calls when a connection breaks: it tells so, and calls the user's function, which may be nil.
func (c *Communicator) lostBy(users func(peer int, err error)) func(peer int, err error) {
	return func(peer int, err error) {
		lost := watch.Lost(c.Rank(), peer, err.Error()) // this rank may never use it again, and wait for what the peer cannot send
		lost.Cause = err
		c.tell(lost)
		if users != nil {
			users(peer, err)
		}
	}
}

// dead reports whether a peer will not take what it is sent, as the group has failed because of it, or of
// another while it gives no sign of life either, such as all ranks of a host that is silent.
func (c *Communicator) dead(peer int) bool {
	err := c.boot.Err()
	var e *mscclgo.Error
	return errors.As(err, &e) && e.Peer == peer || err != nil && c.failure.observer.mute(peer)
}

// knowsDead returns dead, for the ranks of this group that have the numbers as another group has them, or for
// all if there are none. It keeps no communicator in memory.
func (c *Communicator) knowsDead(numbers []int) func(rank int) bool {
	known := weak.Make(c)
	return func(rank int) bool {
		if numbers != nil {
			rank = numbers[rank]
		}
		c := known.Value()
		return c != nil && c.dead(rank)
	}
}

// chooseTransports chooses the transport to each peer. It opens no network that no peer
// needs: none where all ranks map each other's memory, and where ranks of a host do not, only
// what is on the host if they allow it.
func (c *Communicator) chooseTransports(ctx context.Context, k *call, identities []identity, maps [][]byte) error {
	c.links = make([]registeredmem.Transports, c.Size())
	for rank, both := range maps[c.Rank()] {
		if both != 0 {
			c.links[rank] = registeredmem.CudaIPC
		}
	}
	if len(c.hosts) == 1 {
		return nil
	}
	me := identities[c.Rank()]
	var near, far bool // whether there are peers on this host, and others, to reach
	for rank, peer := range identities {
		switch {
		case c.links[rank] != 0:
		case peer.host == me.host && me.allowed.Has(registeredmem.SHM) && peer.allowed.Has(registeredmem.SHM):
			near = true
		default:
			far = true
		}
	}
	mine, err := c.openNetworks(near, far)
	all, err := collectAll(ctx, k, openedWire, &mine, err)
	if err != nil {
		return err
	}
	for rank, theirs := range all {
		if c.links[rank] == 0 {
			c.links[rank] = mine.choose(theirs, identities[rank].host == me.host)
			if c.links[rank] == registeredmem.Ethernet && (mine.transports & theirs.transports).Has(registeredmem.InfiniBand) {
				c.options.Logger.Info("a peer is reached by Ethernet, which is faster than the RDMA devices; name one to use it", "rank", c.Rank(), "peer", rank)
			}
		}
		if c.links[rank] == 0 {
			return k.errorf(mscclgo.ErrUnsupported, rank,
				"no transport reaches it: its memory cannot be mapped, this rank has %v, the peer has %v%s%s", mine.transports, theirs.transports, mine.why, theirs.why)
		}
	}
	return nil
}

// opened lists the networks that a rank has opened, and why not the others.
type opened struct {
	transports registeredmem.Transports
	rdma, tcp  float64 // what InfiniBand's and Ethernet's NICs carry, in GB/s; 0: unknown
	why        string  `wire:"4096"`
}

var openedWire = wire.For[opened]()

// choose returns the transport between two ranks, as both see it, or 0 if there is none.
func (o *opened) choose(other opened, sameHost bool) registeredmem.Transports {
	both := o.transports & other.transports
	for _, one := range networks {
		switch {
		case !both.Has(one.transport) || one.near && !sameHost:
		case one.transport == registeredmem.InfiniBand && both.Has(registeredmem.Ethernet) &&
			topology.TCPIsFaster(min(o.rdma, other.rdma), min(o.tcp, other.tcp)):
		default:
			return one.transport
		}
	}
	return 0
}

// openNetworks opens the networks that are allowed and available, to ranks of this host
// (near) or to others (far). One that this machine has, or of which the user named a device, must work:
// to go on by another would hide what is broken.
func (c *Communicator) openNetworks(near, far bool) (opened, error) {
	var o opened
	for _, one := range networks {
		if !c.options.Transports.Has(one.transport) || one.near && !near || !one.near && !far {
			continue
		}
		n, err := one.open(c)
		switch kind := mscclgo.KindOf(err); {
		case err == nil:
		case kind == mscclgo.ErrInvalid || one.named(c):
			return o, err
		case kind != mscclgo.ErrUnsupported:
			return o, mscclgo.Errorf(kind, "communicator: open a transport",
				"%v is there and does not work: %w; mend that, or name other transports in MSCCLGO_TRANSPORTS", one.transport, err).At(c.Rank(), mscclgo.NoRank)
		default:
			o.why += fmt.Sprintf("; rank %d has no %v: %v", c.Rank(), one.transport, err)
			c.options.Logger.Info("a transport is not available", "rank", c.Rank(), "transport", one.transport, "error", err)
			continue
		}
		c.mu.Lock()
		c.networks = append(c.networks, n)
		c.mu.Unlock()
		o.transports |= one.transport
		switch one.transport {
		case registeredmem.InfiniBand:
			o.rdma = n.bandwidth
		case registeredmem.Ethernet:
			o.tcp = n.bandwidth
		}
	}
	return o, nil
}

// closeNetworks closes the networks.
func (c *Communicator) closeNetworks() error {
	var errs []error
	for i := len(c.networks) - 1; i >= 0; i-- {
		errs = append(errs, c.networks[i].close())
	}
	return errors.Join(errs...)
}

// endpoint returns a new endpoint for a connection to a peer.
func (c *Communicator) endpoint(peer int) (connection.Endpoint, error) {
	for _, one := range c.networks {
		if c.links[peer] == one.transport {
			return one.endpoint()
		}
	}
	return cudaipc.NewEndpoint(c.registry)
}

// Transport returns the transport of this rank's port channels and connections to a
// peer: CudaIPC where both map each other's memory and for the rank itself, else the first
// that both have of SHM, if they are on one host, InfiniBand and Ethernet. Ethernet comes before
// InfiniBand if it is faster by the line rates of the NICs of both ([topology.TCPIsFaster]), these
// rates are known, and no InfiniBand device is named.
//
// Errors: ErrInvalid for a peer outside the group.
func (c *Communicator) Transport(peer int) (registeredmem.Transports, error) {
	if peer < 0 || peer >= c.Size() {
		return 0, c.invalid("communicator: transport to a peer", "rank %d is outside a group of %d", peer, c.Size())
	}
	return c.links[peer], nil
}
