package connection

import (
	"context"
	"sync"

	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/native"
)

// turnQueue holds the places of goroutines that wait for a connection's turn. They take
// the turn in the order of the places.
type turnQueue struct {
	mu      sync.Mutex
	changed sync.Cond
	next    uint64              // the next place
	now     uint64              // the place whose turn it is
	left    map[uint64]struct{} // places behind now that nobody waits in any more
	native  *native.Queue       // whose users in C give way to all places, or nil
}

func (q *turnQueue) init() { q.changed.L, q.left = &q.mu, map[uint64]struct{}{} }

// join returns the next place. The caller must wait for its turn or leave.
func (q *turnQueue) join() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add()
}

// add returns the next place. The caller holds mu.
func (q *turnQueue) add() uint64 {
	if q.native != nil {
		q.native.Turns().Add(1)
	}
	q.next++
	return q.next - 1
}

// try takes the turn if nobody has it or waits for it, and reports whether it did.
func (q *turnQueue) try() (place uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.now != q.next {
		return 0, false
	}
	return q.add(), true
}

// wait waits for the turn of a place. If ctx ends first it leaves, and reports false.
func (q *turnQueue) wait(ctx context.Context, place uint64) bool {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.changed.Broadcast()
		})()
	}
	explore.Current().Self().Until("wait for a connection's turn", false, func() bool { return q.has(place) })
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.now != place {
		if ctx.Err() != nil {
			q.left[place] = struct{}{}
			return false
		}
		q.changed.Wait()
	}
	return true
}

// has reports whether it is the place's turn.
func (q *turnQueue) has(place uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.now == place
}

// leave gives up a place, or ends its turn.
func (q *turnQueue) leave(place uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.now != place {
		q.left[place] = struct{}{}
		return
	}
	for again := true; again; {
		q.now++
		if q.native != nil {
			q.native.Turns().Add(-1)
		}
		_, again = q.left[q.now]
		delete(q.left, q.now)
	}
	if q.now != q.next {
		q.changed.Broadcast()
	}
}
