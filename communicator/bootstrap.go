package communicator

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Bootstrap exchanges small messages, of some KiB for each rank, between the ranks of
// a group. A *bootstrap.Bootstrap is one; a program can also implement it over MPI or
// its own RPC. Its methods are called by several goroutines at a time.
//
// A Bootstrap may also implement [Gatherer], [Membership] and [FailureNotifier]. The
// communicator implements the missing ones by messages; such a Bootstrap serves one
// communicator only. Tags from 1<<63 on are the communicator's.
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
	// that the peer is dead, and has no message of it left: unless the Bootstrap is a
	// FailureNotifier, that is how the group detects it, and a message how a rank that
	// leaves in good order differs from one that died.
	Recv(ctx context.Context, peer int, tag uint64) ([]byte, error)
}

// Gatherer is implemented by a [Bootstrap] that has an all-gather. Without it, rank 0
// receives all messages and sends all of them to each rank.
type Gatherer interface {
	// AllGather returns the data of all ranks, by rank. Calls are matched by their
	// order on each rank, including those that ended with their context.
	AllGather(ctx context.Context, data []byte) ([][]byte, error)
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

// FailureNotifier is implemented by a [Bootstrap] that notifies all ranks when one
// fails. Without it, the ranks send the news along a tree, in which each rank takes
// an error of Recv from a neighbour for the neighbour's death. Those behind a rank that
// has closed its communicator get other neighbours.
type FailureNotifier interface {
	// Abort fails the group with cause, unless it has failed.
	Abort(cause error)
	// Done returns a channel that is closed when the group fails.
	Done() <-chan struct{}
	// Err returns why the group failed, or nil if it has not.
	Err() error
}

// The communicator's tags, besides that of leaders, which is random.
const (
	gatherTag = 1 << 63 // plus the number of the call
	dialTag   = 5 << 61 // likewise
	pipeTag   = 3 << 62 // plus the number of the call that made the pipes
	newsTag   = 1<<64 - 1

	inquiryTag = 1<<64 - 3 // of ranks that open pipes; see inquiry. traceTag is one more
)

// fullBootstrap is a Bootstrap with all optional methods.
type fullBootstrap interface {
	Bootstrap
	Gatherer
	Membership
	FailureNotifier
}

// complete returns boot with the optional methods that it lacks. If they include those
// of a FailureNotifier, news has them, and the caller closes it. Collective.
func complete(ctx context.Context, boot Bootstrap, op string) (full fullBootstrap, n *news, err error) {
	if full, ok := boot.(*bootstrap.Bootstrap); ok {
		return full, nil, nil
	}
	if rank, size := boot.Rank(), boot.Size(); size < 1 || rank < 0 || rank >= size {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bootstrap's Rank is %d and its Size %d", rank, size)
	}
	g := &guarded{boot: boot}
	var ok bool
	if g.notifier, ok = boot.(FailureNotifier); !ok {
		n = newNews(boot)
		g.notifier = n
	}
	if g.gatherer, ok = boot.(Gatherer); !ok {
		g.gatherer = &starGather{boot: g}
	}
	if g.Membership, ok = boot.(Membership); !ok {
		m, err := drawMembership(ctx, g)
		if err != nil {
			peer := mscclgo.NoRank
			if e := (*mscclgo.Error)(nil); errors.As(err, &e) {
				peer = e.Peer
			}
			err = mscclgo.Errorf(mscclgo.KindOf(err), op, "agree on a secret: %w", err).At(boot.Rank(), peer)
			n.giveUp(err)
			n.close(false)
			return nil, nil, err
		}
		g.Membership = m
	}
	return g, n, nil
}

// starGather gathers at rank 0, which sends all to all. A rank that leaves a call which the others
// cannot end without it tells them.
type starGather struct {
	boot interface {
		Bootstrap
		FailureNotifier
	}
	calls atomic.Uint64
}

const gatherOp = "communicator: all-gather"

func (s *starGather) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	tag := gatherTag + s.calls.Add(1)
	all, waiting, left, err := s.gather(ctx, tag, data)
	switch {
	case err == nil || s.boot.Err() != nil:
	case left != nil:
		s.tell(ctx, tag, waiting, *left)
	case ctx.Err() != nil:
		s.tell(ctx, tag, waiting, watch.FactOf(err, s.boot.Rank(), s.boot.Size()))
	default: // the bootstrap has failed
		s.boot.Abort(err)
	}
	return all, err
}

