package communicator

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// semaphoreBytes is the device memory of one end of a semaphore of either kind.
const semaphoreBytes = semaphore.Device2DeviceBytes

var _ [semaphoreBytes]byte = [semaphore.Host2DeviceBytes]byte{}

// semaphores is the memory of this rank's ends of the semaphores of channels to all
// ranks, or to one, and what it has mapped of the peers'.
type semaphores struct {
	c        *Communicator
	perPeer  int
	pair     bool                    // the channels join two ranks alone
	own      []piece                 // of channel i to rank r: own[index(i, r)]
	memories []*registeredmem.Memory // imported or registered for these channels only
	name     string                  // of the channels, or ""
	numbers  []uint32                // of the channels that Communicator.named has
	call     uint64                  // that makes them, the same on all ranks
}

// peerSemaphore is the peer's end of a channel's semaphore.
type peerSemaphore struct {
	slab   *registeredmem.Memory
	offset uint64
}

// ranks returns to how many ranks there are channels.
func (s *semaphores) ranks() int {
	if s.pair {
		return 1
	}
	return s.c.Size()
}

// index returns where channel i to a rank is, in own and in an offer.
func (s *semaphores) index(i, rank int) int {
	if s.pair {
		return i
	}
	return i*s.c.Size() + rank
}

// called notes the collective call that makes the channels.
func (s *semaphores) called() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.call = s.c.begun
}

// take allocates this rank's ends and returns the offer that describes them.
func (s *semaphores) take() ([]byte, error) {
	if !s.pair {
		s.called()
	}
	for range s.perPeer * s.ranks() {
		p, err := s.c.shared.alloc(semaphoreBytes)
		if err != nil {
			return nil, err
		}
		s.own = append(s.own, p)
	}
	o, err := newOffer(s.perPeer, s.own)
	if err != nil {
		return nil, err
	}
	return offerWire.Marshal(o), nil
}

// buffer returns the memory of this rank's end of channel i to a rank.
func (s *semaphores) buffer(i, rank int) (*gpu.Buffer, error) {
	return s.own[s.index(i, rank)].buffer(semaphoreBytes)
}

// byThreads returns the semaphore of channel i to a rank, whose end is mapped. It is for the blocks of a number; see number.
func (s *semaphores) byThreads(i, block, rank int, to peerSemaphore) (*semaphore.Device2Device, error) {
	words, err := s.buffer(i, rank)
	if err != nil {
		return nil, err
	}
	signalled, err := to.slab.Buffer().Slice(to.offset, semaphoreBytes)
	if err != nil {
		return nil, err
	}
	return semaphore.NewDevice2Device(words, signalled, s.c.watch(rank, s.number(i, block)))
}

// byHost is byThreads where a connection leads to the rank.
func (s *semaphores) byHost(conn *connection.Connection, i, block, rank int, to peerSemaphore) (*semaphore.Host2Device, error) {
	words, err := s.buffer(i, rank)
	if err != nil {
		return nil, err
	}
	return semaphore.NewHost2Device(conn, words, to.slab, to.offset, s.c.watch(rank, s.number(i, block)))
}

// accept decodes a peer's offer, imports the slabs that it names, and returns the
// peer's ends of the channels to this rank, by channel number.
func (s *semaphores) accept(ctx context.Context, op string, rank int, b []byte) ([]peerSemaphore, error) {
	o, err := s.decode(op, rank, b)
	if err != nil {
		return nil, err
	}
	return s.imported(ctx, op, rank, o)
}

// decode decodes a peer's offer.
func (s *semaphores) decode(op string, rank int, b []byte) (*offer, error) {
	o, err := decodeOffer(b, s.ranks())
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its offer is malformed: %w", err).At(s.c.Rank(), rank)
	}
	if o.perPeer != s.perPeer {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "its PerPeer is %d, this rank's %d", o.perPeer, s.perPeer).At(s.c.Rank(), rank)
	}
	return o, nil
}

// imported imports the slabs that a peer's offer names, and returns the peer's ends of the
// channels to this rank, by channel number.
func (s *semaphores) imported(ctx context.Context, op string, rank int, o *offer) (_ []peerSemaphore, err error) {
	c := s.c
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	slabs := map[uint32]*registeredmem.Memory{}
	theirs := make([]peerSemaphore, s.perPeer)
	for i := range s.perPeer {
		p := o.places[s.index(i, c.Rank())]
		slab := slabs[p.slab]
		if slab == nil {
			if slab, err = c.registry.Import(ctx, o.slabs[p.slab].bytes); err != nil {
				return nil, err
			}
			s.memories = append(s.memories, slab)
			slabs[p.slab] = slab
		}
		if p.offset > slab.Size() || slab.Size()-p.offset < semaphoreBytes {
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its offer has a semaphore at offset %d of %d bytes", p.offset, slab.Size()).At(c.Rank(), rank)
		}
		theirs[i] = peerSemaphore{slab, p.offset}
	}
	return theirs, nil
}

// register registers a buffer of this rank for these channels only.
func (s *semaphores) register(b *gpu.Buffer) (*registeredmem.Memory, error) {
	m, err := s.c.registry.Register(b)
	if err == nil {
		s.memories = append(s.memories, m)
	}
	return m, err
}

// number returns the number of the next channel, from 1, which is channel i to its peer, and
// the one for the blocks of a number where blocks have channels of their own.
func (s *semaphores) number(i, block int) uint32 {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels++
	c.tracer.channel(c.channels, s.call, i, s.name)
	if s.name != "" || block > 0 {
		if c.named == nil {
			c.named = map[uint32]channelName{}
		}
		c.named[c.channels] = channelName{s.name, block}
		s.numbers = append(s.numbers, c.channels)
	}
	return c.channels
}

// channelName is what a channel is called, and for the blocks of which number it is.
type channelName struct {
	name  string // or ""
	block int
}

// nameOf returns the name of a channel.
func (c *Communicator) nameOf(number uint32) channelName {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.named[number]
}

// channelName returns how errors name a channel.
func (c *Communicator) channelName(number uint32) string {
	return watch.Channel(number, c.nameOf(number).name)
}

// close frees everything. It may be called twice.
func (s *semaphores) close() error {
	var errs []error
	for _, m := range s.memories {
		errs = append(errs, m.Close())
	}
	for _, p := range s.own {
		s.c.shared.free(p)
	}
	s.c.mu.Lock()
	for _, n := range s.numbers {
		delete(s.c.named, n)
	}
	s.c.mu.Unlock()
	s.memories, s.own, s.numbers = nil, nil, nil
	return errors.Join(errs...)
}
