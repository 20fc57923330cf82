package communicator

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/pipe"
)

const (
	// wholeSlotRanks is the size of the largest group whose pipes have slots of
	// pipe.DefaultSlotBytes by default, however many pipes there are.
	wholeSlotRanks = 8
	// mostPipeBytes is what the ends of a rank of a larger group take at most by default.
	mostPipeBytes = 64 << 20
)

// fit sets the bytes of slots, where the caller leaves them open, by the ends that this rank has. All ranks
// then use the least of what each has room for; see leastSlot.
func (p *Pipes) fit(op string) error {
	c, size := p.sems.c, &p.size
	least, most := uint64(pipe.Align), uint64(mostPipeBytes)
	if p.options.Shared {
		room, err := c.pipes.room(op)
		if err != nil {
			return err
		}
		if size.Slots <= pipe.MaxLot {
			size.LotSlots = pipe.MaxLot // at most; connect knows how many
		}
		least, most = leastSharedSlot, room
	} else if c.Size() <= wholeSlotRanks {
		return nil
	}
	for p.open && size.SlotBytes > least && p.bytes() > most {
		size.SlotBytes /= 2
	}
	return nil
}

// bytes returns the bytes that this rank's ends take with slots of pipe.DefaultSlotBytes at most,
// which can be counted.
func (p *Pipes) bytes() (all uint64) {
	o := &p.options
	for _, peer := range o.To {
		all += uint64(o.PerPeer) * p.endBytes(true, p.byPort(peer))
	}
	return all + uint64(o.PerPeer*len(o.From))*p.size.Bytes()
}

// endBytes returns the bytes of an end.
func (p *Pipes) endBytes(sends, port bool) uint64 {
	if sends && !port {
		return p.size.ControlBytes()
	}
	return p.size.Bytes()
}

// leastSlot returns the least bytes of slots that a rank has offered which leaves them open. All such ranks
// use it: an end has room for what its rank has offered, or less. It is 0 where there are none.
func leastSlot(offers []*pipeOffer) (least uint64) {
	for _, o := range offers {
		if o.open && (least == 0 || o.size.SlotBytes < least) {
			least = o.size.SlotBytes
		}
	}
	return least
}

// agreed returns the size of a rank's pipes. Slots whose size is left open have so many bytes.
func (o *pipeOffer) agreed(least uint64) pipe.Size {
	size := o.size
	if o.open {
		size.SlotBytes = least
	}
	return size
}

// checkOpen returns the error of an offer that leaves the bytes of slots open, and has a size that this
// rank's pipes cannot have.
func (o *pipeOffer) checkOpen() error {
	switch {
	case !o.open:
		return nil
	case o.size.SlotBytes == 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: size of a pipe", "slots of no bytes")
	}
	return o.size.Check()
}
