package communicator

import (
	"context"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
)

// Bootstrap exchanges small messages, of some KiB for each rank, between the ranks of
// a group. A *bootstrap.Bootstrap is one; a program can also implement it over MPI or
// its own RPC. Such a Bootstrap serves one communicator only, whose collectives and news of failures go over its
// messages, as [bootstrap.Over] says. Tags from 1<<63 on are the communicator's.
type Bootstrap interface {
	// Rank returns this rank's number, from 0.
	Rank() int
	// Size returns the number of ranks.
	Size() int
	// Send sends data, at most 64 MiB, to another rank, where a Recv with the same
	// tag returns it. Messages to one rank with one tag arrive in order. Send may
	// return before the message is received, and must not wait for the other rank
	// to call Recv. The caller may reuse data when Send has returned.
	Send(ctx context.Context, peer int, tag uint64, data []byte) error
	// Recv returns the next message from another rank with the tag, and waits for
	// it. It returns an error when ctx ends, and should return one when it knows
	// that the peer is dead, and has no message of it left: that is how the group detects it,
	// and a message is how a rank that leaves in good order differs from one that died.
	Recv(ctx context.Context, peer int, tag uint64) ([]byte, error)
}

// Membership is implemented by a [Bootstrap] with a secret that only the ranks of the
// group know. Without it, rank 0 draws a secret and sends it to the others, so that
// the Bootstrap's messages must be confidential.
type Membership interface {
	// Group returns the group's number, which is not secret, the same on all ranks.
	Group() [16]byte
	// Key returns a secret for a purpose, the same on all ranks.
	Key(purpose string) [32]byte
}

// The communicator's tags. The leaders' tag is none of them: it is random.
const (
	ownTags = 1 << 63 // the first
	dialTag = 5 << 61 // likewise
	pipeTag = 3 << 62 // plus the number of the call that made the pipes

	inquiryTag = 1<<64 - 3 // of ranks that open pipes; see inquiry. traceTag is one more
)

// fullBootstrap is what the communicator uses of a *bootstrap.Bootstrap. What embeds one is used as it is, too.
type fullBootstrap interface {
	Bootstrap
	Membership
	AllGather(ctx context.Context, data []byte) ([][]byte, error)
	Abort(cause error)
	Blame(rank int, cause error)
	Done() <-chan struct{}
	Err() error
}

// carrier is a program's Bootstrap.
type carrier struct {
	Bootstrap
	c *Communicator
}

// Together reports whether all ranks close the communicator now.
func (b carrier) Together() bool { return b.c.together }

// complete returns the communicator's bootstrap: the given one, or one over that, which the communicator then owns. Collective.
func (c *Communicator) complete(ctx context.Context, op string) (fullBootstrap, error) {
	if full, ok := c.given.(fullBootstrap); ok {
		return full, nil
	}
	timeout := c.options.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var over bootstrap.Carrier = carrier{c.given, c}
	if m, ok := c.given.(Membership); ok {
		over = struct {
			carrier
			Membership
		}{carrier{c.given, c}, m}
	}
	boot, err := bootstrap.Over(ctx, over)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.KindOf(err), op, "%w", err).At(c.given.Rank(), peerOf(err))
	}
	c.over = boot
	return boot, nil
}
