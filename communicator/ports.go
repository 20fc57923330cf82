package communicator

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// ProxyService returns a started service that moves data for this rank's port
// channels. It sets the options' rank and what bounds the waits in kernels. If the
// options name no CPUs, it sets the CPUs near the device that the process may run on, where the
// machine's topology is known. If the process may run on none of these, it sets all that it may run on.
// If they name no threads, it sets [Options].Threads. A failure of the service fails the group, before
// the options' OnFailure is called, unless a peer caused it and news of why come within 0.1 s. Where the service
// returns its failure, the group's error is in front if it is another. Close the service before the communicator.
//
// Errors: as for [proxyservice.New] and [proxyservice.Proxy.Start].
func (c *Communicator) ProxyService(ctx context.Context, o proxyservice.ServiceOptions) (*proxyservice.ProxyService, error) {
	if err := c.usable("communicator: make a proxy service"); err != nil {
		return nil, err
	}
	onFailure := o.OnFailure
	o.OnFailure = func(err error) {
		c.tell(watch.FactOf(err, c.Rank(), c.Size()))
		if onFailure != nil {
			onFailure(err)
		}
	}
	o.Ends = c.Done()
	o.Rank = c.Rank()
	o.Watch = c.watch(c.Rank(), ringChannel)
	if len(o.CPUs) == 0 {
		o.CPUs = c.nearCPUs()
	}
	if o.Threads == nil {
		o.Threads = c.options.Threads
	}
	s, err := proxyservice.New(c.dev, o)
	if err != nil {
		return nil, err
	}
	telling := inside.Telling{Explain: c.causeFirst, Channel: c.channelName}
	if c.tracer != nil {
		telling.Trace = c.tracer.host
	}
	s.Internal().Tell(telling)
	if err := s.Start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	c.failure.observer.serves(s)
	return s, nil
}

// PortChannelOptions configure [Communicator.PortChannels], alike on all ranks but
// for Peers. The zero value is right for most uses.
type PortChannelOptions struct {
	// PerPeer is the number of channels to each rank, each with its own connection,
	// so that they work concurrently. 0 means 1.
	PerPeer int
	// Inbox is the buffer of this rank that peers write, when it is not the local
	// one.
	Inbox *gpu.Buffer
	// Name is the channels' name in errors, of which 32 bytes are shown. Without one,
	// errors give a number.
	Name string
	// OnStream has the channels take operations on streams too, by [PortChannels.OnStream]. The
	// kernels for these are compiled, or found in the cache of package devicecode, and loaded
	// when the communicator's first such channels are made.
	OnStream bool
	// Peers are the ranks to make channels to; nil means all, this one included.
	// Each of them must name this rank among its Peers.
	Peers []int
}

// PortChannels are one rank's ends of port channels to the ranks of
// PortChannelOptions.Peers: by default to all ranks, itself included, so that a
// kernel can treat all ranks alike.
type PortChannels struct {
	// Handles is device memory with the handles, PerPeer times len(Ranks) of them:
	// channel i to rank Ranks[j] is handles[i * len(Ranks) + j]. It is nil where
	// there are no channels.
	Handles *gpu.Buffer
	// Ranks are the peers, in ascending order.
	Ranks []int

	channelEnds
	options     PortChannelOptions
	service     *proxyservice.ProxyService
	connections []*connection.Connection
	channels    []*channel.PortChannel // in the order of Handles
	waits       []*waitingChannel      // likewise, for the service to have them; nil: it has, or none is there
	room        serviceRoom            // for those in the service
	closed      bool
}

