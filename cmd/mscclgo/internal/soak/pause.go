package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A pause is a time in which a rank could not return an error, from when to when, in Unix nanoseconds.
// Its process did not run, since it was stopped or got no CPU, or the rank had other work, such as to
// check elements or to open the driver, and made no call.
type pause struct {
	From, To int64
	Own      bool
}

// pauses are the pauses of this process.
type pauses struct {
	mu  sync.Mutex
	all []pause // the newest
}

const (
	pauseTick  = 20 * time.Millisecond // a pause is what is as long, or longer
	mostPauses = 500
)

// watch looks for times in which the process does not run, until ctx ends.
func (p *pauses) watch(ctx context.Context) {
	for last := time.Now(); ctx.Err() == nil; last = time.Now() {
		time.Sleep(pauseTick)
		p.note(last.Add(pauseTick), time.Now(), false)
	}
}

// note notes a pause, unless it is short.
func (p *pauses) note(from, to time.Time, own bool) {
	if to.Sub(from) < pauseTick {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) == mostPauses {
		p.all = slices.Delete(p.all, 0, 1)
	}
	p.all = append(p.all, pause{from.UnixNano(), to.UnixNano(), own})
}

// alone does what is the rank's own, in which it makes no call.
func (p *pauses) alone(what func()) {
	start := time.Now()
	what()
	p.note(start, time.Now(), true)
}

func (p *pauses) list() []pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}

// paused returns how long pauses lasted between two times, all together and the longest in which the
// process did not run.
func paused(all []pause, from, to int64) (sum, longest time.Duration) {
	for _, p := range all {
		d := time.Duration(min(p.To, to) - max(p.From, from))
		sum += max(d, 0)
		if !p.Own {
			longest = max(longest, d)
		}
	}
	return sum, longest
}
