package message

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// A frame's head has FrameWords words of 8 bytes. As bytes they are little-endian:
//
//	version (1), kind (1), reason (1), refused (1), memory (4), op (8), offset (8), length (8), total (8)
//
// For an update length is the old value and total the new one; for an addition and an exchange
// length is 8 and total the value; for a read both are how many bytes are read; for an answer op is
// the read's, and offset the offset in what was read; for an acknowledgement op counts the operations
// that are done. A refusal repeats the refused frame, with a reason and the refused kind; in other frames
// these are 0. A withdrawal has a memory only, and other news nothing.
const (
	FrameWords   = 5
	FrameSize    = 8 * FrameWords
	TotalWord    = 4 // which word total is
	frameVersion = 4
)

// Kind is what a frame does.
type Kind uint8

// The kinds. Those from Data to Exchange but for Answer are of operations.
const (
	Data     Kind = 1 // bytes of this rank are written to the peer's memory
	Update   Kind = 2 // a word there gets a new value, by an update or a store
	Read     Kind = 8 // bytes there are written to this rank's memory
	Answer   Kind = 9 // a part of what was read, out of the order of the operations
	Add      Kind = 10
	Exchange Kind = 11 // a word there gets a new value, and what it was goes to this rank's memory

	Ack    Kind = 3  // all before op is done
	Bye    Kind = 4  // the peer closes in good order
	Refuse Kind = 5  // the peer refused a frame, and will close
	Gone   Kind = 6  // the peer has closed a memory
	Broke  Kind = 7  // a data socket broke, and the connection ends
	Failed Kind = 12 // the peer's device or system failed, and the connection ends
	Wake   Kind = 13 // one who sleeps looks again
)

// Atomic reports whether operations of the kind depend on what the word was.
func (k Kind) Atomic() bool { return k == Add || k == Exchange }

// Word reports whether operations of the kind are on a word.
func (k Kind) Word() bool { return k == Update || k.Atomic() }

// Asks reports whether operations of the kind are answered.
func (k Kind) Asks() bool { return k == Read || k == Exchange }

// Operation reports whether the kind is of an operation.
func (k Kind) Operation() bool { return k == Data || k == Read || k.Word() }

// Frame is the head of a message.
type Frame struct {
	Kind    Kind
	Reason  target.Reason
	Refused Kind
	Memory  uint32 // the number in the receiver's registry
	Op      uint64 // of the connection's direction, counting from 0
	Offset  uint64
	Length  uint64 // of the payload
	Total   uint64 // bytes of the operation's frames together
}

// first returns the first word.
func (f *Frame) first() uint64 {
	return frameVersion | uint64(f.Kind)<<8 | uint64(f.Reason)<<16 | uint64(f.Refused)<<24 | uint64(f.Memory)<<32
}

// Words returns the head.
func (f *Frame) Words() [FrameWords]uint64 {
	return [FrameWords]uint64{f.first(), f.Op, f.Offset, f.Length, f.Total}
}

// Encode stores the head in FrameSize bytes.
func (f *Frame) Encode(b []byte) {
	_ = b[FrameSize-1]
	binary.LittleEndian.PutUint64(b, f.first())
	binary.LittleEndian.PutUint64(b[8:], f.Op)
	binary.LittleEndian.PutUint64(b[16:], f.Offset)
	binary.LittleEndian.PutUint64(b[24:], f.Length)
	binary.LittleEndian.PutUint64(b[32:], f.Total)
}

// Bytes returns the head.
func (f *Frame) Bytes() []byte {
	b := make([]byte, FrameSize)
	f.Encode(b)
	return b
}

// Decode returns the frame of a head of bytes; see DecodeWords.
func Decode(b []byte) (f Frame, err error) {
	if len(b) != FrameSize {
		return f, fmt.Errorf("a frame's head of %d bytes, it has %d", len(b), FrameSize)
	}
	word := binary.LittleEndian.Uint64
	err = f.set(word(b), word(b[8:]), word(b[16:]), word(b[24:]), word(b[32:]))
	return f, err
}

