package connection

import (
	"context"
	"sync"

	"github.com/mscclgo/mscclgo/internal/explore"
)

// line is who waits for a connection's turn: the turns are taken in the order of the
// places.
type line struct {
	mu      sync.Mutex
	changed sync.Cond
	next    uint64              // the next place
	now     uint64              // the place whose turn it is
	left    map[uint64]struct{} // places behind now that nobody waits in any more
}

func (l *line) init() { l.changed.L, l.left = &l.mu, map[uint64]struct{}{} }

// join returns the next place. Who has it must wait for it or leave.
func (l *line) join() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return l.next - 1
}

// try takes the turn if nobody has it or waits for it, and reports whether it did.
func (l *line) try() (place uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != l.next {
		return 0, false
	}
	l.next++
	return l.now, true
}

// wait waits for the turn of a place. If ctx ends first it leaves, and reports false.
func (l *line) wait(ctx context.Context, place uint64) bool {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed.Broadcast()
		})()
	}
	explore.Current().Self().Until("wait for a connection's turn", false, func() bool { return l.has(place) })
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.now != place {
		if ctx.Err() != nil {
			l.left[place] = struct{}{}
			return false
		}
		l.changed.Wait()
	}
	return true
}

// has reports whether it is the place's turn.
func (l *line) has(place uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now == place
}

// leave gives up a place, or ends its turn.
func (l *line) leave(place uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != place {
		l.left[place] = struct{}{}
		return
	}
	for again := true; again; {
		l.now++
		_, again = l.left[l.now]
		delete(l.left, l.now)
	}
	if l.now != l.next {
		l.changed.Broadcast()
	}
}
