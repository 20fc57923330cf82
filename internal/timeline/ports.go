package timeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/mscclgo/mscclgo/internal/native"
)

// portSignals are the signals of a port channel in one direction. The host counts its own,
// and kernels count theirs; a wait counts both. A kernel signals only when the host has
// nothing left to do, and tells how many of the host's were before, so the order of all is
// known: as long as none is missing.
type portSignals struct {
	host    []*slice // in the order of their numbers among the host's
	kernels []*slice // in the order of their numbers among the kernels'

	numbers map[uint64]*slice // by the number among all, where that is proved
}

func (p *portSignals) add(s *slice) {
	if s.event.Kind() == native.EventHostSignal {
		p.host = append(p.host, s)
	} else {
		p.kernels = append(p.kernels, s)
	}
}

// settle numbers the signals.
func (p *portSignals) settle() {
	slices.SortFunc(p.host, func(a, b *slice) int { return cmp.Compare(a.event.Value, b.event.Value) })
	slices.SortFunc(p.kernels, func(a, b *slice) int { return cmp.Compare(a.event.Extra, b.event.Extra) })
	p.numbers = map[uint64]*slice{}
	for _, s := range p.kernels {
		p.numbers[s.event.Value] = s
	}
	next := 0 // of the kernels' signals, the first behind the host's
	for _, s := range p.host {
		number := s.event.Value
		for next < len(p.kernels) && p.kernels[next].event.Bytes < number {
			next++
		}
		before := uint64(0) // signals of kernels before this one of the host's
		if next > 0 {
			before = p.kernels[next-1].event.Extra
		}
		if next < len(p.kernels) && p.kernels[next].event.Extra != before+1 {
			continue // some are missing, which may have been before or behind it
		}
		if number <= math.MaxUint64-before {
			p.numbers[number+before] = s
		}
	}
}

// portWait draws the arrow to a wait for a port's signal.
func (m *matcher) portWait(s *slice) {
	k, ok := key(s, false)
	number := k.number
	k.number = 0
	p := m.ports[k]
	if !ok || p == nil {
		return
	}
	signal := p.numbers[number]
	if signal == nil {
		return
	}
	// More signals of kernels may have come than are known: then it cannot be told whether
	// they were before.
	if known := len(p.kernels); fromHost(signal) && s.event.Extra > 0 && (known == 0 || p.kernels[known-1].event.Extra < s.event.Extra) {
		return
	}
	m.draw("signal", signal, s)
}
