package communicator

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/watch"
)

// A board is memory that the ranks of a host share to compare their calls. The
// first rank to make a call leaves a note in the call's slot; later ranks compare
// theirs with it. No rank waits.
//
// A note holds a digest of the call and of all calls before it. A rank that finds
// its slot taken by a much later call therefore still detects a difference when it
// has caught up. Each rank also keeps the text of its last calls.
//
// A board also has a pulse of each rank of the group: a beat that moves while the rank
// lives, and what it reports about itself. The ranks of the host write their own, and
// their leader those that it hears of from other hosts.
//
// The contents of a board are not trusted: they are compared and printed, and
// nothing else depends on them.
type board struct {
	head   *boardHead
	slots  *[boardSlots]uint64
	ranks  []boardRank
	pulses []boardPulse // of the group's ranks
}

const (
	boardSlots = 4096 // a rank that is this many calls behind is not compared
	boardTexts = 64   // calls of a rank whose text is kept
	textBytes  = 120
	maxBoard   = 1 << 16 // ranks
)

// boardHead identifies the layout.
type boardHead struct {
	version uint64
	ranks   uint64
	group   uint64 // ranks of the group
	asked   uint64 // questions of ranks that want a verdict
	job     uint64 // the same on all hosts
	started uint64 // Unix milliseconds
	_       [16]byte
}

// boardVersion changes with the layout.
const boardVersion = 'm'<<24 | 'b'<<16 | 10

// boardRank is what only one rank writes.
type boardRank struct {
	texts [boardTexts]boardText
}

// boardText is the text of a call. Its number is 0 while it is written.
type boardText struct {
	number uint64
	text   [textBytes]byte // ends with the first zero
}

// boardPulse is what only one rank writes: the rank itself, or the leader of its host.
type boardPulse struct {
	beat     uint64         // Unix milliseconds, or more; 0 before the first; gone after the last
	step     uint64         // see Communicator.comeTo; of ranks of this host
	turn     uint64         // how many statuses there were
	statuses [2]boardStatus // the last is at turn % 2; the other is what is written next
}

// boardStatus is an encoded status.
type boardStatus struct {
	length uint64
	words  [watch.MaxBytes / 8]uint64
}

// gone is the beat of a rank that has left in good order.
const gone = 1<<64 - 1

// boardBytes returns the size of the board of some ranks of a group.
func boardBytes(ranks, group int) int {
	return int(unsafe.Sizeof(boardHead{})) + boardSlots*8 + ranks*int(unsafe.Sizeof(boardRank{})) + group*int(unsafe.Sizeof(boardPulse{}))
}

// boardIn returns the board in memory that is boardBytes(ranks, group) long and aligned
// to 8 bytes.
func boardIn(mem []byte, ranks, group int) *board {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	b := &board{head: (*boardHead)(p)}
	p = unsafe.Add(p, unsafe.Sizeof(boardHead{}))
	b.slots = (*[boardSlots]uint64)(p)
	p = unsafe.Add(p, boardSlots*8)
	b.ranks = unsafe.Slice((*boardRank)(p), ranks)
	p = unsafe.Add(p, ranks*int(unsafe.Sizeof(boardRank{})))
	b.pulses = unsafe.Slice((*boardPulse)(p), group)
	return b
}

// A note is the word in a slot: the lap in which the call was made (16 bits), the
// index of the rank that made it first (16) and part of the digest (32).
type note uint64

func newNote(number uint64, index int, digest uint64) note {
	lap := number/boardSlots + 1 // 0 is an empty slot
	return note(lap<<48 | uint64(index)<<32 | digest&0xffffffff)
}

func (n note) index() int                 { return int(n >> 32 & 0xffff) }
func (n note) matches(digest uint64) bool { return uint32(n) == uint32(digest) }

// since returns by how many laps n is newer than the call.
func (n note) since(number uint64) int16 {
	return int16(uint16(n>>48) - uint16(number/boardSlots+1))
}

// post notes a call of the rank with the given index. It returns the note of the
// rank that made the call first, which may be this one. It reports whether there is
// such a note: there is none if another rank is boardSlots calls ahead.
func (b *board) post(index int, number, digest uint64, text string) (note, bool) {
	b.write(index, number, text)
	mine := newNote(number, index, digest)
	slot := &b.slots[number%boardSlots]
	for range maxBoard { // a retry means that another rank wrote
		seen := note(atomic.LoadUint64(slot))
		if since := seen.since(number); since >= 0 {
			return seen, since == 0
		}
		if atomic.CompareAndSwapUint64(slot, uint64(seen), uint64(mine)) {
			return mine, true
		}
	}
	return 0, false
}

