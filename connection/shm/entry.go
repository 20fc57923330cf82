package shm

import (
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/connection/internal/message"
)

// entryWords is the size of an entry in words of 8 bytes, a line of the cache:
//
//	kind (4 bytes) and memory (4), offset, length, from, to, place, 0, 0
const entryWords = 8

// placed reports whether entries of the kind have a place in the ring.
func placed(k message.Kind) bool { return k == message.Data || k.Asks() }

// entry is a piece of work for the receiver.
type entry struct {
	kind   message.Kind
	memory uint32 // the number in the receiver's registry
	offset uint64
	length uint64 // of data, of a read and of an exchange
	from   uint64 // of an update
	to     uint64 // of an update, and the value of an addition and an exchange
	place  uint64 // in the ring
}

// toWord is which word of an entry is an update's value.
const toWord = 4

func (e *entry) encode() [entryWords]uint64 {
	return [entryWords]uint64{uint64(e.kind) | uint64(e.memory)<<32, e.offset, e.length, e.from, e.to, e.place}
}

// decodeEntry checks all that can be checked without the memory. room is how many bytes of
// data the ring holds.
func decodeEntry(w [entryWords]uint64, room uint64) (entry, error) {
	e := entry{
		kind: message.Kind(w[0]), memory: uint32(w[0] >> 32),
		offset: w[1], length: w[2], from: w[3], to: w[4], place: w[5],
	}
	switch {
	case w[6]|w[7] != 0:
		return e, errors.New("an entry with bits set that must be zero")
	case e.kind < message.Data || e.kind > message.Exchange:
		return e, fmt.Errorf("an entry of unknown kind %d", e.kind)
	case !placed(e.kind) && e.length|e.place != 0, e.kind != message.Update && e.from != 0, !e.kind.Word() && e.to != 0:
		return e, fmt.Errorf("an entry of kind %d with fields set that must be zero", e.kind)
	case e.kind == message.Update && e.to < e.from:
		return e, fmt.Errorf("an update from %d down to %d", e.from, e.to)
	case e.kind == message.Exchange && (e.length != 8 || e.place%8 != 0):
		return e, fmt.Errorf("an exchange of %d bytes at %d of the ring", e.length, e.place)
	case placed(e.kind) && (e.length == 0 || e.place > room || e.length > room-e.place):
		return e, fmt.Errorf("%d bytes at %d of a ring of %d", e.length, e.place, room)
	}
	return e, nil
}

// bytes returns how many bytes of the memory an entry changes or reads.
func (e *entry) bytes() uint64 {
	if e.kind.Word() {
		return 8
	}
	return e.length
}

// String describes what the entry asks for.
func (e *entry) String() string {
	switch e.kind {
	case message.Update:
		return fmt.Sprintf("a new value of the word at %d of memory %d", e.offset, e.memory)
	case message.Add:
		return fmt.Sprintf("an addition at %d of memory %d", e.offset, e.memory)
	case message.Exchange:
		return fmt.Sprintf("an exchange at %d of memory %d", e.offset, e.memory)
	case message.Read:
		return fmt.Sprintf("a read of %d bytes at %d of memory %d", e.length, e.offset, e.memory)
	}
	return fmt.Sprintf("%d bytes at %d of memory %d", e.length, e.offset, e.memory)
}
