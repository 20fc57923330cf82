package communicator

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// pipeOffer describes one rank's ends of pipes to the peers.
type pipeOffer struct {
	size         pipe.Size
	open         bool // the bytes of slots may be less
	shared       bool
	lazy         bool // nothing is there yet: ends have no place and no endpoint
	lots         lotSize
	perPeer      int
	ports        bool
	pool, buffer []byte       `wire:"4096"` // descriptions of registered memory, or empty
	semaphores   []byte       // an offer
	ends         []offeredEnd `wire:"1048576"`
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
	endpoint []byte `wire:"4096"` // empty without a port
}

var pipeOfferWire = wire.For[pipeOffer]()

// decodePipeOffer decodes an offer in a group of the given size. Its ranges are checked when
// pipes are made of it.
func decodePipeOffer(b []byte, ranks int) (*pipeOffer, error) {
	o, err := pipeOfferWire.Unmarshal(b)
	o.size.LotSlots = 0 // see lots
	if err == nil {
		err = o.checkOpen()
	}
	for _, e := range o.ends {
		if err == nil && e.peer >= ranks {
			err = fmt.Errorf("a pipe to or from rank %d of %d", e.peer, ranks)
		}
	}
	return &o, err
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
