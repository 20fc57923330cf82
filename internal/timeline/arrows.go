package timeline

import (
	"slices"

	"github.com/mscclgo/mscclgo/internal/native"
)

// arrow leads from a signal to the wait that it ended, and the like.
type arrow struct {
	name     string
	from, to *slice
}

// signalKey names a signal of a channel between two ranks.
type signalKey struct {
	call   uint64 // of the channel
	index  int    // likewise
	from   int
	to     int
	number uint64
}

// servedKey names a trigger.
type servedKey struct {
	rank     int
	ring     uint64
	position uint64
}

// barrierKey names a barrier, or what counts like one.
type barrierKey struct {
	channel uint32
	leader  int // the first of its ranks
	block   uint64
}

// packetKey names packets of a channel.
type packetKey struct {
	signalKey        // the number is the flag
	offset    uint64 // of the first
}

// matcher finds arrows.
type matcher struct {
	signals  map[signalKey]*slice
	ports    map[signalKey]*portSignals // without numbers
	pushes   map[servedKey]*slice
	serves   map[servedKey]*slice
	barriers map[barrierKey]map[uint64][]*slice // by number
	rounds   map[barrierKey]map[int][]*slice    // of signals, by rank
	packets  map[packetKey][]*slice             // in the order of their starts
	arrows   []arrow
	rejected int // arrows that the clocks contradict
}

// match returns the arrows between slices of all ranks.
func match(all []*slice) (arrows []arrow, rejected int) {
	m := &matcher{
		signals: map[signalKey]*slice{}, ports: map[signalKey]*portSignals{}, pushes: map[servedKey]*slice{}, serves: map[servedKey]*slice{},
		barriers: map[barrierKey]map[uint64][]*slice{}, rounds: map[barrierKey]map[int][]*slice{}, packets: map[packetKey][]*slice{},
	}
	for _, s := range all {
		m.index(s)
	}
	for _, p := range m.ports {
		p.settle()
	}
	for _, s := range all {
		m.wait(s)
	}
	return m.arrows, m.rejected
}

// key returns what names a signal: of this rank, or for which it waits.
func key(s *slice, sends bool) (signalKey, bool) {
	c, ok := s.rank.Channels[s.event.Channel()]
	k := signalKey{call: c.Call, index: c.Index, from: s.rank.Rank, to: int(s.event.Peer()), number: s.event.Value}
	if !sends {
		k.from, k.to = k.to, k.from
	}
	return k, ok
}

func barrierOf(s *slice, block uint64) barrierKey {
	k := barrierKey{channel: s.event.Channel(), block: block}
	if members := s.rank.members(s.event); len(members) > 0 {
		k.leader = members[0]
	}
	return k
}

// index takes note of a signal and the like.
func (m *matcher) index(s *slice) {
	e := s.event
	switch e.Kind() {
	case native.EventSignal:
		if k, ok := key(s, true); ok {
			m.signals[k] = s
		}
	case native.EventPortSignal, native.EventHostSignal:
		if k, ok := key(s, true); ok {
			k.number = 0
			if m.ports[k] == nil {
				m.ports[k] = &portSignals{}
			}
			m.ports[k].add(s)
		}
	case native.EventPutPackets:
		if k, ok := key(s, true); ok {
			at := packetKey{k, e.Extra}
			m.packets[at] = append(m.packets[at], s)
		}
	case native.EventPush:
		m.pushes[servedKey{s.rank.Rank, e.Extra, e.Value}] = s
	case native.EventServe:
		m.serves[servedKey{s.rank.Rank, e.Extra, e.Value}] = s
	case native.EventBarrier:
		k := barrierOf(s, uint64(e.Block()))
		if m.barriers[k] == nil {
			m.barriers[k] = map[uint64][]*slice{}
		}
		m.barriers[k][e.Value] = append(m.barriers[k][e.Value], s)
	case native.EventRoundSignal:
		k := barrierOf(s, e.Extra)
		if m.rounds[k] == nil {
			m.rounds[k] = map[int][]*slice{}
		}
		m.rounds[k][s.rank.Rank] = append(m.rounds[k][s.rank.Rank], s)
	}
}

// wait draws the arrow to a wait, if it is one that a signal has ended.
func (m *matcher) wait(s *slice) {
	e := s.event
	if e.Kind() == native.EventServe {
		m.draw("trigger", m.pushes[servedKey{s.rank.Rank, e.Extra, e.Value}], s)
		return
	}
	if e.Note() != 0 { // it was not ended by a signal
		return
	}
	switch e.Kind() {
	case native.EventWait:
		if k, ok := key(s, false); ok {
			m.draw("signal", m.signals[k], s)
		}
	case native.EventPortWait:
		m.portWait(s)
	case native.EventWaitPackets:
		if k, ok := key(s, false); ok {
			m.draw("packets", m.latest(m.packets[packetKey{k, e.Extra}], s), s)
		}
	case native.EventAwaitTrigger, native.EventAwaitFlush:
		m.draw("served", m.serves[servedKey{s.rank.Rank, e.Extra, e.Value}], s)
	case native.EventBarrier:
		m.barrier(s)
	case native.EventRoundWait:
		m.roundWait(s)
	}
}

// latest returns the latest of signals that may have ended a wait, or nil.
func (m *matcher) latest(signals []*slice, wait *slice) *slice {
	var last *slice
	for _, s := range signals {
		if possible(s, wait) && (last == nil || s.start > last.start) {
			last = s
		}
	}
	return last
}

// barrier draws the arrow from the rank that came last. All must be known.
func (m *matcher) barrier(s *slice) {
	members := s.rank.members(s.event)
	var last *slice
	found := 0
	for _, other := range m.barriers[barrierOf(s, uint64(s.event.Block()))][s.event.Value] {
		if other.rank == s.rank || !slices.Contains(members, other.rank.Rank) {
			continue
		}
		if found++; last == nil || other.start > last.start {
			last = other
		}
	}
	if found == len(members)-1 {
		m.draw("barrier", last, s)
	}
}

// roundWait draws the arrow from the last of the signals that a wait for a round needs.
func (m *matcher) roundWait(s *slice) {
	peer := s.rank.peer(s.event)
	var last *slice
	for _, rank := range s.rank.members(s.event) {
		if rank == s.rank.Rank || peer >= 0 && rank != peer {
			continue
		}
		var ended *slice
		for _, signal := range m.rounds[barrierOf(s, s.event.Extra)][rank] {
			// It ends the rounds up to its number, which wraps around.
			if before := uint32(signal.event.Value) - uint32(s.event.Value); before < uint32(signal.event.Bytes) {
				ended = signal
			}
		}
		if ended == nil {
			return
		}
		if last == nil || ended.start > last.start {
			last = ended
		}
	}
	m.draw("round", last, s)
}

// possible reports whether a signal may have ended a wait, as far as the clocks tell.
func possible(signal, wait *slice) bool {
	slack := int64(0)
	if signal.rank != wait.rank {
		slack = int64(signal.rank.ClockError() + wait.rank.ClockError())
	} else if fromHost(signal) != fromHost(wait) {
		slack = int64(signal.rank.Devices.wrong())
	}
	return signal.start <= wait.end+slack
}

func fromHost(s *slice) bool { return s.event.Kind() >= native.EventServe }

// draw draws an arrow, if from is not nil.
func (m *matcher) draw(name string, from, to *slice) {
	switch {
	case from == nil:
	case possible(from, to):
		m.arrows = append(m.arrows, arrow{name, from, to})
	default:
		m.rejected++
	}
}
