package communicator

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// A board is memory that the ranks of a host share, in which each notes the
// calls that it makes. The first rank to make a call leaves a note of it in the
// call's slot; those that come later compare theirs with it. Nobody waits.
//
// A note holds a digest of the call and of all before it, so that a rank that
// found its slot taken by a much later call still finds the difference when it
// has caught up. Beside the notes each rank keeps the text of its last calls.
//
// What other processes wrote is not trusted: it is compared and printed, and
// nothing more.
type board struct {
	head  *boardHead
	slots *[boardSlots]uint64
	ranks []boardRank
}

const (
	boardSlots = 4096 // calls that a rank may be behind another and still be compared
	boardTexts = 64   // calls of a rank whose text is kept
	textBytes  = 120
	maxBoard   = 1 << 16 // ranks
)

// boardHead identifies the layout.
type boardHead struct {
	version uint64
	ranks   uint64
	_       [48]byte
}

// boardVersion changes with the layout.
const boardVersion = 'm'<<24 | 'b'<<16 | 1

// boardRank is what one rank alone writes.
type boardRank struct {
	texts [boardTexts]boardText
}

// boardText describes a call. While it is being written its number is 0.
type boardText struct {
	number uint64
	text   [textBytes]byte // ends with the first zero
}

// boardBytes returns the size of a board for some ranks.
func boardBytes(ranks int) int {
	return int(unsafe.Sizeof(boardHead{})) + boardSlots*8 + ranks*int(unsafe.Sizeof(boardRank{}))
}

// boardIn returns the board in memory that is boardBytes(ranks) long and aligned
// to 8 bytes.
func boardIn(mem []byte, ranks int) *board {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	b := &board{head: (*boardHead)(p)}
	p = unsafe.Add(p, unsafe.Sizeof(boardHead{}))
	b.slots = (*[boardSlots]uint64)(p)
	b.ranks = unsafe.Slice((*boardRank)(unsafe.Add(p, boardSlots*8)), ranks)
	return b
}

// A note is the first word of a call: how often the slots were gone through when
// it was made (16 bits), the index of the rank that made it (16) and a part of
// the digest (32).
type note uint64

func newNote(number uint64, index int, digest uint64) note {
	lap := number/boardSlots + 1 // an empty slot is of lap 0
	return note(lap<<48 | uint64(index)<<32 | digest&0xffffffff)
}

func (n note) index() int                 { return int(n >> 32 & 0xffff) }
func (n note) matches(digest uint64) bool { return uint32(n) == uint32(digest) }

// since returns how many laps n is newer than the call of that number.
func (n note) since(number uint64) int16 {
	return int16(uint16(n>>48) - uint16(number/boardSlots+1))
}

// post notes a call of the rank with that index. It returns the note of the rank
// that made the call first, perhaps this one's own. It reports false where there
// is nothing to compare, as others are boardSlots calls ahead.
func (b *board) post(index int, number, digest uint64, text string) (note, bool) {
	b.write(index, number, text)
	mine := newNote(number, index, digest)
	slot := &b.slots[number%boardSlots]
	for range maxBoard { // more writers than that are no ranks of ours
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

// look returns the note of a call. since is 0 where it is there, negative before
// any rank of the host has made the call, and positive once later calls have taken
// the slot.
func (b *board) look(number uint64) (n note, since int16) {
	n = note(atomic.LoadUint64(&b.slots[number%boardSlots]))
	return n, n.since(number)
}

// write keeps the text of a rank's call.
func (b *board) write(index int, number uint64, text string) {
	t := &b.ranks[index].texts[number%boardTexts]
	atomic.StoreUint64(&t.number, 0)
	if n := copy(t.text[:], text); n < textBytes {
		t.text[n] = 0
	}
	atomic.StoreUint64(&t.number, number)
}

// text returns what the rank with that index wrote about a call, and false where
// it is not there any more. It may be anything, as may the index.
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

// printable returns the text before the first zero, fit for an error.
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

// The multipliers of the digest are 64 bits of the fractions of the square roots
// of 2 and 3: odd, and half of their bits set.
const (
	root2 = 0x6a09e667f3bcc909
	root3 = 0xbb67ae8584caa73b
)

// extend returns the digest of the calls that before is of and one more.
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
