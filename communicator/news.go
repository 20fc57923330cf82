package communicator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/blame"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// news is the FailureNotifier of a Bootstrap that has none. The ranks form a tree in
// which each forwards the news of a failure to its neighbours.
//
// A rank that leaves tells all others, since those behind it have new neighbours then.
// Which ones, each rank finds by itself: see neighbours. It may take for one a rank that has
// left too, and hears of that from the message that waits for it.
type news struct {
	boot   Bootstrap
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	failed chan struct{}

	mu     sync.Mutex
	err    error
	told   []byte       // the news of it, or nil; all in heard that have not left have it
	left   map[int]bool // the ranks that have left
	heard  map[int]bool // the ranks that are or were neighbours
	closed bool         // this rank passes on no more: those that it tells that it leaves do so among themselves
}

const (
	newsChildren = 8
	// newsPatience bounds the sending of news to ranks that may be dead.
	newsPatience = time.Second
)

// What stands for the failed rank in the message of a rank that closes.
const (
	leaving = 1<<32 - 1 // while others stay; the reason lists the ranks that have left before
	parting = 1<<32 - 2 // as all others do
)

func newNews(boot Bootstrap) *news {
	n := &news{boot: boot, failed: make(chan struct{}), left: map[int]bool{}, heard: map[int]bool{}}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attend()
	return n
}

// attend begins to listen to all neighbours, and returns those that are new. The caller holds mu.
func (n *news) attend() (fresh []int) {
	for _, peer := range neighbours(n.boot.Rank(), n.boot.Size(), n.left) {
		if !n.heard[peer] {
			n.heard[peer] = true
			fresh = append(fresh, peer)
			n.wg.Go(func() { n.listen(peer) })
		}
	}
	return fresh
}

// neighbours returns the parent and the children of a rank in the tree of the ranks that have not
// left.
func neighbours(rank, size int, left map[int]bool) (all []int) {
	root := 0
	for left[root] {
		root++
	}
	for peer := range size {
		if peer != rank && !left[peer] && (parent(peer, root, left) == rank || parent(rank, root, left) == peer) {
			all = append(all, peer)
		}
	}
	return all
}

// parent returns the nearest rank above one that has not left, or the root, the lowest that has not,
// if all above it have. The root is its own.
func parent(rank, root int, left map[int]bool) int {
	for rank > 0 {
		if rank = (rank - 1) / newsChildren; !left[rank] {
			return rank
		}
	}
	return root
}

// listen waits for news from a neighbour, and takes an error for its death.
func (n *news) listen(peer int) {
	b, err := n.boot.Recv(n.ctx, peer, newsTag)
	if n.ctx.Err() != nil {
		return
	}
	failed, kind, reason := peer, mscclgo.ErrRemote, ""
	if err != nil {
		reason = err.Error()
	} else {
		var rank uint32
		var of mscclgo.Kind
		rank, of, reason, err = decodeNews(b)
		switch {
		case err != nil:
			reason = "its news is malformed: " + err.Error()
		case rank == parting:
			return
		case rank == leaving:
			n.without(peer, reason)
			return
		case int(rank) < n.boot.Size():
			failed, kind = int(rank), of
		}
	}
	if failed == n.boot.Rank() {
		n.fail(failed, kind, reason, fmt.Errorf("another rank considers this rank failed: %s", reason))
		return
	}
	n.fail(failed, kind, reason, fmt.Errorf("rank %d failed: %s", failed, reason))
}

// without has this rank go on without one that has left, and without those that had left before it.
func (n *news) without(peer int, before string) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return
	}
	n.left[peer] = true
	for r := wire.NewReader([]byte(before)); r.Len() > 0 && r.Err() == nil; {
		if rank := int(r.U32()); rank != n.boot.Rank() {
			n.left[rank] = true
		}
	}
	fresh, told := n.attend(), n.told
	n.mu.Unlock()
	if told != nil {
		n.send(fresh, told)
	}
}

// fail makes a failure of a kind the group's error unless it has one, and notifies the neighbours.
// Calls end after that: a program often ends when a call fails, which would look like
// a failure of this rank.
func (n *news) fail(rank int, kind mscclgo.Kind, reason string, why error) {
	peer := rank
	if rank == n.boot.Rank() {
		peer = mscclgo.NoRank
	}
	n.mu.Lock()
	first := n.err == nil
	var peers []int
	var told []byte
	if first {
		n.err = mscclgo.Errorf(kind, "communicator: group", "%w", &blame.By{Rank: rank, Err: why}).At(n.boot.Rank(), peer)
		if !n.closed {
			told = encodeNews(uint32(rank), kind, reason)
			n.told, peers = told, neighbours(n.boot.Rank(), n.boot.Size(), n.left)
		}
	}
	n.mu.Unlock()
	if first {
		n.send(peers, told)
		close(n.failed)
	}
}

// send sends news to ranks. It returns when it is sent, or after newsPatience: close waits for it,
// since this rank may be the only one that has told them.
func (n *news) send(peers []int, b []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), newsPatience)
	defer cancel()
	var wg sync.WaitGroup
	for _, peer := range peers {
		// One to which news cannot be sent is dead, and its other neighbours detect that.
		wg.Go(func() { _ = n.boot.Send(ctx, peer, newsTag, b) })
	}
	wg.Wait()
}

// encodeNews encodes the news that a rank failed.
func encodeNews(rank uint32, kind mscclgo.Kind, reason string) []byte {
	w := wire.NewWriter(64)
	w.U32(rank)
	w.U8(uint8(kind))
	w.String(reason[:min(len(reason), maxReason)])
	return w.Bytes()
}

func decodeNews(b []byte) (rank uint32, kind mscclgo.Kind, reason string, err error) {
	r := wire.NewReader(b)
	rank, kind, reason = r.U32(), mscclgo.Kind(r.U8()), r.String(maxReason)
	if rank < parting && (kind < mscclgo.ErrInvalid || kind > mscclgo.ErrSystem) {
		r.Fail(errors.New("a failure has another kind"))
	}
	return rank, kind, reason, r.End()
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
	n.fail(rank, blame.Kind(cause, mscclgo.ErrAborted), cause.Error(), fmt.Errorf("this rank gave up the group: %w", cause))
}

// Blame fails the group with the news that another rank has failed.
func (n *news) Blame(rank int, cause error) {
	n.fail(rank, blame.Kind(cause, mscclgo.ErrRemote), cause.Error(), fmt.Errorf("rank %d failed: %w", rank, cause))
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
		rank := n.boot.Rank()
		n.fail(rank, mscclgo.ErrRemote, err.Error(), fmt.Errorf("this rank gave up the group: %w", err))
	}
}

// close leaves the tree, so that the others do not take the end of this rank for a
// failure. together is whether all of them leave now. It does nothing if n is nil.
func (n *news) close(together bool) {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.closed = true
	told, self, size := n.told, n.boot.Rank(), n.boot.Size()
	var before wire.Writer
	var peers []int
	for rank := range size {
		switch {
		case n.left[rank]:
			before.U32(uint32(rank))
		case rank != self && (told == nil || !n.heard[rank]):
			peers = append(peers, rank)
		}
	}
	if told == nil && together {
		peers = neighbours(self, size, n.left)
	}
	n.mu.Unlock()
	switch {
	case told != nil: // some may become neighbours after this rank has ended
		<-n.failed
		n.send(peers, told)
	case together:
		n.send(peers, encodeNews(parting, 0, ""))
	default:
		n.send(peers, encodeNews(leaving, 0, string(before.Bytes())))
	}
	n.cancel()
	n.wg.Wait()
}
