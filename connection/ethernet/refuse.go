package ethernet

import (
	"fmt"

	"github.com/mscclgo/mscclgo/connection/internal/message"
)

// refused ends the connection because the peer refused a frame of this rank.
func (c *conn) refused(f *message.Frame) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	// A read that waits for its answer may be refused once all before it is done.
	_, waits := c.reads.awaits(f.Op)
	if f.Refused != message.Answer && (f.Op < c.acked.Load() && !(waits && f.Refused == message.Read) || f.Op >= c.Queued.Load()) {
		c.LostLocked(fmt.Errorf("it refuses operation %d of %d, of which %d are done", f.Op, c.Queued.Load(), c.acked.Load()))
		return
	}
	c.UselessLocked(c.Refused(f))
}
