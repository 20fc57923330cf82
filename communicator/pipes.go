package communicator

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// PipeOptions configure [Communicator.Pipes]. PerPeer, Size, Shared, Lazy and Ports are alike at
// both ends of a pipe.
type PipeOptions struct {
	// To are the ranks that this one sends to, and From the ranks that it receives from, in
	// the order by which kernels count them. This rank may be among them. Each rank of To
	// names this one in its From, and the other way round.
	To, From []int
	// PerPeer is the number of pipes to each rank of To and from each of From, so that
	// each block of a grid can have its own. 0 means 1.
	PerPeer int
	// Size is the size of the ring of slots of each pipe. Each end that receives has such a ring
	// in device memory, and by ports each that sends too: 1 MiB by default. If SlotBytes is 0 in
	// a group of more than 8 ranks, slots have 128 KiB or a half, a quarter and so on, so that no
	// rank's ends take more than 64 MiB. All ranks with a SlotBytes of 0 have the same. With a pipe
	// from each of 256 ranks to all others it is 32 KiB, and by ports 16 KiB.
	Size channel.PipeSize
	// Pool is device memory of this rank for the ends of the pipes, from byte PoolOffset
	// on, a multiple of 128: PipeBytes bytes. nil means memory of the pipes'
	// own.
	Pool       *gpu.Buffer
	PoolOffset uint64
	// Shared has the ends of all open shared pipes lie in one memory of the communicator's, of Options.PipePool
	// bytes. It is set for both ends of a pipe, and without a Pool. By default each end then has two slots, and
	// not eight, and slots have less than 128 KiB where the memory has no room. A message of more chunks than
	// its pipe has slots borrows a lot of 512 KiB of that memory while it is received; see <mscclgo/pipe.cuh>.
	// Pipes borrow nothing if they have more than 16 slots, if their slots together have more bytes than a lot,
	// or if a slot has more than half of a lot. A second such call registers and maps nothing.
	Shared bool
	// Lazy makes shared pipes that cost no more than their handles until [Pipes.Open] connects the pipes to and
	// from a rank: no connection, no memory for slots and semaphores, no descriptor and no goroutine. The
	// size of slots is chosen as if all were open.
	Lazy bool
	// Buffer is memory of this rank, or nil. Messages that are received into it are
	// written there directly. Hosts fetch messages there that are sent from it.
	// With it the senders of this rank's From wait for the call that receives a message;
	// see post in <mscclgo/pipe.cuh>.
	Buffer *gpu.Buffer
	// Service moves the messages of pipes between ranks that do not map each other's
	// memory. It may be nil where there are none.
	Service *proxyservice.ProxyService
	// Ports has the service move all messages.
	Ports bool
	// Name is the pipes' name in errors, of which 32 bytes are shown. Without one, it is
	// "pipe".
	Name string
}

// withDefaults returns the options with their zeros replaced.
func (o PipeOptions) withDefaults() PipeOptions {
	o.Shared = o.Shared || o.Lazy
	if o.PerPeer == 0 {
		o.PerPeer = 1
	}
	if o.Name == "" {
		o.Name = "pipe"
	}
	return o
}

// Pipes are one rank's ends of pipes, one-way streams of messages. They are not carried to
// another group by [Communicator.Reform]. With PipeOptions.Lazy kernels must not use them before
// [Pipes.Open].
type Pipes struct {
	options     PipeOptions
	size        pipe.Size // of options.Size
	open        bool      // the caller leaves the bytes of slots to defaults
	sems        semaphores
	own         *gpu.Buffer           // memory of the pipes' own, or nil
	common      *pipe.Pool            // the communicator's, with Shared, else nil
	taken       span                  // of common
	pool        *registeredmem.Memory // with the ends of this rank, or nil where it has none
	buffer      *registeredmem.Memory // options.Buffer, or nil
	ends        []*pipeEnd
	room        serviceRoom // for the ends in the service
	connections []*connection.Connection
	handles     table
	set         layout.PipeSet
	lazy        *lazyPipes // of PipeOptions.Lazy, else nil
	closing     sync.Mutex
}

// pipeEnd is an end of this rank.
type pipeEnd struct {
	peer, i int // pipe i to or from the peer
	sends   bool
	port    bool
	offset  uint64       // in the pool
	dial    dial         // by a port
	waits   *waitingPort // for the service to have it, or nil
	pipe    *pipe.Pipe
}

