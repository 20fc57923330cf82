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
	slabs   []description
	places  []place // perPeer times the ranks, in the order of the handles
}

// description describes registered memory, or an endpoint.
type description struct {
	bytes []byte `wire:"4096"`
}

// place is where a semaphore is.
type place struct {
	slab   uint32 // index into offer.slabs
	offset uint64 // bytes
}

// maxDescription bounds the description of a slab or an endpoint, in bytes.
const maxDescription = 4096

// newOffer returns the offer of semaphores in an arena.
func newOffer(perPeer int, words []piece) (*offer, error) {
	o := &offer{perPeer: perPeer}
	index := map[*slab]uint32{}
	for _, p := range words {
		i, ok := index[p.slab]
		if !ok {
			d, err := p.slab.mem.MarshalBinary()
			if err != nil {
				return nil, err
			}
			i = uint32(len(o.slabs))
			index[p.slab] = i
			o.slabs = append(o.slabs, description{d})
		}
		o.places = append(o.places, place{i, p.offset})
	}
	return o, nil
}

var offerWire = wire.For[offer]()

// decodeOffer decodes an offer in a group of the given size. The result is
// consistent except for the offsets, which are checked when the slabs are mapped.
func decodeOffer(b []byte, ranks int) (*offer, error) {
	o, err := offerWire.Unmarshal(b)
	switch words := o.perPeer * ranks; {
	case err != nil:
	case o.perPeer < 1 || o.perPeer > maxPerPeer:
		err = fmt.Errorf("%d channels for each peer, 1 to %d are allowed", o.perPeer, maxPerPeer)
	case len(o.places) != words || len(o.slabs) > words:
		err = fmt.Errorf("%d slabs and %d places for the semaphores of %d channels", len(o.slabs), len(o.places), words)
	}
	for _, p := range o.places {
		if err == nil && (int(p.slab) >= len(o.slabs) || p.offset%semaphore.Device2DeviceBytes != 0) {
			err = fmt.Errorf("a semaphore at offset %d of slab %d of %d, or not at a multiple of %d", p.offset, p.slab, len(o.slabs), semaphore.Device2DeviceBytes)
		}
	}
	return &o, err
}
