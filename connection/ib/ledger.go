package ib

// #include "post.h"
import "C"

import (
	"fmt"
	"unsafe"

	_ "github.com/mscclgo/mscclgo/connection/ib/internal/ledger" // the header
	"github.com/mscclgo/mscclgo/registeredmem"
)

// ledger records which requests of a send queue are posted and which are done: the ib_ledger,
// which lies in C.
type ledger struct {
	depth    uint64
	posted   uint64 // all below are posted
	done     uint64 // all below are done
	signaled uint64 // all below are covered by a completion that was requested
	waitFor  uint64 // requests below must be done before an update is posted
	wrote    uint64 // all requests that change the peer's memory are below
	atomics  uint64 // all additions are below
	entries  *entry

	polls uint64
	since int64
}

// entry describes a request, for its order with others and for messages: the ib_entry.
type entry struct {
	there, here  part
	n            uint64
	doing        doing
	read, atomic bool
}

// part is where a request reads or writes: the ib_part.
type part struct {
	memory uint64 // 1 + its ID, or 0 for none of a caller's
	size   uint64 // of the memory
	offset uint64
	place  uint64
}

// Go and C must lay these out alike.
const (
	_ = -(unsafe.Sizeof(ledger{}) ^ C.sizeof_ib_ledger)
	_ = -(unsafe.Sizeof(entry{}) ^ C.sizeof_ib_entry)
)

// part returns where in the peer's memory, of which it is the key, a request is to change something.
func (k *key) part(m *registeredmem.Memory, offset uint64) part {
	return part{uint64(m.ID()) + 1, m.Size(), offset, k.place + offset}
}

// doing says what a request does.
type doing uint32

func (d doing) String() string {
	return [...]string{
		C.IB_NOTHING:  "request",
		C.IB_WRITE:    "write",
		C.IB_WRITTEN:  "read after a write",
		C.IB_STORE:    "store",
		C.IB_UPDATE:   "update",
		C.IB_ADDITION: "addition",
		C.IB_EXCHANGE: "exchange",
		C.IB_READ:     "read",
		C.IB_MARKED:   "read before a mark",
		C.IB_LANDED:   "write behind a read",
		C.IB_EMPTY:    "empty write",
		C.IB_APPLIED:  "read of the number of updates applied",
		C.IB_OLD:      "read of what a word was",
		C.IB_GREETING: "greeting",
		C.IB_NEWS:     "news of a closed memory",
		C.IB_GOODBYE:  "goodbye",
		C.IB_RECEIVE:  "receive",
	}[d]
}

// text describes a request to the memory of a peer, for messages.
func (e *entry) text(peer int) string {
	if e.there.memory == 0 {
		return e.doing.String()
	}
	return fmt.Sprintf("%v of %d bytes at offset %d of memory %d of rank %d (%d bytes)", e.doing, e.n, e.there.offset, e.there.memory-1, peer, e.there.size)
}

// room returns how many more requests fit in the queue.
func (l *ledger) room() int { return int(l.depth - (l.posted - l.done)) }
