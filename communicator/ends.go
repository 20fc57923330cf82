package communicator

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// endBytes is the device memory of one end of a semaphore of either kind.
const endBytes = semaphore.Device2DeviceBytes

var _ [endBytes]byte = [semaphore.Host2DeviceBytes]byte{}

// ends are the semaphore memory of this rank's ends of channels to all ranks,
// and what it mapped of the peers'.
type ends struct {
	c        *Communicator
	perPeer  int
	words    []piece                 // channel i to rank r is words[i * Size + r]
	memories []*registeredmem.Memory // imported or registered for these channels alone
}

// peerEnd is where the peer's end of a channel has its words.
type peerEnd struct {
	slab   *registeredmem.Memory
	offset uint64
}

// take takes memory for this rank's ends and describes where each peer's
// signals go.
func (e *ends) take() ([]byte, error) {
	for range e.perPeer * e.c.Size() {
		p, err := e.c.shared.take(endBytes)
		if err != nil {
			return nil, err
		}
		e.words = append(e.words, p)
	}
	o, err := newOffer(e.perPeer, e.words)
	if err != nil {
		return nil, err
	}
	return o.encode(), nil
}

// own gives the memory of this rank's end of channel i to a rank.
func (e *ends) own(i, rank int) (*gpu.Buffer, error) {
	return e.words[i*e.c.Size()+rank].buffer(endBytes)
}

// accept reads a peer's offer, maps the slabs it names, and gives where its ends
// of the channels to this rank are, by channel number.
func (e *ends) accept(ctx context.Context, op string, rank int, b []byte) ([]peerEnd, error) {
	c := e.c
	o, err := decodeOffer(b, c.Size())
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its offer is malformed: %w", err).At(c.Rank(), rank)
	}
	if o.perPeer != e.perPeer {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "it makes %d channels a peer, this rank %d", o.perPeer, e.perPeer).At(c.Rank(), rank)
	}
	slabs := map[uint32]*registeredmem.Memory{}
	theirs := make([]peerEnd, e.perPeer)
	for i := range e.perPeer {
		p := o.places[i*c.Size()+c.Rank()]
		slab := slabs[p.slab]
		if slab == nil {
			if slab, err = c.registry.Import(ctx, o.slabs[p.slab]); err != nil {
				return nil, err
			}
			e.memories = append(e.memories, slab)
			slabs[p.slab] = slab
		}
		if p.offset > slab.Size() || slab.Size()-p.offset < endBytes {
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its offer has a semaphore at offset %d of %d bytes", p.offset, slab.Size()).At(c.Rank(), rank)
		}
		theirs[i] = peerEnd{slab, p.offset}
	}
	return theirs, nil
}

// register makes a buffer of this rank's a memory for these channels alone.
func (e *ends) register(b *gpu.Buffer) (*registeredmem.Memory, error) {
	m, err := e.c.registry.Register(b)
	if err == nil {
		e.memories = append(e.memories, m)
	}
	return m, err
}

// close gives everything back. It is safe to call twice.
func (e *ends) close() error {
	var errs []error
	for _, m := range e.memories {
		errs = append(errs, m.Close())
	}
	for _, p := range e.words {
		e.c.shared.give(p)
	}
	e.memories, e.words = nil, nil
	return errors.Join(errs...)
}

// handles gives device memory with the handles of channels, the caller's to give
// back.
func handles[T any](c *Communicator, values []T) (piece, *gpu.Buffer, error) {
	size := sizeIn[T](len(values))
	p, err := c.private.take(size)
	if err != nil {
		return piece{}, nil, err
	}
	b, err := p.buffer(size)
	if err == nil {
		err = gpu.CopyIn(b, values)
	}
	if err != nil {
		c.private.give(p)
		return piece{}, nil, err
	}
	return p, b, nil
}