// gather does a call. After an error, waiting are the ranks that wait for this one, and left tells of another
// that has left the call.
func (s *starGather) gather(ctx context.Context, tag uint64, data []byte) (all [][]byte, waiting []int, left *watch.Fact, err error) {
	rank, size := s.boot.Rank(), s.boot.Size()
	if rank > 0 {
		w := wire.NewWriter(len(data) + 1)
		w.Bool(true)
		w.Raw(data)
		if err := s.boot.Send(ctx, 0, tag, w.Bytes()); err != nil {
			return nil, []int{0}, nil, err
		}
		b, left, err := s.recv(ctx, 0, tag)
		if err != nil {
			return nil, nil, left, err
		}
		all, err = s.split(b)
		return all, nil, nil, err
	}
	for peer := 1; peer < size; peer++ {
		waiting = append(waiting, peer)
	}
	w := wire.NewWriter(size*(len(data)+4) + 1)
	w.Bool(true)
	w.Blob(data)
	for peer := 1; peer < size; peer++ {
		b, left, err := s.recv(ctx, peer, tag)
		if err != nil {
			return nil, waiting, left, err
		}
		w.Blob(b)
	}
	for ; len(waiting) > 0; waiting = waiting[1:] {
		if err := s.boot.Send(ctx, waiting[0], tag, w.Bytes()); err != nil {
			return nil, waiting, nil, err
		}
	}
	all, err = s.split(w.Bytes()[1:])
	return all, nil, nil, err
}

// recv returns the content of the next message from a rank, or which rank has left the call.
func (s *starGather) recv(ctx context.Context, peer int, tag uint64) (content []byte, left *watch.Fact, err error) {
	b, err := s.boot.Recv(ctx, peer, tag)
	if err != nil {
		return nil, nil, err
	}
	r := wire.NewReader(b)
	if r.Bool() {
		content = r.Raw(r.Len())
		return content, nil, s.malformed(peer, r.End())
	}
	f, err := watch.DecodeFact(r.Raw(r.Len()), s.boot.Size())
	if err := s.malformed(peer, err); err != nil {
		return nil, nil, err
	}
	return nil, &f, f.Left(gatherOp, s.boot.Rank(), "the call")
}

// tell tells ranks that wait for this one that a rank has left a call.
func (s *starGather) tell(ctx context.Context, tag uint64, waiting []int, left watch.Fact) {
	w := wire.NewWriter(64)
	w.Bool(false)
	w.Raw(left.Encode())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), newsPatience)
	defer cancel()
	for _, peer := range waiting {
		if peer != left.Rank {
			_ = s.boot.Send(ctx, peer, tag, w.Bytes()) // one that is dead needs no news
		}
	}
}

// split decodes what rank 0 sent.
func (s *starGather) split(b []byte) ([][]byte, error) {
	r := wire.NewReader(b)
	all := make([][]byte, s.boot.Size())
	for i := range all {
		all[i] = r.Blob(maxGathered)
	}
	if err := s.malformed(0, r.End()); err != nil {
		return nil, err
	}
	return all, nil
}

// malformed returns the error of a message that cannot be decoded because of err, or nil.
func (s *starGather) malformed(peer int, err error) error {
	if err == nil {
		return nil
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, gatherOp, "its message is malformed: %w", err).At(s.boot.Rank(), peer)
}

// drawn is a Membership that rank 0 drew at random.
type drawn struct {
	group  [16]byte
	secret [32]byte
}

// drawMembership returns rank 0's draw. Collective.
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

func (d *drawn) Key(purpose string) [32]byte {
	return handshake.Derive(d.secret[:], "key "+purpose)
}