// PortChannels makes port channels between all ranks, which s serves. Peers write
// the local buffer of this rank, unless the options name an inbox. When it returns,
// kernels may use the handles. The buffers remain the caller's; see
// [Communicator.Share] for when to free them, and [Communicator.Pipes] for when after an
// error. Collective.
//
// Errors: as for [Communicator.Share]; ErrInvalid for a nil service or buffer, a service of another device and when
// the ranks disagree on PerPeer; as for [proxyservice.ProxyService.PortChannel]; with
// PortChannelOptions.OnStream as for [devicecode.Load].
func (c *Communicator) PortChannels(ctx context.Context, s *proxyservice.ProxyService, local *gpu.Buffer, o PortChannelOptions) (*PortChannels, error) {
	return c.portChannels(ctx, s, local, o, nil)
}

// portChannels is PortChannels, with channels of an earlier group, or nil, whose places
// these take where that is possible.
func (c *Communicator) portChannels(ctx context.Context, s *proxyservice.ProxyService, local *gpu.Buffer, o PortChannelOptions, before *channelEnds) (*PortChannels, error) {
	op := "communicator: make port channels for " + sizeOf(local)
	o.PerPeer = cmp.Or(o.PerPeer, 1)
	o.Peers = slices.Clone(o.Peers) // Reform uses them too
	ranks, err := c.checkPeers(op, o.Peers)
	err = errors.Join(c.checkService(op, s), err)
	if o.OnStream && err == nil && c.usable(op) == nil {
		err = c.loadPortKernels(ctx)
	}
	k := c.begin("make port channels", op)
	ends, err := c.startChannels(ctx, k, local, o.Inbox, o.PerPeer, o.Name, before, err)
	if err != nil {
		return nil, err
	}
	p := &PortChannels{channelEnds: ends, options: o, Ranks: ranks, service: s, room: s.Internal().Room()}
	var endpoints []connection.Endpoint
	defer func() {
		for _, e := range endpoints {
			e.Close()
		}
	}()
	defer p.unreserve()
	k = k.then("connect port channels")
	offer := func() (mine []byte, err error) {
		endpoints, mine, err = p.offer()
		return mine, err
	}
	connect := func(all [][]byte) error { return p.connect(ctx, k, endpoints, all) }
	if err := k.made(ctx, offer, connect, p.show, p.Close); err != nil {
		return nil, err
	}
	return p, nil
}

// checkService returns an error unless kernels of this rank can push to a service.
func (c *Communicator) checkService(op string, s *proxyservice.ProxyService) error {
	if s == nil {
		return c.invalid(op, "the proxy service is nil")
	}
	if d := s.Internal().Device(); d != c.dev {
		return c.invalid(op, "the proxy service is for %v, the communicator on %v%s", d, c.dev, native.Twice(d, c.dev))
	}
	return nil
}

// waitingChannel is what a channel will be once the other ranks' parts are known to have worked; see waitingPort.
type waitingChannel struct {
	semaphore *semaphore.Host2Device
	to        *registeredmem.Memory
}

// checkPeers returns the ranks of PortChannelOptions.Peers, in order.
func (c *Communicator) checkPeers(op string, peers []int) ([]int, error) {
	if peers == nil {
		return c.everyone(), nil
	}
	ranks := slices.Compact(slices.Sorted(slices.Values(peers)))
	if len(ranks) != len(peers) || len(ranks) > 0 && (ranks[0] < 0 || ranks[len(ranks)-1] >= c.Size()) {
		return nil, c.invalid(op, "the peers %v are not distinct ranks of a group of %d", peers, c.Size())
	}
	return ranks, nil
}

// offer describes this rank's ends of the channels: the semaphores, then for each
// peer its rank and an endpoint for each channel.
func (p *PortChannels) offer() ([]connection.Endpoint, []byte, error) {
	words, err := p.sems.take()
	if err != nil {
		return nil, nil, err
	}
	if err := p.keep(); err != nil {
		return nil, nil, err
	}
	offer := portOffer{semaphores: words}
	var endpoints []connection.Endpoint
	for _, rank := range p.Ranks {
		peer := offeredPorts{peer: rank}
		for range p.sems.perPeer {
			e, err := p.sems.c.endpoint(rank)
			if err != nil {
				return endpoints, nil, err
			}
			endpoints = append(endpoints, e)
			b, err := e.MarshalBinary()
			if err != nil {
				return endpoints, nil, err
			}
			peer.endpoints = append(peer.endpoints, description{b})
			// While all ranks wait for each other's offers: none would come to a peer that waits to connect.
			if err := p.room.Semaphore(); err != nil {
				return endpoints, nil, err
			}
		}
		offer.peers = append(offer.peers, peer)
	}
	return endpoints, portOfferWire.Marshal(&offer), nil
}