// waitingPort is what an end by a port will be once its peer's part is known to have worked: what a service
// has it keeps, so that it would be full of what closed.
type waitingPort struct {
	semaphore *semaphore.Host2Device
	config    pipe.Config
}

// Pipes makes pipes from ranks to ranks. Where both map each other's memory, the threads of
// kernels write to the receiver's memory; else, or with PipeOptions.Ports, the hosts move
// the bytes, and kernels are the same. When it returns, kernels may use the pipes, unless they are
// lazy. The pool, the buffer and the service remain the caller's, and must outlive the pipes.
// Collective: ranks without pipes call it too. After an error of this rank's context or of [Options].Timeout
// others may have the pipes: then the ends of this rank, and the pool and the buffer, must stay until the
// communicator is closed.
//
// Errors: ErrInvalid for ranks outside the group or named twice, a wrong size, a pool that
// is too small, a service that is lacking, and when the ends of a pipe differ, naming both
// ranks; as for [Communicator.Share].
func (c *Communicator) Pipes(ctx context.Context, o PipeOptions) (*Pipes, error) {
	op := fmt.Sprintf("communicator: make pipes to ranks %v and from %v", o.To, o.From)
	if err := c.usable(op); err != nil {
		return nil, err
	}
	p := newPipes(c, o)
	p.sems.perPeer, p.sems.name = 2*p.options.PerPeer, p.options.Name
	k := c.begin("make pipes", op)
	defer p.closeEndpoints()
	defer p.unreserve()
	prepare := func() ([]byte, error) { return p.prepare(op) }
	connect := func(all [][]byte) error { return p.connect(ctx, k, all) }
	if err := k.made(ctx, prepare, connect, p.show, p.Close); err != nil {
		return nil, err
	}
	return p, nil
}

// newPipes returns pipes that are not made yet. The ranks are copied, as the caller may write to its slices
// before Open.
func newPipes(c *Communicator, o PipeOptions) *Pipes {
	o.To, o.From = slices.Clone(o.To), slices.Clone(o.From)
	o = o.withDefaults()
	size := pipe.Size{Slots: o.Size.Slots, SlotBytes: o.Size.SlotBytes}
	if o.Shared && size.Slots == 0 {
		size.Slots = sharedSlots
	}
	return &Pipes{options: o, size: size.OrDefault(), room: o.Service.Internal().Room(), open: o.Size.SlotBytes == 0, sems: semaphores{c: c}}
}

// PipeBytes returns the bytes of the pool that this rank needs for the pipes of the options.
// The options need not name a pool. With Shared it returns the bytes that the pipes would take now
// of the communicator's pool, which it does not make. Pipes use less if another rank's ends make
// slots smaller.
//
// Errors: ErrInvalid for options that are wrong on this rank alone.
func (c *Communicator) PipeBytes(o PipeOptions) (uint64, error) {
	const op = "communicator: size of pipes"
	p := newPipes(c, o)
	if err := p.check(op); err != nil {
		return 0, err
	}
	if err := p.fit(op); err != nil {
		return 0, err
	}
	return p.lay(op)
}

// check returns the error of options that are wrong on this rank.
func (p *Pipes) check(op string) error {
	c, o := p.sems.c, &p.options
	if o.PerPeer < 0 || o.PerPeer > maxPerPeer/2 {
		return c.invalid(op, "%d pipes for each peer, 1 to %d are allowed", o.PerPeer, maxPerPeer/2)
	}
	for what, ranks := range map[string][]int{"To": o.To, "From": o.From} {
		sorted := slices.Sorted(slices.Values(ranks))
		if len(slices.Compact(slices.Clone(sorted))) != len(ranks) || len(sorted) > 0 && (sorted[0] < 0 || sorted[len(sorted)-1] >= c.Size()) {
			return c.invalid(op, "the ranks of %s, %v, are not distinct ranks of a group of %d", what, ranks, c.Size())
		}
	}
	if o.Shared && o.Pool != nil {
		return c.invalid(op, "shared pipes lie in the communicator's memory, and a pool is given")
	}
	if err := p.size.Check(); err != nil {
		return err
	}
	for _, ranks := range [][]int{o.To, o.From} {
		for _, peer := range ranks {
			switch {
			case !p.byPort(peer):
			case o.Service != nil:
				if err := c.checkService(op, o.Service); err != nil {
					return err
				}
			case o.Ports:
				return c.invalid(op, "pipes by ports need a service")
			default:
				return mscclgo.Errorf(mscclgo.ErrInvalid, op, "its memory is not mapped here, so that pipes to or from it need a service").At(c.Rank(), peer)
			}
		}
	}
	return nil
}

