package communicator

import (
	"context"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
)

// Connect returns a connection to a peer, over which the host moves data without a
// kernel. Both ranks call it with the same tag, which is below 1<<63 and not in use
// for messages of the bootstrap. The caller closes the connection before the
// communicator.
//
// Errors: ErrTimeout, naming the peer, when it does not call Connect in time;
// ErrInvalid for a peer outside the group or a tag out of range; those of [connection.Endpoint].
func (c *Communicator) Connect(ctx context.Context, peer int, tag uint64) (*connection.Connection, error) {
	op := fmt.Sprintf("communicator: connect to rank %d", peer)
	if err := c.usable(op); err != nil {
		return nil, err
	}
	if peer < 0 || peer >= c.Size() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the group has %d ranks", c.Size()).At(c.Rank(), mscclgo.NoRank)
	}
	if tag >= gatherTag {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the tag %d is not below 1<<63", tag).At(c.Rank(), peer)
	}
	endpoint, err := c.endpoint(peer)
	if err != nil {
		return nil, err
	}
	defer endpoint.Close()
	mine, err := endpoint.MarshalBinary()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	theirs := mine
	if peer != c.Rank() {
		if err := c.boot.Send(ctx, peer, tag, mine); err != nil {
			return nil, err
		}
		if theirs, err = c.boot.Recv(ctx, peer, tag); err != nil {
			return nil, err
		}
	}
	conn, err := endpoint.Connect(ctx, theirs)
	if err != nil {
		return nil, err
	}
	if err := c.ready(ctx, peer, tag); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// ready waits until the peer has connected.
func (c *Communicator) ready(ctx context.Context, peer int, tag uint64) error {
	if peer == c.Rank() {
		return nil
	}
	if err := c.boot.Send(ctx, peer, tag, nil); err != nil {
		return err
	}
	_, err := c.boot.Recv(ctx, peer, tag)
	return err
}
