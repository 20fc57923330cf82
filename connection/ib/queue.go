package ib

import (
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Depths of a queue pair.
const (
	minDepth = 16
	maxDepth = 1 << 14
)

// ledger records which requests of a send queue are posted and which are done.
// Requests have consecutive numbers. The completion of one means that all before it
// are done too, so only some request a completion.
type ledger struct {
	depth    uint64
	posted   uint64 // all below are posted
	done     uint64 // all below are done
	signaled uint64 // all below are covered by a completion that was requested
	waitFor  uint64 // requests below must be done before an update is posted
	wrote    uint64 // all requests that change the peer's memory are below
	atomics  uint64 // all additions are below
	entries  []entry

	polls int       // in a row that found nothing, with requests under way
	since time.Time // of the first of them, about
}

// entry describes a request, for its order with others and for messages.
type entry struct {
	doing  string
	memory *registeredmem.Memory // the peer's
	offset uint64
	n      uint64

	// Of a write of memory and of a read, which may be in each other's way at this rank too.
	local       *registeredmem.Memory
	localOffset uint64
	read        bool

	atomic bool // an addition
}

func (e *entry) String() string {
	if e.memory == nil {
		return e.doing
	}
	return fmt.Sprintf("%s of %d bytes at offset %d of %v", e.doing, e.n, e.offset, e.memory)
}

func newLedger(depth int) ledger {
	return ledger{depth: uint64(depth), entries: make([]entry, depth)}
}

// room returns how many more requests fit in the queue.
func (l *ledger) room() int { return int(l.depth - (l.posted - l.done)) }

// add adds a request and returns its number and flags. It requests a completion if
// signal is set, and at least once in a quarter of the queue, so that there is room
// again long before the queue is full.
func (l *ledger) add(e entry, signal bool) (id uint64, flags verbs.Flags) {
	id = l.posted
	l.entries[id%l.depth] = e
	l.posted++
	if e.memory != nil && !e.read {
		l.wrote = l.posted
	}
	if e.atomic {
		l.atomics = l.posted
	}
	if signal || l.posted-l.signaled >= l.depth/4 {
		l.signaled = l.posted
		return id, verbs.Signaled
	}
	return id, 0
}

// complete records a completion. It reports false if the request is not under way.
func (l *ledger) complete(id uint64) (what entry, ok bool) {
	if id < l.done || id >= l.posted {
		return entry{}, false
	}
	l.done = id + 1
	return l.entries[id%l.depth], true
}

// silence records what a poll found, and returns for how long polls have found nothing
// although requests are under way. It reads the clock once in 64 polls.
func (l *ledger) silence(found int) time.Duration {
	if found > 0 || l.done == l.posted {
		l.polls = 0
		return 0
	}
	l.polls++
	if l.polls%64 != 0 {
		return 0
	}
	if l.polls == 64 {
		l.since = time.Now()
	}
	return time.Since(l.since)
}

// conflict returns the number below which all requests must be done before one of a queue
// pair may be posted: of the same one, which does writes, and also reads, in their order,
// or of another, with which there is none.
func (l *ledger) conflict(next *entry, same bool) (end uint64) {
	if same && !next.read && l.done >= max(l.waitFor, l.atomics) {
		return 0 // all reads and additions are done
	}
	for id := l.done; id < l.posted; id++ {
		e := &l.entries[id%l.depth]
		there := overlap(e.memory, e.offset, e.n, next.memory, next.offset, next.n) && !(e.read && next.read)
		here := overlap(e.local, e.localOffset, e.n, next.local, next.localOffset, next.n) && (e.read || next.read)
		if same {
			// A write follows writes, a read all, but for what a write has yet to send, and an
			// addition all but reads.
			there = there && (e.read || e.atomic && !next.read && !next.atomic)
			here = here && e.read != next.read
		}
		if there || here {
			end = id + 1
		}
	}
	return end
}

// overlap reports whether two ranges share a byte.
func overlap(m *registeredmem.Memory, offset, n uint64, other *registeredmem.Memory, otherOffset, otherN uint64) bool {
	return m != nil && other != nil && m.ID() == other.ID() && offset < otherOffset+otherN && otherOffset < offset+n
}

// oldest describes the first request that is not done, of a caller's if there is one.
func (l *ledger) oldest() *entry {
	for id := l.done; id < l.posted; id++ {
		if e := &l.entries[id%l.depth]; e.memory != nil {
			return e
		}
	}
	return &l.entries[l.done%l.depth]
}

// piece is a part of a write, for one request.
type piece struct{ offset, n uint64 }

// spreadFrom is the size from which a write is spread over all queue pairs.
const spreadFrom = 256 << 10

// spread returns the part of n bytes that queue pair i of count writes. All parts but
// the last are whole pages.
func spread(n uint64, i, count int) piece {
	if count == 1 || n < spreadFrom {
		if i > 0 {
			return piece{}
		}
		return piece{0, n}
	}
	const page = 4096
	each := (n/uint64(count) + page) / page * page
	from := min(n, each*uint64(i))
	return piece{from, min(n-from, each)}
}
