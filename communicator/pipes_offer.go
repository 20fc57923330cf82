package communicator

import (
	"fmt"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// pipeOffer describes one rank's ends of pipes to the peers.
type pipeOffer struct {
	size         channel.PipeSize
	open         bool // the bytes of slots may be less
	shared       bool
	lazy         bool // nothing is there yet: ends have no place and no endpoint
	lots         lotSize
	perPeer      int
	ports        bool
	pool, buffer []byte // descriptions of registered memory, or empty
	semaphores   []byte // an offer
	ends         []offeredEnd
}

// lotSize is how both ends of a pipe count in lots: alike on all ranks of one version.
type lotSize struct {
	bytes uint64
	slots int // that a message borrows at most
}

// offeredEnd is an end of a pipe.
type offeredEnd struct {
	peer, i  int
	sends    bool
	offset   uint64 // in the pool
	endpoint []byte // empty without a port
}

// maxOfferedEnds bounds the ends of one rank.
const maxOfferedEnds = 1 << 20

func (o *pipeOffer) encode() []byte {
	w := wire.NewWriter(256 + len(o.semaphores) + 32*len(o.ends))
	w.U32(uint32(o.size.Slots))
	w.U64(o.size.SlotBytes)
	w.Bool(o.open)
	w.Bool(o.shared)
	w.Bool(o.lazy)
	w.U64(o.lots.bytes)
	w.U32(uint32(o.lots.slots))
	w.U32(uint32(o.perPeer))
	w.Bool(o.ports)
	w.Blob(o.pool)
	w.Blob(o.buffer)
	w.Blob(o.semaphores)
	w.U32(uint32(len(o.ends)))
	for _, e := range o.ends {
		w.U32(uint32(e.peer))
		w.U32(uint32(e.i))
		w.Bool(e.sends)
		w.U64(e.offset)
		w.Blob(e.endpoint)
	}
	return w.Bytes()
}

// decodePipeOffer decodes an offer in a group of the given size. Its ranges are checked when
// pipes are made of it.
func decodePipeOffer(b []byte, ranks int) (*pipeOffer, error) {
	r := wire.NewReader(b)
	o := &pipeOffer{
		size: channel.PipeSize{Slots: int(r.U32()), SlotBytes: r.U64()}, open: r.Bool(), shared: r.Bool(), lazy: r.Bool(),
		lots: lotSize{bytes: r.U64(), slots: int(r.U32())}, perPeer: int(r.U32()), ports: r.Bool(),
		pool: r.Blob(maxDescription), buffer: r.Blob(maxDescription), semaphores: r.Blob(maxContribution),
	}
	n := r.U32()
	if err := o.checkOpen(); r.Err() == nil && err != nil {
		r.Fail(err)
	}
	if r.Err() == nil && n > maxOfferedEnds {
		r.Fail(fmt.Errorf("%d ends of pipes, at most %d are allowed", n, maxOfferedEnds))
	}
	for range n {
		e := offeredEnd{peer: int(r.U32()), i: int(r.U32()), sends: r.Bool(), offset: r.U64(), endpoint: r.Blob(maxDescription)}
		if r.Err() == nil && e.peer >= ranks {
			r.Fail(fmt.Errorf("a pipe to or from rank %d of %d", e.peer, ranks))
		}
		if r.Err() != nil {
			return nil, r.Err()
		}
		o.ends = append(o.ends, e)
	}
	return o, r.End()
}

// end returns the i-th end to a peer, or from it, or nil if there is none.
func (o *pipeOffer) end(peer int, sends bool, i int) *offeredEnd {
	for at := range o.ends {
		if e := &o.ends[at]; e.peer == peer && e.sends == sends && e.i == i {
			return e
		}
	}
	return nil
}
