package ethernet

import (
	"errors"
	"fmt"

	"encoding/binary"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// A frame starts with frameSize bytes, little-endian:
//
//	version (1), kind (1), reason (1), refused (1), memory (4), op (8), offset (8), length (8), total (8)
//
// For an update length is the old value and total the new one; for an addition and an exchange
// length is 8 and total the value; for a read both are how
// many bytes are read; for an answer op is the read's, and offset that in what was read; for
// an acknowledgement op counts the operations that are done. length bytes of payload
// follow the head of a data frame and of an answer. reason and the kind that was refused are 0 but in a
// refusal, which otherwise repeats the frame that was refused. A withdrawal has a
// memory only, and news of a broken socket or of a failure nothing.
const (
	frameSize    = 40
	frameVersion = 4
)

type frameKind uint8

const (
	kindData   frameKind = 1 // part of a write
	kindUpdate frameKind = 2 // a word gets a new value, by an update or a store
	kindAck    frameKind = 3 // on the control socket: all before op is done
	kindBye    frameKind = 4 // on the control socket: the peer closes in good order
	kindRefuse frameKind = 5 // on the control socket: the peer refused a frame, and will close
	kindGone   frameKind = 6 // on the control socket: the peer has closed a memory
	kindBroke  frameKind = 7 // on the control socket: a data socket broke, and the connection ends
	kindGet    frameKind = 8 // a read, which the receiver answers
	kindAnswer frameKind = 9 // part of what was read, out of the order of the operations

	kindAdd      frameKind = 10 // a value is added to a word
	kindExchange frameKind = 11 // a word gets a new value, and the receiver answers with the old one

	kindFailed frameKind = 12 // on the control socket: the peer's device or system failed, and the connection ends
)

// frame is the head of a message on a socket.
type frame struct {
	kind    frameKind
	reason  target.Reason
	refused frameKind // one of those on data sockets
	memory  uint32    // the number in the receiver's registry
	op      uint64    // of the connection's direction, counting from 0
	offset  uint64
	length  uint64 // of the payload
	total   uint64 // bytes of the operation's frames together
}

func (f *frame) encode(b []byte) {
	_ = b[frameSize-1]
	b[0], b[1], b[2], b[3] = frameVersion, uint8(f.kind), uint8(f.reason), uint8(f.refused)
	binary.LittleEndian.PutUint32(b[4:], f.memory)
	binary.LittleEndian.PutUint64(b[8:], f.op)
	binary.LittleEndian.PutUint64(b[16:], f.offset)
	binary.LittleEndian.PutUint64(b[24:], f.length)
	binary.LittleEndian.PutUint64(b[32:], f.total)
}

// decodeFrame checks all that can be checked without the memory.
func decodeFrame(b []byte) (frame, error) {
	if len(b) != frameSize {
		return frame{}, fmt.Errorf("a frame's head of %d bytes, it has %d", len(b), frameSize)
	}
	if b[0] != frameVersion {
		return frame{}, fmt.Errorf("a frame of version %d, this build reads version %d", b[0], frameVersion)
	}
	f := frame{
		kind:   frameKind(b[1]),
		reason: target.Reason(b[2]), refused: frameKind(b[3]),
		memory: binary.LittleEndian.Uint32(b[4:]),
		op:     binary.LittleEndian.Uint64(b[8:]),
		offset: binary.LittleEndian.Uint64(b[16:]),
		length: binary.LittleEndian.Uint64(b[24:]),
		total:  binary.LittleEndian.Uint64(b[32:]),
	}
	kind := f.kind
	switch {
	case f.kind == kindRefuse:
		if kind = f.refused; !f.reason.Valid() || !kind.onData() {
			return frame{}, fmt.Errorf("a refusal of a frame of kind %d with reason %d", f.refused, f.reason)
		}
	case b[2]|b[3] != 0:
		return frame{}, errors.New("a frame with bits set that must be zero")
	}
	switch {
	case kind == kindData && (f.length == 0 || f.length > f.total):
		return frame{}, fmt.Errorf("a frame of %d bytes in a write of %d", f.length, f.total)
	case kind == kindGet && (f.length == 0 || f.length != f.total):
		return frame{}, fmt.Errorf("a read of %d bytes and of %d", f.length, f.total)
	case kind == kindAnswer && (f.memory != 0 || f.length == 0 || f.length > f.total || f.offset > f.total-f.length):
		return frame{}, fmt.Errorf("an answer of %d bytes at %d of %d from memory %d", f.length, f.offset, f.total, f.memory)
	case kind.atomic() && f.length != 8:
		return frame{}, fmt.Errorf("an operation on a word of %d bytes", f.length)
	case kind == kindUpdate && f.total < f.length:
		return frame{}, fmt.Errorf("an update from %d down to %d", f.length, f.total)
	case (f.kind == kindAck || f.kind == kindBye) && f.memory|uint32(f.offset|f.length|f.total)|uint32((f.offset|f.length|f.total)>>32) != 0:
		return frame{}, errors.New("an acknowledgement with fields set that must be zero")
	case f.kind == kindGone && f.op|f.offset|f.length|f.total != 0:
		return frame{}, errors.New("a withdrawal with fields set that must be zero")
	case (f.kind == kindBroke || f.kind == kindFailed) && uint64(f.memory)|f.op|f.offset|f.length|f.total != 0:
		return frame{}, errors.New("news of the end with fields set that must be zero")
	case f.kind < kindData || f.kind > kindFailed:
		return frame{}, fmt.Errorf("a frame of unknown kind %d", f.kind)
	}
	return f, nil
}

// onData reports whether frames of the kind come on data sockets.
func (k frameKind) onData() bool {
	return k == kindData || k == kindUpdate || k == kindGet || k == kindAnswer || k.atomic()
}

// atomic reports whether operations of the kind depend on what the word was.
func (k frameKind) atomic() bool { return k == kindAdd || k == kindExchange }

// word reports whether operations of the kind are on a word.
func (k frameKind) word() bool { return k == kindUpdate || k.atomic() }

// frames are the kinds of the frames of operations.
var frames = [...]frameKind{
	message.Data: kindData, message.Update: kindUpdate, message.Read: kindGet, message.Add: kindAdd, message.Exchange: kindExchange,
}

// bytes returns how many bytes of the memory a frame changes or reads.
func (f *frame) bytes() uint64 {
	if f.kind == kindUpdate {
		return 8
	}
	return f.length
}
