package watch

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Job is a group of ranks as a board of one of its hosts shows it.
type Job struct {
	ID      uint64 // the same on all hosts
	Started time.Time
	Ranks   []Rank
	Heard   []time.Duration // since each rank's last sign of life; of other hosts' by their clocks
	Begun   []bool          // the rank has given a sign of life
}

// longWait is how long a wait lasts before a job counts as one that may hang.
const longWait = time.Second

// SoFar returns why a group may not progress, though no deadline has passed, and whether
// there is a reason: a rank that is stopped or silent, calls that differ, or where the
// longest wait in the group leads if it has lasted for a second. A group that is slow has such waits too.
func SoFar(ranks []Rank, l Limits) (Verdict, bool) {
	if v, ok := plain(ranks, l); ok {
		return v, true
	}
	longest, at := time.Duration(0), -1
	for i, r := range ranks {
		if r.Status == nil || r.Left {
			continue
		}
		for _, w := range r.Waits {
			if w.Where != Here {
				continue // it is another group's to tell
			}
			if w.For > longest || w.Ended {
				longest, at = max(longest, w.For), i
			}
		}
		if r.Exchanging > longest {
			longest, at = r.Exchanging, i
		}
	}
	if at < 0 || longest < longWait {
		return Verdict{}, false
	}
	ranks = slices.Clone(ranks)
	s := *ranks[at].Status
	s.Waits = slices.Clone(s.Waits)
	for i := range s.Waits {
		s.Waits[i].Ended = s.Waits[i].Ended || s.Waits[i].For == longest && s.Waits[i].Where == Here
	}
	s.ExchangeEnded = s.ExchangeEnded || s.Exchanging == longest
	ranks[at].Status = &s
	return JudgePart(ranks, OuterGroup{Size: math.MaxInt}, l), true // of a size that is not known
}

// Doing says what a rank is busy with, in lines: its waits, the trigger that its proxy
// serves, its exchange, and the launches that are not known to have ended.
func (s *Status) Doing(rank int) (lines []string) {
	for _, w := range s.Waits {
		passed := ""
		if w.Ended {
			passed = ", and its deadline has passed"
		}
		lines = append(lines, "has waited"+since(w)+" for "+place(w, w.peer(), rank)+passed)
	}
	if s.Busy != "" {
		lines = append(lines, s.busy())
	}
	if s.Serving > 0 {
		lines = append(lines, fmt.Sprintf("has served one trigger of kind %d for %v", s.Trigger, round(s.Serving)))
	}
	if s.Exchanging > 0 {
		lines = append(lines, fmt.Sprintf("has waited %v in exchange %d, a call that all ranks make on the host", round(s.Exchanging), s.Exchange))
	}
	for _, l := range launchesUnderWay(s) {
		lines = append(lines, fmt.Sprintf("is not known to have ended %v, arguments %08x, on stream %d", l, l.Hash, l.Stream))
	}
	return lines
}
