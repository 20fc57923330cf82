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

// ledger keeps the account of one send queue: which requests are posted, and
// which are known to be done. Requests have consecutive numbers. A completion of
// one says that all before it are done too, so only some ask for one.
type ledger struct {
	depth    uint64
	posted   uint64 // all below are posted
	done     uint64 // all below are done
	signaled uint64 // all below will be known to be done by a completion asked for
	entries  []entry

	polls int       // in a row that found nothing, with requests under way
	since time.Time // of the first of them, about
}

// entry says what a request is for, for messages.
type entry struct {
	doing  string
	memory *registeredmem.Memory
	offset uint64
	n      uint64
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

// room gives how many requests more the queue holds.
func (l *ledger) room() int { return int(l.depth - (l.posted - l.done)) }

// add counts one more request, gives its number, and whether it must ask for a
// completion: when it is told to, and each time that a quarter of the queue has
// not, so that there is room again long before the queue is full.
func (l *ledger) add(e entry, signal bool) (id uint64, flags verbs.Flags) {
	id = l.posted
	l.entries[id%l.depth] = e
	l.posted++
	if signal || l.posted-l.signaled >= l.depth/4 {
		l.signaled = l.posted
		return id, verbs.Signaled
	}
	return id, 0
}

// complete notes a completion. Of one that cannot be, it says so.
func (l *ledger) complete(id uint64) (what entry, ok bool) {
	if id < l.done || id >= l.posted {
		return entry{}, false
	}
	l.done = id + 1
	return l.entries[id%l.depth], true
}

// silence notes what a poll found, and says for how long polls have found nothing
// though requests are under way. It looks at the clock but once in 64 polls.
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

// oldest tells of the first request that is not done.
func (l *ledger) oldest() *entry { return &l.entries[l.done%l.depth] }

// piece is a part of a write, for one request.
type piece struct{ offset, n uint64 }

// spreadFrom is the size from which a write goes over all queue pairs.
const spreadFrom = 256 << 10

// spread gives the part of n bytes that queue pair i of count carries. All but
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
