package connection

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// drain waits until all that is queued is done or, where the transport has failed, until none
// of it is under way any more. Then it returns why that failed.
func (c *Connection) drain(ctx context.Context, op string) error {
	m, err := c.setMark(ctx, op, true)
	if err == nil {
		err = c.wait(ctx, op, m)
	}
	if err == nil || ctx.Err() != nil || c.quiet == nil {
		return err
	}
	if busy := c.quiet.Quiet(ctx); busy != nil {
		return c.wrap(op, busy)
	}
	return err
}

// settle is drain, but that it ends if the group fails and what is queued can be abandoned:
// the peer may be stopped.
func (c *Connection) settle(ctx context.Context, op string) (abandoned bool, err error) {
	failed := c.registry.Failed()
	if failed == nil || c.transport == registeredmem.CudaIPC {
		return false, c.drain(ctx, op)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	err = c.drain(ctx, op)
	return errors.Is(err, mscclgo.ErrAborted), err
}

// waitForTransfers waits until what was queued before the call is done. The
// registry calls it before it unmaps a memory, once nothing more can be queued for
// that memory. A failure of the transport is no error, since drain has waited until
// nothing is under way.
func (c *Connection) waitForTransfers(ctx context.Context) error {
	const op = "wait for what uses a memory"
	if c.closed.Load() {
		return c.awaitEnd(ctx, op)
	}
	switch abandoned, err := c.settle(ctx, op); {
	case abandoned: // and what is under way ends with the connection, which another goroutine may be closing
		return errors.Join(c.Close(), c.awaitEnd(ctx, op))
	case errors.Is(err, mscclgo.ErrTimeout):
		return err
	case err != nil && c.closed.Load(): // since the call began, which is why the mark has failed
		return c.awaitEnd(ctx, op)
	}
	return nil
}

// awaitEnd waits until a connection that is being closed has ended.
func (c *Connection) awaitEnd(ctx context.Context, op string) error {
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, c.op(op), "the connection is being closed").At(c.rank, c.peer)
	}
}
