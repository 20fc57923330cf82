package ib

// #include "post.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"golang.org/x/sys/unix"
)

// scratch is memory of a connection, registered in two parts: one that only this
// rank's requests use, and the inbox, which the peer writes and reads.
type scratch struct {
	bytes []byte
	inbox []byte      // its part of bytes
	mrs   []*verbs.MR // of this rank's part, with each device
	in    *verbs.MR   // of the inbox, with the first device
}

// Offsets in this rank's part.
const (
	takenAt = 16          // what a read of the peer's count returns, behind what C uses
	oldAt   = 24          // what an exchanged word was
	outAt   = C.IB_OUT_AT // outgoing messages and values, one for each request that may be under way
)

// Offsets in the inbox. The first messages are the slots of messages.
const (
	countAt   = messages * messageSize // how many this rank has applied; read by the peer
	dumpAt    = countAt + 4            // a byte that the peer writes and nobody reads
	oldsAt    = countAt + 8            // what words were that messages exchanged, by slot; read by the peer
	goodbyeAt = oldsAt + 8*messages    // a word that the peer writes when it closes
	inboxSize = goodbyeAt + 8
)

// newScratch returns the memory for queues of a depth. The caller closes it, also
// after an error.
func newScratch(nics []*nic, depth uint64) (s *scratch, err error) {
	page := uint64(unix.Getpagesize())
	own := (outAt + depth*messageSize + page - 1) / page * page // the inbox begins at a page, as a registration does
	s = &scratch{}
	if s.bytes, err = unix.Mmap(-1, 0, int(own+inboxSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return s, mscclgo.Errorf(mscclgo.ErrSystem, "ib: allocate", "no %d bytes: %w", own+inboxSize, err)
	}
	s.inbox = s.bytes[own:]
	for _, n := range nics {
		mr, err := n.pd.Register(addressOf(s.bytes), own, 0, verbs.LocalWrite)
		if err != nil {
			return s, err
		}
		s.mrs = append(s.mrs, mr)
	}
	s.in, err = nics[0].pd.Register(addressOf(s.inbox), inboxSize, 0, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	return s, err
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// put writes an outgoing message and returns its offset.
func (s *scratch) put(slot uint64, m message) uint64 {
	at := outAt + slot*messageSize
	binary.LittleEndian.PutUint32(s.bytes[at:], m.memory)
	binary.LittleEndian.PutUint32(s.bytes[at+4:], uint32(m.kind))
	binary.LittleEndian.PutUint64(s.bytes[at+8:], m.offset)
	binary.LittleEndian.PutUint64(s.bytes[at+16:], m.value)
	return at
}

// get reads a message that has arrived.
func (s *scratch) get(slot uint32) message {
	b := s.inbox[slot*messageSize:]
	return message{
		memory: binary.LittleEndian.Uint32(b), kind: messageKind(binary.LittleEndian.Uint32(b[4:])),
		offset: binary.LittleEndian.Uint64(b[8:]), value: binary.LittleEndian.Uint64(b[16:]),
	}
}

// old returns what an exchanged word was.
func (s *scratch) old() uint64 { return binary.NativeEndian.Uint64(s.bytes[oldAt:]) }

// putOld writes what a word was that the message in a slot exchanged, for the peer.
func (s *scratch) putOld(slot uint32, value uint64) {
	binary.NativeEndian.PutUint64(s.inbox[oldsAt+8*slot:], value)
}

// taken returns the peer's count as it was last read.
func (s *scratch) taken() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&s.bytes[takenAt])))
}

// count sets the count that the peer reads.
func (s *scratch) count(n uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.inbox[countAt])), n)
}

// close releases the memory. No request may be under way.
func (s *scratch) close() error {
	var errs []error
	for _, mr := range append(s.mrs, s.in) {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if s.bytes != nil {
		errs = append(errs, unix.Munmap(s.bytes))
	}
	return errors.Join(errs...)
}
