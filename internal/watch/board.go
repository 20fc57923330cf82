package watch

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// A Board is memory that the ranks of a host share. It has what each rank of the group reports about itself: a beat that
// moves while the rank lives, and a [Status]. The ranks of the host write their own, and their leader writes what it hears of
// other hosts. It also has the last calls of the ranks of the host, which compare them; see [Calls].
//
// Every word has one writer. The contents are not trusted: they are compared and printed, and nothing else depends on
// them.
type Board struct {
	head   *boardHead
	calls  []boardCalls // of the host's ranks, by index
	pulses []boardPulse // of the group's ranks
}

const (
	boardNotes = 4096 // calls of a rank whose digest is kept
	boardTexts = 64   // calls of a rank whose text is kept

	// MaxBoard is the largest number of ranks that share a board.
	MaxBoard = 1 << 14
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
const boardVersion = 'm'<<24 | 'b'<<16 | 11

// boardCalls are the last calls of a rank, each at its number modulo the length.
type boardCalls struct {
	notes [boardNotes]uint64
	texts [boardTexts]boardText
}

// boardText is the text of a call. Its number is 0 while it is written.
type boardText struct {
	number uint64
	text   [MaxText]byte // ends with the first zero
}

// boardPulse is what only one rank writes: the rank itself, or the leader of its host.
type boardPulse struct {
	beat     uint64         // Unix milliseconds, or more; 0 before the first; Gone after the last
	step     uint64         // see Behind; of ranks of this host
	turn     uint64         // how many statuses there were
	statuses [2]boardStatus // the last is at turn % 2; the other is what is written next
}

// boardStatus is an encoded status.
type boardStatus struct {
	length uint64
	words  [MaxBytes / 8]uint64
}

// Gone is the beat of a rank that has left in good order.
const Gone = 1<<64 - 1

// boardBytes returns the size of the board of some ranks of a group.
func boardBytes(ranks, group int) int {
	return int(unsafe.Sizeof(boardHead{})) + ranks*int(unsafe.Sizeof(boardCalls{})) + group*int(unsafe.Sizeof(boardPulse{}))
}

// boardIn returns the board in memory that is boardBytes(ranks, group) long and aligned to 8 bytes.
func boardIn(mem []byte, ranks, group int) *Board {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	b := &Board{head: (*boardHead)(p)}
	p = unsafe.Add(p, unsafe.Sizeof(boardHead{}))
	b.calls = unsafe.Slice((*boardCalls)(p), ranks)
	p = unsafe.Add(p, ranks*int(unsafe.Sizeof(boardCalls{})))
	b.pulses = unsafe.Slice((*boardPulse)(p), group)
	return b
}

// post shows a call of the rank with the given index.
func (b *Board) post(index int, c *Call) {
	t := &b.calls[index].texts[c.Number%boardTexts]
	atomic.StoreUint64(&t.number, 0)
	if n := copy(t.text[:], c.Text); n < len(t.text) {
		t.text[n] = 0
	}
	atomic.StoreUint64(&t.number, c.Number)
	atomic.StoreUint64(&b.calls[index].notes[c.Number%boardNotes], c.note())
}

// differs reports whether the rank with the given index is known to have made another call of this number.
func (b *Board) differs(index int, c *Call) bool {
	theirs, ours := atomic.LoadUint64(&b.calls[index].notes[c.Number%boardNotes]), c.note()
	return theirs>>32 == ours>>32 && theirs != ours
}

// text returns the text of a call by the rank with the given index, and whether it is still there.
func (b *Board) text(index int, number uint64) (string, bool) {
	t := &b.calls[index].texts[number%boardTexts]
	before := atomic.LoadUint64(&t.number)
	text := t.text
	if after := atomic.LoadUint64(&t.number); before != number || after != number {
		return "", false
	}
	if i := bytes.IndexByte(text[:], 0); i >= 0 {
		return wire.Printable(string(text[:i])), true
	}
	return wire.Printable(string(text[:])), true
}

// Beat moves a rank's beat.
func (b *Board) Beat(rank int, beat uint64) { atomic.StoreUint64(&b.pulses[rank].beat, beat) }

// BeatOf returns a rank's beat.
func (b *Board) BeatOf(rank int) uint64 { return atomic.LoadUint64(&b.pulses[rank].beat) }

// Asked returns the number of questions for what all ranks know.
func (b *Board) Asked() uint64 { return atomic.LoadUint64(&b.head.asked) }

// Ask sets it.
func (b *Board) Ask(questions uint64) { atomic.StoreUint64(&b.head.asked, questions) }

// ComeTo notes that a rank has come to a step.
func (b *Board) ComeTo(rank int, step uint64) { atomic.StoreUint64(&b.pulses[rank].step, step) }

// Behind reports whether a rank of this host has not come to a step, and has not left.
func (b *Board) Behind(rank int, step uint64) bool {
	return atomic.LoadUint64(&b.pulses[rank].step) < step && b.BeatOf(rank) != Gone
}

// TurnOf returns a number that changes with a rank's status.
func (b *Board) TurnOf(rank int) uint64 { return atomic.LoadUint64(&b.pulses[rank].turn) }

// Report stores a rank's encoded status. The one before stays readable meanwhile, also if this process is stopped.
func (b *Board) Report(rank int, status []byte) {
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

// Reported returns a rank's encoded status, or nil if there is none, or new ones come all the time. What goes into the
// same place next is written after the turn has moved on, and Go's atomics are in one order: so a status is whole
// if the turn behind it is the turn before it.
func (b *Board) Reported(rank int) []byte {
	p := &b.pulses[rank]
	for range 100 {
		turn := atomic.LoadUint64(&p.turn)
		s := &p.statuses[turn%2]
		n := min(atomic.LoadUint64(&s.length), MaxBytes)
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

// StatusOf returns a rank's status, or nil if there is none that can be read.
func (b *Board) StatusOf(rank int) *Status {
	s, err := Decode(b.Reported(rank))
	if err != nil {
		return nil
	}
	return s
}
