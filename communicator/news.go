package communicator

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/blame"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// news is the FailureNotifier of a Bootstrap that has none. The ranks form a tree in
// which each forwards the news of a failure to its neighbours.
type news struct {
	boot   Bootstrap
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	failed chan struct{}

	mu  sync.Mutex
	err error
}

const (
	newsChildren = 8
	// newsPatience bounds the sending of news to ranks that may be dead.
	newsPatience = time.Second
)

// leaving stands for the failed rank in the message of a rank that closes.
const leaving = 1<<32 - 1

func newNews(boot Bootstrap) *news {
	n := &news{boot: boot, failed: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	for _, peer := range n.neighbours() {
		n.wg.Go(func() { n.listen(peer) })
	}
	return n
}

// neighbours returns the parent and the children of this rank in the tree.
func (n *news) neighbours() []int {
	var all []int
	rank := n.boot.Rank()
	if rank > 0 {
		all = append(all, (rank-1)/newsChildren)
	}
	for child := rank*newsChildren + 1; child <= rank*newsChildren+newsChildren && child < n.boot.Size(); child++ {
		all = append(all, child)
	}
	return all
}

// listen waits for news from a neighbour, and takes an error for its death.
func (n *news) listen(peer int) {
	b, err := n.boot.Recv(n.ctx, peer, newsTag)
	if n.ctx.Err() != nil {
		return
	}
	failed, reason := peer, ""
	if err != nil {
		reason = err.Error()
	} else {
		var rank uint32
		rank, reason, err = decodeNews(b)
		switch {
		case err != nil:
			reason = "its news is malformed: " + err.Error()
		case rank == leaving:
			return
		case int(rank) < n.boot.Size():
			failed = int(rank)
		}
	}
	const op = "communicator: group"
	n.fail(failed, reason, mscclgo.Errorf(mscclgo.ErrRemote, op, "rank %d failed: %s", failed, reason).At(n.boot.Rank(), failed))
}

// fail makes err the group's error unless it has one, and notifies the neighbours.
// Calls end after that: a program often ends when a call fails, which would look like
// a failure of this rank.
func (n *news) fail(rank int, reason string, err error) {
	n.mu.Lock()
	first := n.err == nil
	if first {
		n.err = err
	}
	n.mu.Unlock()
	if first {
		n.send(uint32(rank), reason)
		close(n.failed)
	}
}

// send sends news to all neighbours. It returns when it is sent, or after
// newsPatience.
func (n *news) send(rank uint32, reason string) {
	b := encodeNews(rank, reason)
	ctx, cancel := context.WithTimeout(n.ctx, newsPatience)
	defer cancel()
	var wg sync.WaitGroup
	for _, peer := range n.neighbours() {
		// A neighbour to which news cannot be sent is dead, and its other neighbours
		// detect that.
		wg.Go(func() { _ = n.boot.Send(ctx, peer, newsTag, b) })
	}
	wg.Wait()
}

// encodeNews encodes the news that a rank failed.
func encodeNews(rank uint32, reason string) []byte {
	w := wire.NewWriter(64)
	w.U32(rank)
	w.String(reason[:min(len(reason), maxReason)])
	return w.Bytes()
}

func decodeNews(b []byte) (rank uint32, reason string, err error) {
	r := wire.NewReader(b)
	rank, reason = r.U32(), r.String(maxReason)
	return rank, reason, r.End()
}

func (n *news) Abort(cause error) {
	if cause == nil {
		cause = errors.New("no cause was given")
	}
	rank := n.boot.Rank()
	if culprit := blame.Culprit(cause, rank); culprit != rank && culprit >= 0 && culprit < n.boot.Size() {
		n.Blame(culprit, cause)
		return
	}
	n.fail(rank, cause.Error(), mscclgo.Errorf(mscclgo.ErrAborted, "communicator: group", "this rank gave up the group: %w", cause).At(rank, mscclgo.NoRank))
}

// Blame fails the group with the news that another rank has failed.
func (n *news) Blame(rank int, cause error) {
	n.fail(rank, cause.Error(), mscclgo.Errorf(mscclgo.ErrRemote, "communicator: group", "rank %d failed: %w", rank, cause).At(n.boot.Rank(), rank))
}

func (n *news) Done() <-chan struct{} { return n.failed }

func (n *news) Err() error {
	select {
	case <-n.failed:
		return n.cause()
	default:
		return nil
	}
}

// cause returns the group's error, or nil, also while the neighbours are notified.
func (n *news) cause() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// giveUp fails the group because this rank could not join it. It does nothing if n is
// nil, or if the time was up: it soon is on the other ranks too, and their errors name
// the ranks that they waited for.
func (n *news) giveUp(err error) {
	if n != nil && !errors.Is(err, mscclgo.ErrTimeout) {
		n.Abort(err)
	}
}

// close leaves the tree, so that the neighbours do not take the end of this rank for
// a failure. It does nothing if n is nil.
func (n *news) close() {
	if n == nil {
		return
	}
	if n.cause() == nil {
		n.send(leaving, "")
	}
	n.cancel()
	n.wg.Wait()
}
