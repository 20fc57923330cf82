package communicator

import (
	"context"
	"errors"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/semaphore"
	"github.com/mscclgo/mscclgo/topology"
)

// ProxyService makes the service that moves data for this rank's port channels,
// and starts it. What the options leave open it fills in: the rank, what bounds
// the waits of kernels, and the CPUs near the device, where the machine tells. A
// failure of the service makes the group fail, and is told to the options'
// OnFailure besides. Close it before the communicator.
//
// Errors: those of [proxyservice.New] and [proxyservice.Proxy.Start].
func (c *Communicator) ProxyService(ctx context.Context, o proxyservice.ServiceOptions) (*proxyservice.ProxyService, error) {
	if err := c.usable("communicator: make a proxy service"); err != nil {
		return nil, err
	}
	told := o.OnFailure
	o.OnFailure = func(err error) {
		c.failure.fail(err)
		if told != nil {
			told(err)
		}
	}
	o.Rank = c.Rank()
	o.Watch = c.watch(c.Rank(), 0)
	if len(o.CPUs) == 0 {
		o.CPUs = c.nearCPUs()
	}
	s, err := proxyservice.New(c.dev, o)
	if err != nil {
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// nearCPUs gives the CPUs near this rank's device, or none where that is
// unknown: a proxy works anywhere, only slower.
func (c *Communicator) nearCPUs() []int {
	id := c.dev.Info().PCIBusID
	if id == "" {
		return nil
	}
	machine, err := topology.Discover()
	if err != nil {
		c.options.Logger.Info("the machine's topology is unknown", "rank", c.Rank(), "error", err)
		return nil
	}
	cpus, err := machine.CPUsNear(id)
	if err != nil {
		c.options.Logger.Info("the CPUs near the device are unknown", "rank", c.Rank(), "device", c.dev, "error", err)
	}
	return cpus
}

// PortChannelOptions are what all ranks may choose, alike; the zero value is
// right for most.
type PortChannelOptions struct {
	// PerPeer is the number of channels to each rank, each with a connection of
	// its own, which work side by side. 0 means 1.
	PerPeer int
	// Inbox is this rank's buffer that peers write, when it is not the local one.
	Inbox *gpu.Buffer
	// Peers are the ranks to make channels to; nil means all, this one included.
	// This is the one option that differs between ranks: each that is named must
	// name this one.
	Peers []int
}

// PortChannels are one rank's ends of port channels to all ranks, itself
// included, so that a kernel can treat all alike, or to those that were asked.
type PortChannels struct {
	// Handles is device memory with the handles, PerPeer times len(Ranks) of them:
	// channel i to rank Ranks[j] is handles[i * len(Ranks) + j]. It is nil where
	// there are no channels.
	Handles *gpu.Buffer
	// Ranks are those at the other ends, in ascending order.
	Ranks []int

	ends        ends
	connections []*connection.Connection
	channels    []*channel.PortChannel // in the order of Handles
	handles     piece
	peers       *PeerMemory
}

// PortChannels makes port channels between all ranks, served by s: local here is
// what peers reach as remote, unless the options name an inbox. The handles are
// ready for kernels when it returns. The buffers stay the caller's; see
// [Communicator.Share] for when to free them. Collective.
//
// Errors: as [Communicator.Share]; ErrInvalid when the ranks disagree on
// PerPeer; those of [proxyservice.ProxyService.PortChannel].
func (c *Communicator) PortChannels(ctx context.Context, s *proxyservice.ProxyService, local *gpu.Buffer, o PortChannelOptions) (*PortChannels, error) {
	op := "communicator: make port channels for " + sizeOf(local)
	if o.PerPeer == 0 {
		o.PerPeer = 1
	}
	shared := local
	if o.Inbox != nil {
		shared = o.Inbox
	}
	ranks, err := c.checkPeers(op, o.Peers)
	peers, err := c.share(ctx, c.begin("make port channels", op), shared, errors.Join(err, c.checkChannels(op, local, o.PerPeer)))
	if err != nil {
		return nil, err
	}
	p := &PortChannels{Ranks: ranks, ends: ends{c: c, perPeer: o.PerPeer}, peers: peers}
	k := c.begin("connect port channels", op)
	endpoints, mine, err := p.offer()
	defer func() {
		for _, e := range endpoints {
			e.Close()
		}
	}()
	all, err := k.collect(ctx, mine, err)
	if err == nil {
		err = k.agree(ctx, p.connect(ctx, k, s, local, o.Inbox, endpoints, all))
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// checkPeers gives the ranks that PortChannelOptions.Peers mean, in order.
func (c *Communicator) checkPeers(op string, peers []int) ([]int, error) {
	if peers == nil {
		return c.everyone(), nil
	}
	ranks := slices.Compact(slices.Sorted(slices.Values(peers)))
	if len(ranks) != len(peers) || len(ranks) > 0 && (ranks[0] < 0 || ranks[len(ranks)-1] >= c.Size()) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the peers %v are not different ranks of a group of %d", peers, c.Size()).At(c.Rank(), mscclgo.NoRank)
	}
	return ranks, nil
}

// offer describes this rank's ends: the semaphores, then for each peer its number
// and an endpoint for each channel.
func (p *PortChannels) offer() ([]connection.Endpoint, []byte, error) {
	words, err := p.ends.take()
	if err != nil {
		return nil, nil, err
	}
	w := wire.NewWriter(len(words))
	w.Blob(words)
	w.U32(uint32(len(p.Ranks)))
	var endpoints []connection.Endpoint
	for _, rank := range p.Ranks {
		w.U32(uint32(rank))
		for range p.ends.perPeer {
			e, err := p.ends.c.endpoint(rank)
			if err != nil {
				return endpoints, nil, err
			}
			endpoints = append(endpoints, e)
			b, err := e.MarshalBinary()
			if err != nil {
				return endpoints, nil, err
			}
			w.Blob(b)
		}
	}
	return endpoints, w.Bytes(), nil
}

// accept reads a peer's offer: where its ends are, and its endpoints of the
// channels to this rank, by channel number.
func (p *PortChannels) accept(ctx context.Context, k *call, rank int, b []byte) ([]peerEnd, [][]byte, error) {
	c := p.ends.c
	r := wire.NewReader(b)
	theirs, err := p.ends.accept(ctx, k.op, rank, r.Blob(maxContribution))
	if err != nil {
		return nil, nil, err
	}
	var endpoints [][]byte
	for n := min(int(r.U32()), c.Size()); n > 0; n-- {
		mine := int(r.U32()) == c.Rank()
		for range p.ends.perPeer {
			if e := r.Blob(maxDescription); mine {
				endpoints = append(endpoints, e)
			}
		}
	}
	if err := r.End(); err != nil {
		return nil, nil, k.errorf(mscclgo.ErrRemote, rank, "its offer is malformed: %w", err)
	}
	if len(endpoints) != p.ends.perPeer {
		return nil, nil, k.errorf(mscclgo.ErrInvalid, rank, "it is among this rank's peers, and this rank not among its")
	}
	return theirs, endpoints, nil
}

// connect makes this rank's ends and puts their handles into device memory.
func (p *PortChannels) connect(ctx context.Context, k *call, s *proxyservice.ProxyService, local, inbox *gpu.Buffer, endpoints []connection.Endpoint, all [][]byte) error {
	c := p.ends.c
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	mine := p.peers.Memories[c.Rank()]
	if inbox != nil {
		var err error
		if mine, err = p.ends.register(local); err != nil {
			return err
		}
	}
	values := make([]devicecode.PortChannel, len(endpoints))
	p.channels = make([]*channel.PortChannel, len(endpoints))
	for j, rank := range p.Ranks {
		theirs, remotes, err := p.accept(ctx, k, rank, all[rank])
		if err != nil {
			return err
		}
		for i, to := range theirs {
			at := i*len(p.Ranks) + j
			conn, err := endpoints[j*p.ends.perPeer+i].Connect(ctx, remotes[i])
			if err != nil {
				return err
			}
			p.connections = append(p.connections, conn)
			words, err := p.ends.own(i, rank)
			if err != nil {
				return err
			}
			sem, err := semaphore.NewHost2Device(conn, words, to.slab, to.offset, c.watch(rank, c.number()))
			if err != nil {
				return err
			}
			if p.channels[at], err = s.PortChannel(sem, p.peers.Memories[rank], mine); err != nil {
				return err
			}
			values[at] = p.channels[at].Handle()
		}
	}
	if len(values) == 0 {
		return nil
	}
	var err error
	p.handles, p.Handles, err = handles(c, values)
	return err
}

// Channel gives channel i, below PerPeer, to a rank of Ranks.
func (p *PortChannels) Channel(i, rank int) *channel.PortChannel { return p.channels[p.index(i, rank)] }

// index gives the place of a channel in Handles.
func (p *PortChannels) index(i, rank int) int {
	return i*len(p.Ranks) + slices.Index(p.Ranks, rank)
}

// HandleOf gives the address of the handle of channel i, below PerPeer, to a
// rank of Ranks, in device memory.
func (p *PortChannels) HandleOf(i, rank int) gpu.Ptr {
	return p.Handles.Ptr() + gpu.Ptr(sizeIn[devicecode.PortChannel](p.index(i, rank)))
}

// Close closes the connections and releases the channels' memory. No kernel of
// any rank may use them any more, and the service must be closed, as it keeps
// their ids. It is safe to call twice.
func (p *PortChannels) Close() error {
	var errs []error
	for _, conn := range p.connections {
		errs = append(errs, conn.Close())
	}
	errs = append(errs, p.peers.Close(), p.ends.close())
	if p.handles.slab != nil {
		p.ends.c.private.give(p.handles)
	}
	p.connections, p.handles = nil, piece{}
	return errors.Join(errs...)
}