// byPort reports whether hosts move the messages of pipes to and from a peer.
func (p *Pipes) byPort(peer int) bool {
	return p.options.Ports || p.sems.c.links[peer] != registeredmem.CudaIPC
}

// lay gives the ends of this rank their places, and returns the bytes that they take, or the error of
// more than can be counted: thousands of ends of the largest size.
func (p *Pipes) lay(op string) (uint64, error) {
	o, at := &p.options, uint64(0)
	p.ends = nil
	for _, side := range []struct {
		sends bool
		ranks []int
	}{{true, o.To}, {false, o.From}} {
		for i := range o.PerPeer {
			for _, peer := range side.ranks {
				e := &pipeEnd{peer: peer, i: i, sends: side.sends, port: p.byPort(peer), offset: o.PoolOffset + at}
				p.ends = append(p.ends, e)
				var over uint64
				if at, over = bits.Add64(at, p.endBytes(e.sends, e.port), 0); over != 0 {
					return 0, p.sems.c.invalid(op, "%d pipes for each peer with %d slots of %d bytes need more memory than there can be", o.PerPeer, p.size.Slots, p.size.SlotBytes)
				}
			}
		}
	}
	return at, nil
}

// share takes memory of the communicator's for the ends, which it makes if there is none, and moves them there.
func (p *Pipes) share(op string, bytes uint64) (err error) {
	c := p.sems.c
	if len(p.ends) == 0 {
		return nil
	}
	if p.common, err = c.pipes.get(op); err != nil {
		return err
	}
	if p.taken, err = c.pipes.take(op, len(p.ends), bytes); err != nil {
		return err
	}
	for _, e := range p.ends {
		e.offset += p.taken.offset
	}
	p.pool = p.common.Memory()
	return nil
}

// prepare allocates what this rank has of its ends, unless they are lazy, and returns the offer of it.
func (p *Pipes) prepare(op string) ([]byte, error) {
	c, o := p.sems.c, &p.options
	if err := p.check(op); err != nil {
		return nil, err
	}
	if o.Pool == nil {
		o.PoolOffset = 0
	}
	if err := p.fit(op); err != nil {
		return nil, err
	}
	bytes, err := p.lay(op)
	if err != nil {
		return nil, err
	}
	offer := pipeOffer{size: p.size, open: p.open, shared: o.Shared, lazy: o.Lazy, lots: p.lots(), perPeer: o.PerPeer, ports: o.Ports}
	if !o.Lazy {
		if err := p.allocate(op, bytes); err != nil {
			return nil, err
		}
		if offer.semaphores, err = p.sems.take(); err != nil {
			return nil, err
		}
		if offer.pool, err = describe(p.pool); err != nil {
			return nil, err
		}
		if offer.buffer, err = describe(p.buffer); err != nil {
			return nil, err
		}
		if err := p.keep(); err != nil {
			return nil, err
		}
	}
	for _, e := range p.ends {
		one := offeredEnd{peer: e.peer, sends: e.sends, i: e.i}
		if !o.Lazy {
			one.offset = e.offset
		}
		if e.port && !o.Lazy {
			e.dial.rank = e.peer
			if e.dial.endpoint, err = c.endpoint(e.peer); err != nil {
				return nil, err
			}
			if one.endpoint, err = e.dial.endpoint.MarshalBinary(); err != nil {
				return nil, err
			}
			// While all ranks wait for each other's offers: none would come to a peer that waits to connect.
			if err = p.room.Semaphore(); err != nil {
				return nil, err
			}
		}
		offer.ends = append(offer.ends, one)
	}
	return pipeOfferWire.Marshal(&offer), nil
}