// DecodeWords returns the frame of a head. It checks all that can be checked without the memory.
func DecodeWords(w [FrameWords]uint64) (f Frame, err error) {
	err = f.set(w[0], w[1], w[2], w[3], w[4])
	return f, err
}

// set makes f the frame of a head, which it checks.
func (f *Frame) set(first, op, offset, length, total uint64) error {
	if v := uint8(first); v != frameVersion {
		return fmt.Errorf("a frame of version %d, this build reads version %d", v, frameVersion)
	}
	*f = Frame{
		Kind: Kind(first >> 8), Reason: target.Reason(first >> 16), Refused: Kind(first >> 24), Memory: uint32(first >> 32),
		Op: op, Offset: offset, Length: length, Total: total,
	}
	kind := f.Kind
	switch {
	case kind == Refuse && f.Reason == target.Protocol:
		return nil // of a frame that makes no sense
	case kind == Refuse:
		if kind = f.Refused; !f.Reason.Valid() || !kind.Operation() && kind != Answer {
			return fmt.Errorf("a refusal of a frame of kind %d with reason %d", f.Refused, f.Reason)
		}
	case uint8(f.Reason)|uint8(f.Refused) != 0:
		return errors.New("a frame with bits set that must be zero")
	}
	rest := f.Offset | f.Length | f.Total
	switch kind {
	case Data:
		if f.Length == 0 || f.Length > f.Total {
			return fmt.Errorf("a frame of %d bytes in a write of %d", f.Length, f.Total)
		}
	case Read:
		if f.Length == 0 || f.Length != f.Total {
			return fmt.Errorf("a read of %d bytes and of %d", f.Length, f.Total)
		}
	case Answer:
		if f.Memory != 0 || f.Length == 0 || f.Length > f.Total || f.Offset > f.Total-f.Length {
			return fmt.Errorf("an answer of %d bytes at %d of %d from memory %d", f.Length, f.Offset, f.Total, f.Memory)
		}
	case Update:
		if f.Total < f.Length {
			return fmt.Errorf("an update from %d down to %d", f.Length, f.Total)
		}
	case Add, Exchange:
		if f.Length != 8 {
			return fmt.Errorf("an operation on a word of %d bytes", f.Length)
		}
	case Ack, Bye:
		if uint64(f.Memory)|rest != 0 {
			return errors.New("an acknowledgement with fields set that must be zero")
		}
	case Gone:
		if f.Op|rest != 0 {
			return errors.New("a withdrawal with fields set that must be zero")
		}
	case Broke, Failed, Wake:
		if uint64(f.Memory)|f.Op|rest != 0 {
			return errors.New("news with fields set that must be zero")
		}
	default:
		return fmt.Errorf("a frame of unknown kind %d", f.Kind)
	}
	return nil
}

// Size returns how many bytes of the memory a frame changes or reads.
func (f *Frame) Size() uint64 {
	if f.Kind == Update {
		return 8
	}
	return f.Length
}

// refused describes what a refusal is about.
func (f *Frame) refused() string {
	switch {
	case f.Refused == Answer:
		return "a part of what it had read"
	case f.Refused == Read:
		return fmt.Sprintf("a read of %d bytes at %d of memory %d", f.Length, f.Offset, f.Memory)
	case f.Refused == Add:
		return fmt.Sprintf("an addition at %d of memory %d", f.Offset, f.Memory)
	case f.Refused == Exchange:
		return fmt.Sprintf("an exchange at %d of memory %d", f.Offset, f.Memory)
	case f.Refused == Update:
		return fmt.Sprintf("a new value of the word at %d of memory %d", f.Offset, f.Memory)
	case f.Refused != Data:
		return fmt.Sprintf("a frame of kind %d", f.Refused)
	case f.Length < f.Total:
		return fmt.Sprintf("%d bytes at %d, part of a write of %d, to memory %d", f.Length, f.Offset, f.Total, f.Memory)
	}
	return fmt.Sprintf("a write of %d bytes at %d to memory %d", f.Length, f.Offset, f.Memory)
}
