package emu

/*
#include "launch.h"
*/
import "C"

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/race"
)

// What the explorer is told, if there is one. See package explore.

// takesPart has the work queue take part in what is explored, before its goroutine begins, and
// reports whether it does: whether that is by a rank's goroutine. The caller holds mu.
func (w *workQueue) takesPart(op string) bool {
	x := w.owner.turns
	if x == nil || x.Over() {
		return false
	}
	p := x.Self()
	if p == nil {
		if x.Running() {
			x.Outside(fmt.Sprintf("%s is by a goroutine that is not a rank's", op))
		}
		return false
	}
	if !w.party.Of(x) {
		w.party = p.Stream()
	}
	w.party.Wake()
	return true
}

// inTurn reports whether the work queue, whose goroutine calls, takes part.
func (w *workQueue) inTurn() bool { return w.turns && !w.owner.turns.Over() }

// explored has a launch take part if the work queue does.
func (w *workQueue) explored(c *C.launch, m *module) {
	if !w.inTurn() {
		return
	}
	if !m.watched() {
		w.owner.turns.Uncontrolled("kernels that were compiled beforehand (mscclgo compile) go on without turns between their accesses")
	}
	c.explore = (*C.explore_engine)(w.owner.turns.Engine())
	c.stream = (*C.explore_party)(w.party.Pointer())
}

// lines makes the source lines of a module known.
func (m *module) lines(object []byte) {
	if x := m.dev.turns; x != nil && m.watched() {
		base := m.base
		x.AddModule(base, func(address uint64) string { return race.Place(object, address-base) })
	}
}