// allocate takes or allocates the memory of this rank's ends, and has it and the buffer registered.
func (p *Pipes) allocate(op string, bytes uint64) (err error) {
	c, o := p.sems.c, &p.options
	pool := o.Pool
	switch {
	case o.Shared:
		if err := p.share(op, bytes); err != nil {
			return err
		}
	case pool == nil && bytes > 0:
		if p.own, err = c.dev.Alloc(bytes); err != nil {
			return err
		}
		pool = p.own
	case pool == nil:
	case o.PoolOffset%pipe.Align != 0:
		return c.invalid(op, "the pool's offset, %d, is not a multiple of %d", o.PoolOffset, pipe.Align)
	case o.PoolOffset > pool.Size() || bytes > pool.Size()-o.PoolOffset:
		return c.invalid(op, "the pool is too small: %d ends need %d bytes from offset %d on, and it has %d", len(p.ends), bytes, o.PoolOffset, pool.Size())
	}
	if pool != nil {
		if p.pool, err = p.sems.register(pool); err != nil {
			return err
		}
	}
	if o.Buffer != nil && p.buffer == nil {
		p.buffer, err = p.sems.register(o.Buffer)
	}
	return err
}

// keep has the service keep room for the memories of ends by a port: this rank's, and each peer's pool and buffer,
// which are not known yet.
func (p *Pipes) keep() error {
	peers := map[int]bool{}
	for _, e := range p.ends {
		if e.port && e.peer != p.sems.c.Rank() {
			peers[e.peer] = true
		}
	}
	if !slices.ContainsFunc(p.ends, func(e *pipeEnd) bool { return e.port }) {
		return nil
	}
	return p.room.Memories([]*registeredmem.Memory{p.pool, p.buffer}, 2*len(peers))
}

// describe returns the description of a memory, empty for nil.
func describe(m *registeredmem.Memory) ([]byte, error) {
	if m == nil {
		return nil, nil
	}
	return m.MarshalBinary()
}

// pipePeer is what this rank knows of a peer.
type pipePeer struct {
	offer        *pipeOffer
	semaphores   []peerSemaphore
	pool, buffer *registeredmem.Memory // imported, or nil
}

// compare returns an error if a rank's offer does not go with this rank's ends. theirs is the size of its
// pipes.
func (p *Pipes) compare(k *call, rank int, offer *pipeOffer, theirs pipe.Size) error {
	c, o := p.sems.c, &p.options
	invalid := func(format string, args ...any) error { return k.errorf(mscclgo.ErrInvalid, rank, format, args...) }
	to, from := slices.Contains(o.To, rank), slices.Contains(o.From, rank)
	sends := slices.ContainsFunc(offer.ends, func(e offeredEnd) bool { return e.sends && e.peer == c.Rank() })
	receives := slices.ContainsFunc(offer.ends, func(e offeredEnd) bool { return !e.sends && e.peer == c.Rank() })
	switch {
	case to && !receives:
		return invalid("this rank sends to it, but is not in its From")
	case from && !sends:
		return invalid("this rank receives from it, but is not in its To")
	case receives && !to:
		return invalid("it receives from this rank, but is not in this rank's To")
	case sends && !from:
		return invalid("it sends to this rank, but is not in this rank's From")
	case !to && !from:
		return nil
	case theirs != p.size:
		return invalid("its pipes have %d slots of %d bytes, this rank's %d of %d", theirs.Slots, theirs.SlotBytes, p.size.Slots, p.size.SlotBytes)
	case offer.perPeer != o.PerPeer:
		return invalid("its PerPeer is %d, this rank's %d", offer.perPeer, o.PerPeer)
	case offer.shared != o.Shared:
		return invalid("its Shared is %v, this rank's %v", offer.shared, o.Shared)
	case offer.lazy != o.Lazy:
		return invalid("its Lazy is %v, this rank's %v", offer.lazy, o.Lazy)
	case offer.lots != p.lots():
		return invalid("lots of its memory for shared pipes have %d bytes and lend %d slots at most, this rank's %d and %d; use one version of the library on all ranks", offer.lots.bytes, offer.lots.slots, p.lots().bytes, p.lots().slots)
	case offer.ports != o.Ports:
		return invalid("its Ports is %v, this rank's %v", offer.ports, o.Ports)
	}
	for _, e := range p.ends {
		if e.peer == rank && offer.end(c.Rank(), !e.sends, e.i) == nil {
			return k.errorf(mscclgo.ErrRemote, rank, "its offer lacks pipe %d", e.i)
		}
	}
	return nil
}

