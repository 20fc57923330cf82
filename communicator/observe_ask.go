package communicator

import "time"

// A rank that wants a verdict asks the others to look at their streams, and the leaders to
// exchange what they know often, for a while. It sets the number of questions on its host's
// board; the leaders carry the highest number to the other hosts.

const (
	// askedFor is how long ranks do that after a question.
	askedFor = 500 * time.Millisecond
	// settlingFar is settling where ranks are of several hosts: the question and the answer
	// pass two leaders each, that look every reportInterval.
	settlingFar = 5 * reportInterval
	// askBefore is how long before its deadline a wait has its rank ask, so that all have
	// answered by then.
	askBefore = settlingFar + 2*reportInterval
)

// ask asks for what all ranks know, unless that was done a moment ago, and returns for how long
// to wait for that.
func (o *observer) ask() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil {
		return settling
	}
	wait := settling
	for _, owner := range o.owners {
		if owner != o.owners[0] {
			wait = settlingFar
		}
	}
	o.hearQuestion()
	if since := o.now().Sub(o.asked); !o.asked.IsZero() && since < askedFor-wait {
		return max(wait-since, reportInterval) // one for what has changed at the deadline
	}
	o.askAll(true)
	return wait
}

// askEarly asks if a wait of this rank is about to pass its deadline. The caller holds mu.
func (o *observer) askEarly(now time.Time) {
	if !o.asked.IsZero() && now.Sub(o.asked) < askedFor {
		return
	}
	late := o.exchanging.ended.IsZero() && !o.exchanging.since.IsZero() && o.nearlyOver(now.Sub(o.exchanging.since))
	for _, w := range o.waits {
		late = late || !w.timedOut && o.nearlyOver(w.lasted+now.Sub(w.seen)-o.extra)
	}
	for _, p := range o.pairs {
		late = late || p.ended.IsZero() && o.nearlyOver(now.Sub(p.since))
	}
	if late {
		o.askAll(true)
	} else if asked := o.branch.tree.asked.Load(); asked != 0 && now.Sub(time.Unix(0, asked)) < askedFor {
		o.askAll(false)
	}
}

// nearlyOver reports whether the deadline of a wait of so long is near.
func (o *observer) nearlyOver(lasted time.Duration) bool {
	timeout := o.timeout
	return timeout > 2*askBefore && lasted >= timeout-askBefore && lasted < timeout
}

// askAll asks, and has this rank soon ask in its other groups too, or not. The caller holds mu.
func (o *observer) askAll(elsewhere bool) {
	if elsewhere {
		o.branch.tree.asked.Store(o.now().UnixNano())
	}
	o.board.Ask(o.board.Asked() + 1)
	o.hearQuestion()
}

// hearQuestion notes a question that is new on the board. The caller holds mu.
func (o *observer) hearQuestion() {
	if n := o.board.Asked(); n != o.question {
		o.question, o.asked = n, o.now()
		close(o.woken)
		o.woken = make(chan struct{})
	}
	if !o.asked.IsZero() && o.now().Sub(o.asked) < askedFor {
		o.queryStreams()
	}
}

// next returns when a leader is to send again what it knows: after the time, and when the
// channel is closed.
func (o *observer) next() (time.Duration, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.asked.IsZero() && o.now().Sub(o.asked) < askedFor {
		return reportInterval, o.woken
	}
	return o.compare, o.woken
}
