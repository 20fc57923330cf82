package communicator

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/registeredmem"
)

const (
	// sharedSlots is the number of slots of shared pipes by default: ranks of a ring that all send
	// before they receive need two.
	sharedSlots = 2
	// leastSharedSlot is the size that slots of shared pipes have at least, where their users leave it open.
	leastSharedSlot = 4 << 10
	// lotBytes is the size of a lot, alike on all ranks: four slots of pipe.DefaultSlotBytes.
	lotBytes = 4 * pipe.DefaultSlotBytes
)

// lotsOf returns how many lots a pool of so many bytes has. The other nine sixteenths are for ends: with a
// pipe from each of 256 ranks to all others, two slots of 64 KiB each.
func lotsOf(bytes uint64) int { return int(min(bytes/16*7/lotBytes, pipe.MaxLots)) }

// lots returns how this rank counts in lots, or nothing where pipes do not borrow.
func (p *Pipes) lots() lotSize {
	if !p.options.Shared {
		return lotSize{}
	}
	return lotSize{lotBytes, pipe.MaxLot}
}

// pipePool is the memory that the ends of this rank's shared pipes lie in, made and registered once, with
// the lots that long messages borrow. It keeps what it has mapped of the peers' pools.
type pipePool struct {
	c    *Communicator
	load func(ctx context.Context, description []byte) (*registeredmem.Memory, error) // the registry's Import

	mu     sync.Mutex
	buf    *gpu.Buffer // nil before its first use
	pool   *pipe.Pool
	free   spans
	peers  map[int]*peerPool
	closed bool
}

// peerPool is what is mapped of a peer's pool.
type peerPool struct {
	description []byte
	memory      *registeredmem.Memory
}

// get returns the pool, and makes it if that is not done.
func (p *pipePool) get(op string) (*pipe.Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, p.c.invalid(op, closedText)
	case p.pool != nil:
		return p.pool, nil
	}
	size := p.c.options.PipePool
	buf, err := p.c.dev.Alloc(size)
	if err != nil {
		return nil, err
	}
	memory, err := p.c.registry.Register(buf)
	if err != nil {
		return nil, errors.Join(err, buf.Close())
	}
	pool, err := pipe.NewPool(memory, lotsOf(size), lotBytes)
	if err != nil {
		return nil, errors.Join(err, memory.Close(), buf.Close())
	}
	p.c.launches.Has(uint64(buf.Ptr()), buf.Size())
	p.buf, p.pool = buf, pool
	p.free = spans{{pool.Begin(), pool.End() - pool.Begin()}}
	return pool, nil
}

// room returns how many bytes are free for ends in one piece, or will be once the pool is made.
func (p *pipePool) room(op string) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return 0, p.c.invalid(op, closedText)
	case p.pool == nil:
		size := p.c.options.PipePool
		return pipe.Room(size, lotsOf(size), lotBytes), nil
	}
	return p.free.largest(), nil
}

// take takes memory for so many ends.
func (p *pipePool) take(op string, ends int, bytes uint64) (span, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return span{}, p.c.invalid(op, closedText)
	}
	if one, ok := p.free.take(bytes); ok {
		return one, nil
	}
	return span{}, p.c.invalid(op, "the pool of shared pipes is too small: %d ends need %d bytes in one piece, and %d are free of the %d for ends; close other pipes, or raise Options.PipePool, which is %d", ends, bytes, p.free.largest(), p.pool.End()-p.pool.Begin(), p.c.options.PipePool)
}

// give gives back what take took.
func (p *pipePool) give(one span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free.give(one)
}

// peer returns a peer's pool, which is imported once. No lock is held meanwhile, as the peer may take its time.
func (p *pipePool) peer(ctx context.Context, op string, rank int, description []byte) (*registeredmem.Memory, error) {
	if m, err := p.kept(op, rank, description, nil); m != nil || err != nil {
		return m, err
	}
	m, err := p.load(ctx, description)
	if err != nil {
		return nil, err
	}
	first, err := p.kept(op, rank, description, m)
	if first != m {
		err = errors.Join(err, m.Close())
	}
	return first, err
}

// kept returns what is mapped of a peer's pool, or nil. If that is nil it keeps what was imported now, unless that is nil.
func (p *pipePool) kept(op string, rank int, description []byte, imported *registeredmem.Memory) (*registeredmem.Memory, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.c.invalid(op, closedText)
	}
	if one := p.peers[rank]; one != nil && bytes.Equal(one.description, description) {
		return one.memory, nil
	}
	if imported != nil {
		if p.peers == nil {
			p.peers = map[int]*peerPool{}
		}
		p.peers[rank] = &peerPool{description, imported}
	}
	return imported, nil
}

// close frees the memory, and what is mapped of the peers'. It may be called twice.
func (p *pipePool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, one := range p.peers {
		errs = append(errs, one.memory.Close())
	}
	if p.pool != nil {
		errs = append(errs, p.pool.Memory().Close(), p.buf.Close())
	}
	p.peers, p.pool, p.buf = nil, nil, nil
	return errors.Join(errs...)
}

// PipePool returns how the memory of this rank's shared pipes is used; see PipeOptions.Shared. All is 0 before
// its first use. Kernels may be under way. Any goroutine may call it.
//
// Errors: ErrInvalid for a closed communicator.
func (c *Communicator) PipePool() (channel.PipePoolStats, error) {
	p := c.pipes
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return channel.PipePoolStats{}, p.c.invalid("communicator: look at the pool of pipes", closedText)
	case p.pool == nil:
		return channel.PipePoolStats{}, nil
	}
	s, err := p.pool.Stats()
	if err != nil {
		return channel.PipePoolStats{}, err
	}
	s.Taken = s.ForEnds
	for _, f := range p.free {
		s.Taken -= f.size
	}
	return s, nil
}
