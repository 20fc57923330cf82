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

// takesPart has the line take part in what is explored, before its goroutine begins, and
// reports whether it does: whether that is by a rank's goroutine. The caller holds mu.
func (l *line) takesPart(op string) bool {
	x := l.owner.turns
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
	if !l.party.Of(x) {
		l.party = p.Stream()
	}
	l.party.Wake()
	return true
}

// inTurn reports whether the line, whose goroutine calls, takes part.
func (l *line) inTurn() bool { return l.turns && !l.owner.turns.Over() }

// explored has a launch take part if the line does.
func (l *line) explored(c *C.launch, m *module) {
	if !l.inTurn() {
		return
	}
	if !m.watched() {
		l.owner.turns.Uncontrolled("kernels that were compiled beforehand (mscclgo compile) go on without turns between their accesses")
	}
	c.explore = (*C.explore_engine)(l.owner.turns.Engine())
	c.stream = (*C.explore_party)(l.party.Pointer())
}

// lines makes the lines of a module known.
func (m *module) lines(object []byte) {
	if x := m.dev.turns; x != nil && m.watched() {
		base := m.base
		x.AddModule(base, func(address uint64) string { return race.Place(object, address-base) })
	}
}
