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
	tried    bool // not only until the context ended
}

// dial makes a connection.
func (c *Communicator) dial(ctx context.Context, d *dial) (*connection.Connection, error) {
	conn, err := d.endpoint.Connect(ctx, d.remote)
	d.tried = err == nil || ctx.Err() == nil
	if handshake.Shortage(err) {
		c.failure.fail(err) // the peers would wait for this rank, and then blame each other
	}
	return conn, err
}

// connectInVain makes the connections that higher ranks may wait for, of a rank whose part has failed, perhaps
// as its context has ended. These ranks would wait until their time is up, and the others for them, who then take the
// blame. The caller closes what it returns once it has told all ranks of its failure, or has left the call.
func (c *Communicator) connectInVain(ctx context.Context, dials []dial) (made []*connection.Connection) {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer cancel()
	}
	ctx, end := c.untilFailure(ctx)
	defer end()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range dials {
		d := &dials[i]
		if d.tried || d.rank <= c.Rank() || c.boot.Err() != nil {
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
