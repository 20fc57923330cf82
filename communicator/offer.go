package communicator

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/semaphore"
)

// offer describes to the peers where their signals to a rank go: the slabs that
// hold its semaphores, and where in them each channel's semaphore is.
type offer struct {
	perPeer int
	slabs   [][]byte // descriptions of registered memory
	places  []place  // perPeer times the ranks, in the order of the handles
}

// place is where a semaphore is.
type place struct {
	slab   uint32 // index into offer.slabs
	offset uint64 // bytes
}

// maxDescription bounds the description of a slab, in bytes.
const maxDescription = 4096

// newOffer returns the offer of semaphores in an arena.
func newOffer(perPeer int, words []piece) (*offer, error) {
	o := &offer{perPeer: perPeer}
	index := map[*slab]uint32{}
	for _, p := range words {
		i, ok := index[p.slab]
		if !ok {
			description, err := p.slab.mem.MarshalBinary()
			if err != nil {
				return nil, err
			}
			i = uint32(len(o.slabs))
			index[p.slab] = i
			o.slabs = append(o.slabs, description)
		}
		o.places = append(o.places, place{i, p.offset})
	}
	return o, nil
}

func (o *offer) encode() []byte {
	w := wire.NewWriter(64 + 12*len(o.places))
	w.U32(uint32(o.perPeer))
	w.U32(uint32(len(o.slabs)))
	for _, s := range o.slabs {
		w.Blob(s)
	}
	for _, p := range o.places {
		w.U32(p.slab)
		w.U64(p.offset)
	}
	return w.Bytes()
}

// decodeOffer decodes an offer in a group of the given size. The result is
// consistent except for the offsets, which are checked when the slabs are mapped.
func decodeOffer(b []byte, ranks int) (*offer, error) {
	r := wire.NewReader(b)
	o := &offer{perPeer: int(r.U32())}
	if o.perPeer < 1 || o.perPeer > maxPerPeer {
		r.Fail(fmt.Errorf("%d channels for each peer, 1 to %d are allowed", o.perPeer, maxPerPeer))
	}
	slabs, words := r.U32(), o.perPeer*ranks
	if r.Err() == nil && int(slabs) > words {
		r.Fail(fmt.Errorf("%d slabs for the semaphores of %d channels", slabs, words))
	}
	for range slabs {
		o.slabs = append(o.slabs, r.Blob(maxDescription))
		if r.Err() != nil {
			return nil, r.Err()
		}
	}
	for range words {
		p := place{r.U32(), r.U64()}
		if r.Err() == nil && int(p.slab) >= len(o.slabs) {
			r.Fail(fmt.Errorf("a semaphore in slab %d of %d", p.slab, len(o.slabs)))
		}
		if r.Err() == nil && p.offset%semaphore.Device2DeviceBytes != 0 {
			r.Fail(fmt.Errorf("a semaphore at offset %d, not a multiple of %d", p.offset, semaphore.Device2DeviceBytes))
		}
		if r.Err() != nil {
			return nil, r.Err()
		}
		o.places = append(o.places, p)
	}
	return o, r.End()
}