// accept imports what a peer has offered.
func (p *Pipes) accept(ctx context.Context, k *call, rank int, offer *pipeOffer) (*pipePeer, error) {
	c := p.sems.c
	var err error
	peer := &pipePeer{offer: offer}
	if peer.semaphores, err = p.sems.accept(ctx, k.op, rank, offer.semaphores); err != nil {
		return nil, err
	}
	if rank == c.Rank() {
		peer.pool, peer.buffer = p.pool, p.buffer
		return peer, nil
	}
	if p.options.Shared {
		peer.pool, err = c.pipes.peer(ctx, k.op, rank, offer.pool)
	} else {
		peer.pool, err = p.imported(ctx, offer.pool)
	}
	if err != nil {
		return nil, err
	}
	if len(offer.buffer) > 0 {
		peer.buffer, err = p.imported(ctx, offer.buffer)
	}
	return peer, err
}

// imported imports a peer's memory for these pipes.
func (p *Pipes) imported(ctx context.Context, description []byte) (*registeredmem.Memory, error) {
	m, err := p.sems.c.registry.Import(ctx, description)
	if err == nil {
		p.sems.memories = append(p.sems.memories, m)
	}
	return m, err
}

// connect makes this rank's ends and copies their handles to device memory, but for handles that wait for the
// service.
func (p *Pipes) connect(ctx context.Context, k *call, all [][]byte) error {
	c, o := p.sems.c, &p.options
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	offers := make([]*pipeOffer, len(all))
	for rank, b := range all {
		var err error
		if offers[rank], err = decodePipeOffer(b, c.Size()); err != nil {
			return k.errorf(mscclgo.ErrRemote, rank, "its offer is malformed: %w", err)
		}
	}
	least := leastSlot(offers)
	p.size = offers[c.Rank()].agreed(least)
	for rank, offer := range offers {
		if err := p.compare(k, rank, offer, offer.agreed(least)); err != nil {
			p.connectInVain(ctx, k, offers)
			return err
		}
	}
	values := make([]layout.Pipe, len(p.ends))
	if o.Lazy {
		if err := p.leaveClosed(values); err != nil {
			return err
		}
	} else {
		if err := p.makeEnds(ctx, k, offers); err != nil {
			p.connectInVain(ctx, k, offers)
			return err
		}
		for at, e := range p.ends {
			if e.waits == nil {
				values[at] = e.pipe.Handle()
			}
		}
	}
	p.set = layout.PipeSet{
		Outs: uint32(len(o.To)), Ins: uint32(len(o.From)), PerPeer: uint32(o.PerPeer), Watch: layout.Watch(c.watch(c.Rank(), groupChannel)),
	}
	if len(values) == 0 {
		return nil
	}
	if err := store(&p.handles, c.private, values); err != nil {
		return err
	}
	p.set.Out = p.handles.memory.Ptr()
	p.set.In = p.set.Out + gpu.Ptr(sizeIn[layout.Pipe](len(o.To)*o.PerPeer))
	return nil
}

// connectInVain makes the connections that peers may wait for, of a rank whose part has failed.
func (p *Pipes) connectInVain(ctx context.Context, k *call, offers []*pipeOffer) {
	var dials []dial
	for _, e := range p.ends {
		if other := offers[e.peer].end(p.sems.c.Rank(), !e.sends, e.i); e.dial.endpoint != nil && other != nil {
			e.dial.remote = other.endpoint
			dials = append(dials, e.dial)
		}
	}
	p.connections = append(p.connections, p.sems.c.connectInVain(ctx, k, dials)...)
}

// makeEnds makes this rank's ends, by the offers of the ranks that they go to or come from.
func (p *Pipes) makeEnds(ctx context.Context, k *call, offers []*pipeOffer) error {
	if p.common != nil {
		p.size.LotSlots = p.common.LotSlots(p.size.Slots, p.size.SlotBytes)
	}
	peers := map[int]*pipePeer{}
	for _, e := range p.ends {
		if peers[e.peer] == nil {
			peer, err := p.accept(ctx, k, e.peer, offers[e.peer])
			if err != nil {
				return err
			}
			peers[e.peer] = peer
		}
		if err := p.end(ctx, k, e, peers[e.peer]); err != nil {
			return err
		}
	}
	return nil
}

// indices returns the numbers of this end's semaphore among this rank's, and of the peer's
// among the peer's: the same, but where both are this rank's.
func (p *Pipes) indices(e *pipeEnd) (own, theirs int) {
	rank, n := p.sems.c.Rank(), p.options.PerPeer
	up := e.sends == (rank < e.peer) // from the lower rank to the higher
	if rank == e.peer {
		up = e.sends
	}
	own, theirs = e.i, e.i
	if !up {
		own, theirs = own+n, theirs+n
	}
	if rank == e.peer {
		theirs = (own + n) % (2 * n)
	}
	return own, theirs
}