// portOffer describes a rank's ends of port channels to its peers.
type portOffer struct {
	semaphores []byte // an offer
	peers      []offeredPorts
}

// offeredPorts are the endpoints of the channels to a peer, by channel number.
type offeredPorts struct {
	peer      int
	endpoints []description
}

var portOfferWire = wire.For[portOffer]()

// keep has the service keep room for the memories of the channels.
func (p *PortChannels) keep() error {
	if len(p.Ranks) == 0 {
		return nil
	}
	var memories []*registeredmem.Memory
	for _, rank := range p.Ranks {
		memories = append(memories, p.peers.Memories[rank])
	}
	if p.options.Inbox != nil {
		return p.room.Memories(memories, 1) // the local one is not registered yet
	}
	return p.room.Memories(append(memories, p.peers.Memories[p.sems.c.Rank()]), 0)
}

// decode decodes a peer's offer: where its semaphores are, and its endpoints of the
// channels to this rank, by channel number.
func (p *PortChannels) decode(k *call, rank int, b []byte) (*offer, []description, error) {
	ports, err := portOfferWire.Unmarshal(b)
	if err != nil {
		return nil, nil, k.errorf(mscclgo.ErrRemote, rank, "its offer is malformed: %w", err)
	}
	theirs, err := p.sems.decode(k.op, rank, ports.semaphores)
	if err != nil {
		return nil, nil, err
	}
	at := slices.IndexFunc(ports.peers, func(o offeredPorts) bool { return o.peer == p.sems.c.Rank() })
	if at < 0 || len(ports.peers[at].endpoints) != p.sems.perPeer {
		return nil, nil, k.errorf(mscclgo.ErrInvalid, rank, "it is among this rank's Peers, but this rank is not among its Peers")
	}
	return theirs, ports.peers[at].endpoints, nil
}

// connect makes this rank's channels, but for what the service has of them, and memory for their handles.
func (p *PortChannels) connect(ctx context.Context, k *call, endpoints []connection.Endpoint, all [][]byte) error {
	ctx, cancel := p.sems.c.bounded(ctx)
	defer cancel()
	// All offers first, as this rank may wait for a peer, and others for this rank.
	offers, dials, wrong := make([]*offer, len(p.Ranks)), make([]dial, 0, len(endpoints)), error(nil)
	for j, rank := range p.Ranks {
		o, remotes, err := p.decode(k, rank, all[rank])
		if err != nil {
			wrong = cmp.Or(wrong, err)
			continue
		}
		offers[j] = o
		for i, remote := range remotes {
			dials = append(dials, dial{endpoint: endpoints[j*p.sems.perPeer+i], remote: remote.bytes, rank: rank})
		}
	}
	err := wrong
	if err == nil {
		err = p.connectAll(ctx, k, offers, dials)
	}
	if err != nil {
		p.connections = append(p.connections, p.sems.c.connectInVain(ctx, k, dials)...)
	}
	return err
}