// look returns the note of a call. since is 0 if the note is there, negative if no
// rank of the host has made the call yet, and positive if a later call has taken
// the slot.
func (b *board) look(number uint64) (n note, since int16) {
	n = note(atomic.LoadUint64(&b.slots[number%boardSlots]))
	return n, n.since(number)
}

// write stores the text of a rank's call.
func (b *board) write(index int, number uint64, text string) {
	t := &b.ranks[index].texts[number%boardTexts]
	atomic.StoreUint64(&t.number, 0)
	if n := copy(t.text[:], text); n < textBytes {
		t.text[n] = 0
	}
	atomic.StoreUint64(&t.number, number)
}

// text returns the text of a call by the rank with the given index, and whether it
// is still there. Neither the index nor the text is trusted.
func (b *board) text(index int, number uint64) (string, bool) {
	if index >= len(b.ranks) {
		return "", false
	}
	t := &b.ranks[index].texts[number%boardTexts]
	before := atomic.LoadUint64(&t.number)
	text := t.text
	if after := atomic.LoadUint64(&t.number); before != number || after != number {
		return "", false
	}
	return printable(text[:]), true
}

// beat moves a rank's beat.
func (b *board) beat(rank int, beat uint64) { atomic.StoreUint64(&b.pulses[rank].beat, beat) }

// beatOf returns a rank's beat.
func (b *board) beatOf(rank int) uint64 { return atomic.LoadUint64(&b.pulses[rank].beat) }

// asked returns the number of questions for what all ranks know.
func (b *board) asked() uint64 { return atomic.LoadUint64(&b.head.asked) }

// ask sets it.
func (b *board) ask(questions uint64) { atomic.StoreUint64(&b.head.asked, questions) }

// turnOf returns a number that changes with a rank's status.
func (b *board) turnOf(rank int) uint64 { return atomic.LoadUint64(&b.pulses[rank].turn) }

// report stores a rank's status, of at most watch.MaxBytes. The one before stays readable
// meanwhile, also if this process is stopped.
func (b *board) report(rank int, status []byte) {
	p := &b.pulses[rank]
	turn := atomic.LoadUint64(&p.turn) + 1
	s := &p.statuses[turn%2]
	var word [8]byte
	for i := 0; i < len(status); i += len(word) {
		word = [8]byte{}
		copy(word[:], status[i:])
		atomic.StoreUint64(&s.words[i/len(word)], binary.LittleEndian.Uint64(word[:]))
	}
	atomic.StoreUint64(&s.length, uint64(len(status)))
	atomic.StoreUint64(&p.turn, turn)
}

// statusOf returns a rank's status, or nil if there is none, or new ones come all the time. What goes into the
// same place next is written after the turn has moved on, and Go's atomics are in one order: so a status is whole
// if the turn behind it is that before.
func (b *board) statusOf(rank int) []byte {
	p := &b.pulses[rank]
	for range 100 {
		turn := atomic.LoadUint64(&p.turn)
		s := &p.statuses[turn%2]
		n := min(atomic.LoadUint64(&s.length), watch.MaxBytes)
		words := (n + 7) / 8
		status := make([]byte, 0, words*8)
		for i := range words {
			status = binary.LittleEndian.AppendUint64(status, atomic.LoadUint64(&s.words[i]))
		}
		if atomic.LoadUint64(&p.turn) == turn {
			if n == 0 {
				return nil
			}
			return status[:n]
		}
	}
	return nil
}

// printable returns the text before the first zero, with ? for what is not printable
// ASCII.
func printable(text []byte) string {
	if i := bytes.IndexByte(text, 0); i >= 0 {
		text = text[:i]
	}
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text))
}

// The multipliers of the digest are the first 64 bits of the fractions of the square
// roots of 2 and 3, both odd.
const (
	root2 = 0x6a09e667f3bcc909
	root3 = 0xbb67ae8584caa73b
)

// extend returns the digest of the calls of digest before and one more call.
func extend(before uint64, text string) uint64 {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	h := fold(before^root2, root3)
	for ; len(b) >= 8; b = b[8:] {
		h = fold(h^binary.LittleEndian.Uint64(b), root2)
	}
	rest := uint64(len(text)) << 56
	for i, c := range b {
		rest |= uint64(c) << (8 * i)
	}
	return fold(h^rest^root3, root2)
}

// fold mixes two words into one.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}
