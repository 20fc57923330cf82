package communicator

import (
	"context"
	"sync"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// dial is a connection of a collective call to make.
type dial struct {
	endpoint connection.Endpoint
	remote   []byte // the bytes of the peer's
	rank     int
	tried    bool
}

// dial makes a connection.
func (c *Communicator) dial(ctx context.Context, d *dial) (*connection.Connection, error) {
	d.tried = true
	conn, err := d.endpoint.Connect(ctx, d.remote)
	if handshake.Shortage(err) {
		c.failure.fail(err) // the peers would wait for this rank, and then blame each other
	}
	return conn, err
}

// connectInVain makes the connections that higher ranks may wait for, of a rank whose part has failed.
// They would wait until their time is up, and the others for them, who then take the blame. The
// caller closes what it returns once all ranks know that the call has failed.
func (c *Communicator) connectInVain(ctx context.Context, dials []dial) (made []*connection.Connection) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range dials {
		d := &dials[i]
		if d.tried || d.rank <= c.Rank() || ctx.Err() != nil {
			continue
		}
		all.Go(func() {
			if conn, err := c.dial(ctx, d); err == nil {
				mu.Lock()
				defer mu.Unlock()
				made = append(made, conn)
			}
		})
	}
	all.Wait()
	return made
}