// connectAll is connect, with the offers of the peers and the connections, in the order of Ranks.
func (p *PortChannels) connectAll(ctx context.Context, k *call, offers []*offer, dials []dial) error {
	c := p.sems.c
	if err := p.registerLocal(p.options.Inbox); err != nil {
		return err
	}
	p.channels, p.waits = make([]*channel.PortChannel, len(dials)), make([]*waitingChannel, len(dials))
	for j, rank := range p.Ranks {
		theirs, err := p.sems.imported(ctx, k.op, rank, offers[j])
		if err != nil {
			return err
		}
		for i, to := range theirs {
			at := i*len(p.Ranks) + j
			conn, err := c.dial(ctx, k, &dials[j*p.sems.perPeer+i])
			if err != nil {
				return err
			}
			p.connections = append(p.connections, conn)
			sem, err := p.sems.byHost(conn, i, i, rank, to)
			if err != nil {
				return err
			}
			w := &waitingChannel{sem, p.peers.Memories[rank]}
			if err := p.try(w); err != nil {
				return err
			}
			p.waits[at] = w
		}
	}
	if len(p.waits) == 0 {
		return nil
	}
	if err := p.handles.room(c.private, sizeIn[layout.PortChannel](len(p.waits))); err != nil {
		return err
	}
	p.Handles = p.handles.memory
	return nil
}

// try returns the error that a channel will have, so that all ranks hear of it.
func (p *PortChannels) try(w *waitingChannel) error {
	base := channel.NewBasePortChannel(nil, w.semaphore, 0, 0, 0, channel.HostOnly)
	_, err := channel.NewPortChannel(base, w.to, p.mine, 0, 0)
	return err
}

// show has the service serve the channels, and copies their handles to device memory.
func (p *PortChannels) show() error {
	if len(p.waits) == 0 {
		return p.take()
	}
	values := make([]layout.PortChannel, len(p.waits))
	for at, w := range p.waits {
		p.waits[at] = nil
		err := p.room.Add(w.semaphore, []*registeredmem.Memory{w.to, p.mine})
		if err != nil {
			return err
		}
		if p.channels[at], err = p.service.PortChannel(w.semaphore, w.to, p.mine); err != nil {
			return err
		}
		values[at] = p.channels[at].Handle().Internal()
	}
	if err := gpu.CopyIn(p.Handles, values); err != nil {
		return err
	}
	return p.take()
}

// unreserve leaves the service's room for channels that it does not serve to others.
func (p *PortChannels) unreserve() {
	p.room.Leave()
	clear(p.waits)
}

// Set returns the channels for a kernel, which takes a PortChannelSet of
// <mscclgo/port_channel.cuh> by value and indexes it by peer and channel. It is valid
// until Close.
func (p *PortChannels) Set() devicecode.PortChannelSet {
	return layout.Handle[devicecode.PortChannelSet](p.sems.c.channelSet(p.Handles, p.Ranks, p.options.PerPeer))
}

// HandleOf returns the device address of the handle of channel i, below PerPeer, to
// a rank of Ranks, or 0 if there is none.
func (p *PortChannels) HandleOf(i, rank int) gpu.Ptr {
	return handleOf[layout.PortChannel](p.Handles, p.Ranks, p.sems.perPeer, i, rank)
}

// Flush waits until all that the channels' connections were asked for before is done at the peers. Of the
// kernels' triggers that is the ones that the service has served, and all of them once it is closed. Flush
// is for programs that close the channels when no peer waits for what they did last.
//
// Errors: as for [connection.Connection.Flush], behind the group's if it has failed.
func (p *PortChannels) Flush(ctx context.Context) error {
	var errs []error
	for _, conn := range p.connections {
		errs = append(errs, conn.Flush(ctx))
	}
	return p.sems.c.explained(errors.Join(errs...))
}

// Close closes the connections and frees the channels' memory. No kernel of any
// rank may use the channels any longer, and the service must be closed before, as
// it keeps their ids. Close may be called twice, and does nothing on nil.
func (p *PortChannels) Close() error {
	if p == nil {
		return nil
	}
	p.closing.Lock()
	defer p.closing.Unlock()
	var errs []error
	for _, conn := range p.connections {
		errs = append(errs, conn.Close())
	}
	p.connections, p.closed = nil, true
	return errors.Join(append(errs, p.close())...)
}
