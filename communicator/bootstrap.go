package communicator

import (
	"context"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/inside"
)

// Bootstrap exchanges small messages, of some KiB for each rank, between the ranks of
// a group. A *bootstrap.Bootstrap is one; a program can also implement it over MPI or
// its own RPC. Such a Bootstrap serves one communicator only, whose collectives and news of failures go over its
// messages, as [bootstrap.Over] says. Tags from 1<<63 on are the communicator's.
type Bootstrap = bootstrap.Carrier

// membership is implemented by a Bootstrap with a secret of its own; see [bootstrap.Over].
type membership interface {
	Group() [16]byte
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
	membership
	AllGather(ctx context.Context, data []byte) ([][]byte, error)
	Abort(cause error)
	Internal() inside.Bootstrap[*bootstrap.Rendezvous]
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
	if m, ok := c.given.(membership); ok {
		over = struct {
			carrier
			membership
		}{carrier{c.given, c}, m}
	}
	boot, err := bootstrap.Over(ctx, over)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.KindOf(err), op, "%w", err).At(c.given.Rank(), peerOf(err))
	}
	c.over = boot
	return boot, nil
}
