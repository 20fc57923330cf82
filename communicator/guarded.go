package communicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/race"
)

// guarded is a program's Bootstrap with all methods. Its calls also end when the group
// fails, and its errors are of this module.
type guarded struct {
	boot     Bootstrap
	gatherer Gatherer
	notifier FailureNotifier
	Membership
}

// newsGrace is how long the news of a failure may be under way when calls of the bootstrap fail.
const newsGrace = 100 * time.Millisecond

func (g *guarded) Rank() int { return g.boot.Rank() }
func (g *guarded) Size() int { return g.boot.Size() }

func (g *guarded) Send(ctx context.Context, peer int, tag uint64, data []byte) error {
	const op = "communicator: send a message"
	return g.guard(ctx, op, peer, fmt.Sprintf("rank %d does not take it", peer), func(ctx context.Context) error {
		return g.boot.Send(ctx, peer, tag, data)
	})
}

func (g *guarded) Recv(ctx context.Context, peer int, tag uint64) (data []byte, err error) {
	const op = "communicator: receive a message"
	err = g.guard(ctx, op, peer, fmt.Sprintf("none came from rank %d, or it waits for another rank", peer), func(ctx context.Context) error {
		data, err = g.boot.Recv(ctx, peer, tag)
		return err
	})
	return data, err
}

func (g *guarded) AllGather(ctx context.Context, data []byte) (all [][]byte, err error) {
	err = g.guard(ctx, "communicator: all-gather", mscclgo.NoRank, "a rank did not take part", func(ctx context.Context) error {
		all, err = g.gatherer.AllGather(ctx, data)
		return err
	})
	return all, err
}

// guard makes a call with a context that ends when the group fails. late is why the
// call may have ended with ctx.
func (g *guarded) guard(ctx context.Context, op string, peer int, late string, call func(context.Context) error) error {
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-g.notifier.Done():
			cancel()
		case <-during.Done():
		}
	}()
	err := call(during)
	race.Meet()
	if err == nil {
		return nil
	}
	if cause := g.Err(); cause != nil {
		return cause
	}
	var e *mscclgo.Error
	switch {
	case errors.As(err, &e):
		return err
	case ctx.Err() != nil:
		return mscclgo.FromContext(ctx, op, late).At(g.Rank(), peer)
	}
	// A rank that has heard of a failure ends, and may be missed here before the news has come.
	select {
	case <-g.notifier.Done():
		return g.Err()
	case <-time.After(newsGrace):
	case <-ctx.Done():
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, op, "the bootstrap failed: %w", err).At(g.Rank(), peer)
}

func (g *guarded) Abort(cause error) { g.notifier.Abort(cause) }

// Blame is Abort where the notifier cannot tell of another rank's failure.
func (g *guarded) Blame(rank int, cause error) {
	if b, ok := g.notifier.(blamer); ok {
		b.Blame(rank, cause)
		return
	}
	g.notifier.Abort(cause)
}

func (g *guarded) Done() <-chan struct{} { return g.notifier.Done() }

// Err returns an Error from the moment when Done is closed.
func (g *guarded) Err() error {
	err := g.notifier.Err()
	if err == nil {
		select {
		case <-g.notifier.Done():
			err = errors.New("the bootstrap does not say why")
		default:
			return nil
		}
	}
	if e := (*mscclgo.Error)(nil); errors.As(err, &e) {
		return err
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, "communicator: group", "it failed: %w", err).At(g.Rank(), mscclgo.NoRank)
}
