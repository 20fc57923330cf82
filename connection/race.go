package connection

import (
	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// queued tells the race finder, if there is one, that the transport reads this rank's memory or writes
// it for what is queued next.
func (c *Connection) queued(own *registeredmem.Memory, offset, n uint64, write bool) {
	if c.moves == nil {
		return
	}
	if b := own.Buffer(); b != nil {
		c.moves.Queued(uint64(b.Ptr())+offset, n, write, c.path.Asked)
	}
}

// sent tells it that something goes next to a place in the peer's memory, or is read there.
func (c *Connection) sent(theirs *registeredmem.Memory, offset uint64) {
	if c.moves != nil {
		c.moves.Sent(race.Route{From: c.rank, To: c.peer, Memory: theirs.ID(), Offset: offset}, c.path.Asked)
	}
}