// end makes one end.
func (p *Pipes) end(ctx context.Context, k *call, e *pipeEnd, peer *pipePeer) error {
	c := p.sems.c
	other := peer.offer.end(c.Rank(), !e.sends, e.i)
	config := pipe.Config{
		Size: p.size, Sends: e.sends,
		Own:    pipe.End{Memory: p.pool, Offset: e.offset},
		Peer:   pipe.End{Memory: peer.pool, Offset: other.offset},
		Buffer: p.buffer, Pool: p.common,
	}
	if e.sends {
		config.Buffer, config.Source = peer.buffer, p.buffer
	}
	own, theirs := p.indices(e)
	to := peer.semaphores[theirs]
	if !e.port {
		s, err := p.sems.byThreads(own, e.i, e.peer, to)
		if err != nil {
			return err
		}
		e.pipe, err = pipe.NewByThreads(s, config)
		return err
	}
	e.dial.remote = other.endpoint
	conn, err := c.dial(ctx, k, &e.dial)
	if err != nil {
		return err
	}
	p.connections = append(p.connections, conn)
	s, err := p.sems.byHost(conn, own, e.i, e.peer, to)
	if err != nil {
		return err
	}
	if err := config.PreparePort(); err != nil {
		return err
	}
	e.waits = &waitingPort{s, config}
	return nil
}

// serve has the service serve the ends that wait for it.
func (p *Pipes) serve() error {
	for _, e := range p.ends {
		w := e.waits
		if w == nil {
			continue
		}
		e.waits = nil
		memories := []*registeredmem.Memory{w.config.Peer.Memory, w.config.Own.Memory}
		if w.config.Sends {
			memories = append(memories, w.config.Buffer, w.config.Source)
		}
		err := p.room.Add(w.semaphore, memories)
		if err != nil {
			return err
		}
		if e.pipe, err = pipe.NewByPort(p.options.Service, w.semaphore, w.config); err != nil {
			return err
		}
	}
	return nil
}

// show has the service serve the ends that wait for it, and copies their handles to device memory.
func (p *Pipes) show() error {
	if !slices.ContainsFunc(p.ends, func(e *pipeEnd) bool { return e.waits != nil }) {
		return nil
	}
	if err := p.serve(); err != nil {
		return err
	}
	values := make([]layout.Pipe, len(p.ends))
	for at, e := range p.ends {
		values[at] = e.pipe.Handle()
	}
	return gpu.CopyIn(p.handles.memory, values)
}

// unreserve leaves the service's room for ends that it does not serve to others.
func (p *Pipes) unreserve() {
	p.room.Leave()
	for _, e := range p.ends {
		e.waits = nil
	}
}

// Set returns the pipes for a kernel, which takes a PipeSet of <mscclgo/pipe.cuh> by value.
// It is valid until Close.
func (p *Pipes) Set() devicecode.PipeSet { return layout.Handle[devicecode.PipeSet](p.set) }

// closeEndpoints closes the endpoints that were made to connect.
func (p *Pipes) closeEndpoints() {
	for _, e := range p.ends {
		if e.dial.endpoint != nil {
			e.dial.endpoint.Close()
			e.dial.endpoint = nil
		}
	}
}

// made reports whether Communicator.Pipes made the pipes.
func (p *Pipes) made() bool { return p != nil && p.sems.c != nil }

// Close closes the connections and frees the pipes' memory, with what messages borrowed that were posted and
// not received. No kernel of any rank may use
// the pipes any longer. The services that move their messages must be closed before, on all
// ranks, so with a Barrier between: when kernels have ended, a receiver's service may still
// have to tell the sender that slots are free. Close may be called twice, and does nothing
// on nil.
func (p *Pipes) Close() error {
	if !p.made() {
		return nil
	}
	p.closing.Lock()
	defer p.closing.Unlock()
	errs := []error{p.lazy.close()}
	for _, conn := range p.connections {
		errs = append(errs, conn.Close())
	}
	for _, e := range p.ends {
		errs = append(errs, e.pipe.Close())
	}
	errs = append(errs, p.sems.close(), p.own.Close())
	if p.taken.size > 0 {
		p.sems.c.pipes.give(p.taken)
	}
	p.handles.free(p.sems.c.private)
	p.connections, p.own, p.taken = nil, nil, span{}
	return errors.Join(errs...)
}
