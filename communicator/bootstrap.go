package communicator

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Bootstrap is what a communicator needs of whatever brought the ranks of a group
// together: it carries messages, of some KiB for each rank, between any two. A
// *bootstrap.Bootstrap is one; a program that has MPI or its own RPC can use that
// instead. All methods are called from several goroutines at a time.
//
// A Bootstrap may have the methods of [Gatherer], [Membership] and
// [FailureNotifier] too. What it lacks, the communicator makes from messages; then
// a Bootstrap serves only one communicator.
type Bootstrap interface {
	// Rank returns this rank's number, from 0.
	Rank() int
	// Size returns the number of ranks.
	Size() int
	// Send sends data, at most 64 MiB, to another rank, where a Recv with the same
	// tag returns it. Messages to one rank with one tag arrive in order. Send may
	// return before the message is received, and must not wait for the other rank
	// to call Recv. The caller may reuse data.
	Send(ctx context.Context, peer int, tag uint64, data []byte) error
	// Recv waits for the next message that another rank sent with the tag. It
	// returns an error when ctx ends, and when it knows that the peer has ended:
	// this is how a dead rank is noticed.
	Recv(ctx context.Context, peer int, tag uint64) ([]byte, error)
}

// Gatherer is a [Bootstrap] that can gather better than by messages to and from
// rank 0.
type Gatherer interface {
	// AllGather returns what each rank passed, by rank, once all ranks have called
	// it. Calls are matched by their order on each rank, also after one that ended
	// by its context.
	AllGather(ctx context.Context, data []byte) ([][]byte, error)
}

// Membership is a [Bootstrap] that has a secret which only the ranks of the group
// know. For one that has not, rank 0 makes it and sends it to the others, so the
// Bootstrap's messages must then be as private as the secret.
type Membership interface {
	// Group returns a number of the group that is not secret, the same on all ranks.
	Group() [16]byte
	// Key returns a secret for a purpose, the same on all ranks.
	Key(purpose string) [32]byte
}

// FailureNotifier is a [Bootstrap] that tells all ranks when one fails. For one
// that does not, the communicator sends messages along a tree of the ranks, and
// takes an error of Recv for the death of the peer.
type FailureNotifier interface {
	// Abort fails the group. The first cause counts.
	Abort(cause error)
	// Done is closed when the group has failed.
	Done() <-chan struct{}
	// Err returns why the group failed, or nil.
	Err() error
}

// Tags from 1<<63 on are the communicator's own: for what a Bootstrap lacks, and
// those of a matcher, which are random.
const (
	gatherTag = 1 << 63 // and calls, counted up
	newsTag   = 1<<64 - 1
)

// fullBootstrap is a Bootstrap that lacks nothing.
type fullBootstrap interface {
	Bootstrap
	Gatherer
	Membership
	FailureNotifier
}

// completed is a Bootstrap with what it lacked.
type completed struct {
	Bootstrap
	Gatherer
	Membership
	FailureNotifier
}

// complete gives a bootstrap what it lacks. The second result ends it. Collective.
func complete(ctx context.Context, boot Bootstrap, op string) (full fullBootstrap, end func(), err error) {
	end = func() {}
	if full, ok := boot.(fullBootstrap); ok {
		return full, end, nil
	}
	if rank, size := boot.Rank(), boot.Size(); size < 1 || rank < 0 || rank >= size {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bootstrap says that this is rank %d of %d", rank, size)
	}
	c := &completed{Bootstrap: boot}
	var ok bool
	if c.Gatherer, ok = boot.(Gatherer); !ok {
		c.Gatherer = &starGather{boot: boot}
	}
	if c.Membership, ok = boot.(Membership); !ok {
		m, err := drawMembership(ctx, c)
		if err != nil {
			return nil, nil, mscclgo.Errorf(mscclgo.KindOf(err), op, "agree on a secret: %w", err).At(boot.Rank(), mscclgo.NoRank)
		}
		c.Membership = m
	}
	if c.FailureNotifier, ok = boot.(FailureNotifier); !ok {
		n := newNews(boot)
		c.FailureNotifier, end = n, n.close
	}
	return c, end, nil
}

// starGather gathers at rank 0, which sends all to all.
type starGather struct {
	boot  Bootstrap
	calls atomic.Uint64
}

func (s *starGather) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	tag := gatherTag + s.calls.Add(1)
	rank, size := s.boot.Rank(), s.boot.Size()
	if rank > 0 {
		if err := s.boot.Send(ctx, 0, tag, data); err != nil {
			return nil, err
		}
		all, err := s.boot.Recv(ctx, 0, tag)
		if err != nil {
			return nil, err
		}
		return s.split(all)
	}
	w := wire.NewWriter(size * (len(data) + 4))
	w.Blob(data)
	for peer := 1; peer < size; peer++ {
		b, err := s.boot.Recv(ctx, peer, tag)
		if err != nil {
			return nil, err
		}
		w.Blob(b)
	}
	for peer := 1; peer < size; peer++ {
		if err := s.boot.Send(ctx, peer, tag, w.Bytes()); err != nil {
			return nil, err
		}
	}
	return s.split(w.Bytes())
}

// split takes what rank 0 sent apart.
func (s *starGather) split(b []byte) ([][]byte, error) {
	r := wire.NewReader(b)
	all := make([][]byte, s.boot.Size())
	for i := range all {
		all[i] = r.Blob(maxGathered)
	}
	if err := r.End(); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, "communicator: all-gather", "its message is malformed: %w", err).At(s.boot.Rank(), 0)
	}
	return all, nil
}

// drawn is a membership that rank 0 drew at random.
type drawn struct {
	group  [16]byte
	secret [32]byte
}

// drawMembership takes rank 0's. Collective.
func drawMembership(ctx context.Context, g Gatherer) (*drawn, error) {
	d := &drawn{}
	mine := make([]byte, len(d.group)+len(d.secret))
	rand.Read(mine)
	all, err := g.AllGather(ctx, mine)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 || len(all[0]) != len(mine) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "all-gather", "the bootstrap returned %d messages, or rank 0's has a wrong length", len(all))
	}
	copy(d.secret[:], all[0][copy(d.group[:], all[0]):])
	return d, nil
}

func (d *drawn) Group() [16]byte { return d.group }

func (d *drawn) Key(purpose string) (key [32]byte) {
	mac := hmac.New(sha256.New, d.secret[:])
	mac.Write([]byte(purpose))
	mac.Sum(key[:0])
	return key
}
