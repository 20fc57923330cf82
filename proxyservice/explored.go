package proxyservice

// #include "loop.h"
import "C"

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/explore"
)

// takesPart has the run take part in what is explored, if anything is and its starter takes part.
// Then its thread is its own, and Go serves what threads in C would.
func (r *run) takesPart() {
	x := explore.Current()
	r.turns = x.Self().Proxy()
	r.proxy.loop.c.turns = C.bool(r.turns != nil)
	if x != nil && r.turns == nil && !x.Over() {
		x.Outside(fmt.Sprintf("the proxy of rank %d, which was not started by the rank's goroutine", r.proxy.options.Rank))
	}
}

// forgo is called by the goroutine of a run that cannot begin.
func (r *run) forgo() {
	if r.turns != nil {
		r.turns.Serves()
		r.turns.Ended()
	}
}

// next serves the ring in the run's turns until there is something for Go to do. It returns
// PROXY_IDLE if the run takes part no more.
func (r *run) next() C.proxy_end {
	loop := r.proxy.loop.c
	var state C.native_thread
	for r.turns.Serves() {
		r.worked = r.worked || bool(loop.reached)
		switch why := C.proxy_turn(loop, &state); why {
		case C.PROXY_IDLE:
			r.turns.Look("find no trigger", r.worked)
			r.worked = false
		case C.PROXY_WORKED:
			r.worked = true
		case C.PROXY_QUERY:
			return why
		default:
			r.worked = true
			return why
		}
	}
	r.turns.Ended()
	r.turns, loop.turns = nil, false
	return C.PROXY_IDLE
}
