package connection

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo"
)

// drain waits until all that is queued is done.
func (c *Connection) drain(ctx context.Context, op string) error {
	m, err := c.setMark(ctx, op, true)
	if err != nil {
		return err
	}
	return c.wait(ctx, op, m)
}

// waitForTransfers waits until what was queued before the call is done. The
// registry calls it before it unmaps a memory, once nothing more can be queued for
// that memory. A failure of the transport is no error, since nothing is under way
// then.
func (c *Connection) waitForTransfers(ctx context.Context) error {
	const op = "wait for what uses a memory"
	if c.closed.Load() {
		select {
		case <-c.ended:
			return nil
		case <-ctx.Done():
			return mscclgo.FromContext(ctx, c.op(op), "the connection is being closed").At(c.rank, c.peer)
		}
	}
	err := c.drain(ctx, op)
	if errors.Is(err, mscclgo.ErrTimeout) {
		return err
	}
	return nil
}
