package communicator

import (
	"context"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// dial is a connection of a collective call to make.
type dial struct {
	endpoint connection.Endpoint
	remote   []byte // the bytes of the peer's
	rank     int
	tried    bool  // not only until the context ended
	err      error // of the try
}

// dial makes a connection of the call k.
func (c *Communicator) dial(ctx context.Context, k *call, d *dial) (*connection.Connection, error) {
	taking, end := k.unlessDialFails(ctx, d.rank)
	conn, err := d.endpoint.Connect(taking, d.remote)
	if why := end(); err != nil && why != nil {
		err = why
	}
	d.tried, d.err = err == nil || ctx.Err() == nil, err
	if handshake.Shortage(err) {
		c.failure.fail(err) // the peers would wait for this rank, and then blame each other
	}
	return conn, err
}

var partWire = wire.For[watch.FailedPart]()

// unlessDialFails returns a context that ends with ctx, and when a lower rank tells that it cannot dial this one in the
// call. The function ends it, and returns what that rank said.
func (k *call) unlessDialFails(ctx context.Context, lower int) (taking context.Context, end func() error) {
	c := k.c
	if lower >= c.Rank() || k.number() == 0 || c.turn() != nil { // a call of two ranks tells by its meeting
		return ctx, func() error { return nil }
	}
	taking, cancel := context.WithCancel(ctx)
	said := make(chan error, 1)
	go func() {
		b, err := c.boot.Recv(taking, lower, dialTag+k.number())
		if err != nil {
			said <- nil
			return
		}
		part, err := partWire.Unmarshal(b)
		if err != nil {
			part = watch.FailedPartOf(err)
		}
		said <- k.errorf(mscclgo.ErrRemote, lower, "its part failed: %w", &part)
		cancel()
	}()
	return taking, func() error {
		cancel()
		return <-said
	}
}

// connectInVain makes the connections that higher ranks may wait for, of a rank whose part has failed, perhaps
// as its context has ended. A rank that it cannot reach, as a firewall drops what it sends, hears that. These ranks
// would wait until their time is up, and the others for them, who then take the blame. The caller closes what it
// returns once all ranks know of its failure, or it has left the call.
func (c *Communicator) connectInVain(ctx context.Context, k *call, dials []dial) (made []*connection.Connection) {
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
		if d.tried && d.err == nil || d.rank <= c.Rank() || c.boot.Err() != nil {
			continue
		}
		all.Go(func() {
			var conn *connection.Connection
			if !d.tried {
				conn, _ = c.dial(ctx, k, d)
			}
			if conn == nil {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
				defer cancel()
				part := watch.FailedPartOf(d.err)
				c.boot.Send(ctx, d.rank, dialTag+k.number(), partWire.Marshal(&part)) // of a failure that rank hears itself
				return
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, conn)
		})
	}
	all.Wait()
	return made
}
