package emu

import (
	"maps"
	"sync"
)

// capture collects the work of the streams that take part, in the order of their calls. In that
// order one stream runs it, whatever stream it was captured on: each call comes behind the calls that
// it waits for.
type capture struct {
	origin *workQueue // that began it
	number uint64     // among the captures of the process, from 1

	mu     sync.Mutex // taken behind a work queue's mu
	ended  bool
	makers []maker
	known  map[*workQueue]known // of the queues that take part
}

// known is how many calls of each stream come before a point.
type known map[*workQueue]int

func newCapture(origin *workQueue) *capture {
	opened.Lock()
	defer opened.Unlock()
	opened.captures++
	return &capture{origin: origin, number: opened.captures, known: map[*workQueue]known{origin: {}}}
}

// add adds a call of a stream that takes part.
func (c *capture) add(w *workQueue, makers ...maker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[w][w]++
	c.makers = append(c.makers, makers...)
}

// mark adds a mark of a stream's work, and returns what comes before it.
func (c *capture) mark(w *workQueue, m maker) known {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makers = append(c.makers, m)
	return maps.Clone(c.known[w])
}

// wait has a stream's further calls come behind a point. The stream takes part from now on; it
// reports false if the capture has ended.
func (c *capture) wait(w *workQueue, point known) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	if c.known[w] == nil {
		c.known[w] = known{}
	}
	for of, n := range point {
		c.known[w][of] = max(c.known[w][of], n)
	}
	return true
}

func (c *capture) isUnderway() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.ended
}

// end has no stream take part any more. It returns the work, and whether the origin waits for all of
// it.
func (c *capture) end() (makers []maker, joined bool) {
	c.mu.Lock()
	c.ended, joined = true, true
	for w, own := range c.known {
		joined = joined && c.known[c.origin][w] == own[w]
	}
	makers = c.makers
	c.mu.Unlock()
	for w := range c.known { // which nobody changes any more
		w.mu.Lock()
		if w.capture == c {
			w.capture = nil
			w.native.unbar()
		}
		w.mu.Unlock()
	}
	return makers, joined
}
