package connection

import (
	"context"
	"slices"
	"sync"

	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// turnQueue gives the turn of a connection to one after the other, in the order in which they ask.
type turnQueue struct {
	mu      sync.Mutex
	taken   bool        // somebody has the turn
	waiting []waiter    // for it, oldest first
	begin   func() turn // returns the turn that was taken, for later
	native  *native.Queue
}

// waiter waits for the turn.
type waiter struct {
	turn  chan struct{} // closed once it has the turn, if it is a goroutine
	later inTurn        // otherwise what is to be done in the turn
}

// inTurn is what is to be done in a turn.
type inTurn = func(inside.Turn[Operation, Mark])

// count counts those who have the turn or wait for it, to whom threads in C give way. The caller holds mu.
func (q *turnQueue) count(n int32) {
	if q.native != nil {
		q.native.Turns().Add(n)
	}
}

// ask takes the turn if nobody has it, and otherwise adds w. It reports whether it took the turn.
func (q *turnQueue) ask(w waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count(1)
	if q.taken {
		q.waiting = append(q.waiting, w)
		return false
	}
	q.taken = true
	return true
}

// try takes the turn if nobody has it or waits for it, and reports whether it did.
func (q *turnQueue) try() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken {
		return false
	}
	q.count(1)
	q.taken = true
	return true
}

// wait waits for the turn. If ctx ends first, it reports false.
func (q *turnQueue) wait(ctx context.Context) bool {
	if q.try() {
		return true
	}
	w := waiter{turn: make(chan struct{})}
	if q.ask(w) {
		return true
	}
	explore.Current().Self().Until("wait for a connection's turn", false, func() bool {
		select {
		case <-w.turn:
			return true
		default:
			return false
		}
	})
	select {
	case <-w.turn:
		return true
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.waiting, func(other waiter) bool { return other.turn == w.turn })
	if i < 0 {
		return true // it came meanwhile
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.count(-1)
	return false
}

// later has f called in the turn, by a goroutine of the queue's, which then ends it. It does not wait.
func (q *turnQueue) later(f inTurn) {
	if q.ask(waiter{later: f}) {
		go q.run(f)
	}
}

// run does what is to be done in the turn, and in the turns that follow as long as they are of that kind.
func (q *turnQueue) run(later inTurn) {
	for ; later != nil; later = q.pass() {
		later(q.begin())
	}
}

// end ends the turn.
func (q *turnQueue) end() {
	if later := q.pass(); later != nil {
		go q.run(later)
	}
}

// pass gives the turn to who is next. It returns what is to be done in it, unless a goroutine waits for it.
func (q *turnQueue) pass() (later inTurn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count(-1)
	if len(q.waiting) == 0 {
		q.taken = false
		return nil
	}
	next := q.waiting[0]
	q.waiting[0] = waiter{}
	q.waiting = q.waiting[1:]
	if next.later == nil {
		close(next.turn)
	}
	return next.later
}
