// Package wire encodes what ranks send to each other: little-endian integers
// and length-prefixed byte strings, appended by a [Writer] and read by a [Reader]
// that checks every length. [Seal] and [Open] put a kind, a version and a checksum
// around a whole value, so that one that is cut short, altered or of another
// version is recognised.
//
// The errors of this package describe what is wrong with the bytes; the caller
// adds whose bytes they were and an error kind.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// A Writer appends values to a byte slice. The zero Writer is empty and ready.
type Writer struct{ buf []byte }

// NewWriter returns a Writer with room for capacity bytes before it allocates
// again.
func NewWriter(capacity int) *Writer { return &Writer{make([]byte, 0, capacity)} }

// Bytes returns what was written. It is valid until the next write.
func (w *Writer) Bytes() []byte { return w.buf }

// U8 appends one byte.
func (w *Writer) U8(v uint8) { w.buf = append(w.buf, v) }

// Bool appends one byte, 1 for true and 0 for false.
func (w *Writer) Bool(v bool) {
	if v {
		w.U8(1)
	} else {
		w.U8(0)
	}
}

// U16 appends two bytes.
func (w *Writer) U16(v uint16) { w.buf = binary.LittleEndian.AppendUint16(w.buf, v) }

// U32 appends four bytes.
func (w *Writer) U32(v uint32) { w.buf = binary.LittleEndian.AppendUint32(w.buf, v) }

// U64 appends eight bytes.
func (w *Writer) U64(v uint64) { w.buf = binary.LittleEndian.AppendUint64(w.buf, v) }

// Raw appends b without its length, for fields whose size both sides know.
func (w *Writer) Raw(b []byte) { w.buf = append(w.buf, b...) }

// Blob appends a four-byte length and the bytes. It panics if they are 4 GiB or
// more, which no caller allows.
func (w *Writer) Blob(b []byte) {
	if uint64(len(b)) > math.MaxUint32 {
		panic("wire: blob of 4 GiB or more")
	}
	w.U32(uint32(len(b)))
	w.Raw(b)
}

// String appends a string as Blob does.
func (w *Writer) String(s string) { w.Blob([]byte(s)) }

// A Reader reads values from a byte slice. After the first error it returns zero
// values and keeps that error, so that a caller may read all fields and check
// once.
type Reader struct {
	buf  []byte
	size int
	err  error
}

// NewReader returns a Reader of b, which must not change while it is used.
func NewReader(b []byte) *Reader { return &Reader{buf: b, size: len(b)} }

// Err returns the first error, or nil.
func (r *Reader) Err() error { return r.err }

// Len returns how many bytes are left.
func (r *Reader) Len() int { return len(r.buf) }

// Fail makes err the Reader's error unless it has one. It is for callers that find
// the value of a field, not its encoding, to be wrong.
func (r *Reader) Fail(err error) {
	if r.err == nil {
		r.err = err
		r.buf = nil
	}
}

// End returns the Reader's error, or an error if bytes are left over.
func (r *Reader) End() error {
	if n := len(r.buf); n > 0 {
		r.Fail(fmt.Errorf("%d bytes left over at offset %d", n, r.size-n))
	}
	return r.err
}

// Raw returns the next n bytes, which alias the Reader's slice, or nil after an
// error.
func (r *Reader) Raw(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.buf) {
		r.Fail(fmt.Errorf("cut short: %d bytes expected at offset %d, %d left", n, r.size-len(r.buf), len(r.buf)))
		return nil
	}
	b := r.buf[:n:n]
	r.buf = r.buf[n:]
	return b
}

// U8 returns the next byte.
func (r *Reader) U8() uint8 {
	if b := r.Raw(1); b != nil {
		return b[0]
	}
	return 0
}

// Bool returns the next byte as a bool; values other than 0 and 1 are an error.
func (r *Reader) Bool() bool {
	v := r.U8()
	if v > 1 {
		r.Fail(fmt.Errorf("%d is not a bool", v))
	}
	return r.err == nil && v == 1
}

// U16 returns the next two bytes.
func (r *Reader) U16() uint16 {
	if b := r.Raw(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// U32 returns the next four bytes.
func (r *Reader) U32() uint32 {
	if b := r.Raw(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U64 returns the next eight bytes.
func (r *Reader) U64() uint64 {
	if b := r.Raw(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Blob returns the next length-prefixed bytes, at most limit of them. They
// alias the Reader's slice.
func (r *Reader) Blob(limit int) []byte {
	n := r.U32()
	if r.err == nil && uint64(n) > uint64(max(limit, 0)) {
		r.Fail(fmt.Errorf("a field of %d bytes, at most %d are allowed", n, limit))
	}
	return r.Raw(int(n))
}

// String returns the next length-prefixed bytes as a string, at most limit
// bytes long.
func (r *Reader) String(limit int) string { return string(r.Blob(limit)) }

// The envelope of Seal: kind (4), version (1), body, CRC-32C of all before (4).
const (
	kindSize = 4
	sumSize  = 4
	overhead = kindSize + 1 + sumSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal returns body in an envelope: the four bytes of kind, the version, the
// body and a checksum. Each kind belongs to one package.
func Seal(kind [4]byte, version uint8, body []byte) []byte {
	w := NewWriter(len(body) + overhead)
	w.Raw(kind[:])
	w.U8(version)
	w.Raw(body)
	w.U32(crc32.Checksum(w.buf, castagnoli))
	return w.buf
}

// Open returns the body in an envelope that Seal made with the same kind and
// version, or an error if the length, kind, version or checksum is wrong. The
// checksum finds accidents; it does not prove who made the envelope.
func Open(kind [4]byte, version uint8, sealed []byte) ([]byte, error) {
	if len(sealed) < overhead {
		return nil, fmt.Errorf("cut short: %d bytes, at least %d are needed", len(sealed), overhead)
	}
	if [4]byte(sealed) != kind {
		return nil, fmt.Errorf("starts with %q, not with %q", sealed[:kindSize], kind[:])
	}
	if v := sealed[kindSize]; v != version {
		return nil, fmt.Errorf("has version %d, this build reads version %d", v, version)
	}
	body, sum := sealed[:len(sealed)-sumSize], sealed[len(sealed)-sumSize:]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(sum) {
		return nil, errors.New("the checksum does not match: it was cut short or altered")
	}
	return body[kindSize+1 : len(body) : len(body)], nil
}
