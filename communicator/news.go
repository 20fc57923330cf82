package communicator

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
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

// What a message is.
const (
	newsFailed  = 0 // the group has failed, as the fact behind this tells
	newsLeaving = 1 // the sender closes while others stay; behind this are the ranks that have left before
	newsParting = 2 // the sender closes as all others do
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
	if err != nil {
		n.fail(watch.Lost(n.boot.Rank(), peer, err.Error()))
		return
	}
	r := wire.NewReader(b)
	switch r.U8() {
	case newsParting:
	case newsLeaving:
		n.without(peer, r)
	default:
		f, err := watch.DecodeFact(r.Raw(r.Len()), n.boot.Size())
		if err != nil {
			f = watch.Lost(n.boot.Rank(), peer, err.Error())
		}
		n.fail(f)
	}
}

// without has this rank go on without one that has left, and without those that had left before it.
func (n *news) without(peer int, before *wire.Reader) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return
	}
	n.left[peer] = true
	for before.Len() > 0 && before.Err() == nil {
		if rank := int(before.U32()); rank != n.boot.Rank() {
			n.left[rank] = true
		}
	}
	fresh, told := n.attend(), n.told
	n.mu.Unlock()
	if told != nil {
		n.send(fresh, told)
	}
}

// fail makes what a fact tells the group's error unless it has one, and notifies the neighbours.
// Calls end after that: a program often ends when a call fails, which would look like
// a failure of this rank.
func (n *news) fail(f watch.Fact) {
	n.mu.Lock()
	first := n.err == nil
	var peers []int
	var told []byte
	if first {
		n.err = f.Failed("communicator: group", n.boot.Rank())
		if !n.closed {
			told = append([]byte{newsFailed}, f.Encode()...)
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

func (n *news) Abort(cause error) {
	if cause == nil {
		cause = errors.New("no cause was given")
	}
	n.Blame(watch.Culprit(cause, n.boot.Rank()), cause)
}

// Blame fails the group with the news that another rank has failed.
func (n *news) Blame(rank int, cause error) {
	if rank < 0 || rank >= n.boot.Size() {
		rank = n.boot.Rank()
	}
	n.fail(watch.Blamed(n.boot.Rank(), rank, cause))
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
		f := watch.Lost(n.boot.Rank(), n.boot.Rank(), err.Error())
		f.Cause = err
		n.fail(f)
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
	before := wire.NewWriter(64)
	before.U8(newsLeaving)
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
		n.send(peers, []byte{newsParting})
	default:
		n.send(peers, before.Bytes())
	}
	n.cancel()
	n.wg.Wait()
}
