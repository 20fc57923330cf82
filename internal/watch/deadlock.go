package watch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo"
)

// Still tells that at some moment nothing of a rank could go on by itself: kernels, streams,
// proxies and the host. Of two such moments with one Epoch, all of it stood still in between.
type Still struct {
	Rounds     uint64 // counts the moments; 0 before the first
	Epoch      uint64
	Exchanging bool      // the host was in its exchange; else it waited for the device
	Unbegun    uint64    // blocks for which the device has no room
	Threads    []Threads `wire:"6"`
	More       uint32    // that Threads has no room for
}

// Threads are threads of a kernel that all wait for the same.
type Threads struct {
	Kernel        string `wire:"64,text"`
	Block, First  uint32 // the first one's block and number
	Blocks, Count uint32 // how many there are, in how many blocks
	At            At
	Wait          Wait // of AtWait; its times are 0
}

// At is where a thread waits.
type At uint8

// The places where threads wait.
const (
	AtWait    At = iota // in a wait of the library
	AtBarrier           // at __syncthreads
	AtWarp              // in a warp function
	places
)

// stillRounds is by how many moments a rank is further than it was said to be at a time, so
// that all of it has looked in vain for what it waits for since that time. The first may be a
// moment before it, which was not reported yet, and so may be when the second began; the last
// may miss what began meanwhile. There are two to spare.
const stillRounds = 6

// StillSince reports whether nothing of any rank has gone on between two looks at what all
// ranks report, and whether that proves that nothing ever will. It does if after the first look
// each part has looked again for what it waits for, and no part has done anything since.
func StillSince(before, now []Rank) (still, forever bool) {
	forever = true
	for i, r := range now {
		b := before[i]
		if r.Left || b.Left || r.Status == nil || b.Status == nil || b.Still.Rounds == 0 || b.Still.Epoch != r.Still.Epoch {
			return false, false
		}
		// An exchange ends only when all have begun it.
		lacks := func(other Rank) bool { return other.Status != nil && other.Exchange < r.Exchange }
		if r.Still.Exchanging && !slices.ContainsFunc(now, lacks) {
			return false, false
		}
		forever = forever && r.Still.Rounds >= b.Still.Rounds+stillRounds
	}
	return true, forever
}

// Deadlock returns the verdict of a group of which nothing can go on.
func Deadlock(ranks []Rank) Verdict {
	ranks = slices.Clone(ranks)
	var all []string
	for i := range ranks {
		s := *ranks[i].Status
		s.Waits, s.Serving, s.ExchangeEnded = nil, 0, s.Still.Exchanging
		for _, t := range s.Still.Threads {
			if w := t.Wait; t.At == AtWait {
				w.Block, w.Ended = int(t.Block), true
				s.Waits = append(s.Waits, w)
			}
		}
		ranks[i].Status = &s
		all = append(all, fmt.Sprintf("rank %d: %s", i, s.Still.text(i)))
	}
	v := Verdict{Culprit: mscclgo.NoRank, Text: "its threads wait for others of their blocks"}
	if slices.ContainsFunc(ranks, func(r Rank) bool { return len(r.Waits) > 0 || r.ExchangeEnded }) {
		v = Judge(ranks, Limits{})
	}
	v.Text = "deadlock, nothing can go on: " + v.Text + "; " + strings.Join(all, "; ")
	return v
}

// Add adds threads, in one entry with threads that wait for the same.
func (s *Still) Add(t Threads) {
	for i := range s.Threads {
		if to := &s.Threads[i]; to.Kernel == t.Kernel && to.At == t.At && to.Wait == t.Wait {
			to.Blocks += t.Blocks
			to.Count += t.Count
			return
		}
	}
	s.Threads = append(s.Threads, t)
}

// text says what a rank's threads wait for.
func (s *Still) text(rank int) string {
	var all []string
	for _, t := range s.Threads {
		who, verb := fmt.Sprintf("thread %d of block %d of %s", t.First, t.Block, t.Kernel), "is"
		waits := "waits"
		if t.Count > 1 {
			verb, waits = "are", "wait"
			who = fmt.Sprintf("%d threads of block %d of %s, from %d on,", t.Count, t.Block, t.Kernel, t.First)
			if t.Blocks > 1 {
				who = fmt.Sprintf("%d threads of %d blocks of %s, from %d of block %d on,", t.Count, t.Blocks, t.Kernel, t.First, t.Block)
			}
		}
		switch t.At {
		case AtBarrier:
			all = append(all, who+" "+verb+" at __syncthreads")
		case AtWarp:
			all = append(all, who+" "+verb+" in a warp function")
		default:
			all = append(all, who+" "+waits+" for "+t.awaited(rank))
		}
	}
	if s.Unbegun > 0 {
		all = append(all, fmt.Sprintf("blocks that have not begun, as the device has no room for more: %d", s.Unbegun))
	}
	if s.More > 0 {
		all = append(all, fmt.Sprintf("%d more such groups of threads", s.More))
	}
	if len(all) == 0 {
		all = append(all, "no kernel runs")
	}
	if s.Exchanging {
		all = append(all, "its host is in a call that all ranks make")
	}
	return strings.Join(all, ", ")
}

// awaited says what a rank's threads wait for.
func (t *Threads) awaited(rank int) string {
	w := t.Wait
	w.Block = int(t.Block)
	return place(w, w.Peer, rank)
}
