package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A pause is a time in which a process did not run, since it was stopped or got no CPU: from when to
// when, in Unix nanoseconds.
type pause struct{ From, To int64 }

// pauses finds those of this process.
type pauses struct {
	mu  sync.Mutex
	all []pause // the newest
}

const (
	pauseTick  = 20 * time.Millisecond // a pause is what is as long, or longer
	mostPauses = 500
)

// watch looks for pauses until ctx ends.
func (p *pauses) watch(ctx context.Context) {
	for last := time.Now(); ctx.Err() == nil; last = time.Now() {
		time.Sleep(pauseTick)
		p.note(last.Add(pauseTick), time.Now())
	}
}

// note notes that what was due at one time came at another.
func (p *pauses) note(due, came time.Time) {
	if came.Sub(due) < pauseTick {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) == mostPauses {
		p.all = slices.Delete(p.all, 0, 1)
	}
	p.all = append(p.all, pause{due.UnixNano(), came.UnixNano()})
}

func (p *pauses) list() []pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}

// paused returns how long pauses lasted between two times, all together and the longest.
func paused(all []pause, from, to int64) (sum, longest time.Duration) {
	for _, p := range all {
		d := time.Duration(min(p.To, to) - max(p.From, from))
		sum, longest = sum+max(d, 0), max(longest, d)
	}
	return sum, longest
}
