package shm

import (
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/connection/internal/message"
)

// entryWords is the size of an entry in words of 8 bytes, a line of the cache: a frame's head,
// the place of its bytes in the ring, 0, 0. Each entry is an operation of its own.
const entryWords = 8

// placed reports whether entries of the kind have a place in the ring.
func placed(k message.Kind) bool { return k == message.Data || k.Asks() }

// entry is a piece of work for the receiver.
type entry struct {
	message.Frame
	place uint64
}

func (e *entry) encode() [entryWords]uint64 {
	w := e.Words()
	return [entryWords]uint64{w[0], w[1], w[2], w[3], w[4], e.place}
}

// decodeEntry checks all that can be checked without the memory. room is how many bytes of
// data the ring holds.
func decodeEntry(w [entryWords]uint64, room uint64) (entry, error) {
	f, err := message.DecodeWords([message.FrameWords]uint64(w[:]))
	e := entry{f, w[message.FrameWords]}
	switch {
	case err != nil:
		return e, err
	case w[6]|w[7] != 0:
		return e, errors.New("an entry with bits set that must be zero")
	case !e.Kind.Operation():
		return e, fmt.Errorf("an entry of kind %d", e.Kind)
	case !placed(e.Kind) && e.place != 0, e.Kind == message.Exchange && e.place%8 != 0, placed(e.Kind) && (e.place > room || e.Length > room-e.place):
		return e, fmt.Errorf("%d bytes at %d of a ring of %d", e.Length, e.place, room)
	}
	return e, nil
}
