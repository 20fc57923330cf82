package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func Example() {
	w := NewWriter(32)
	w.U32(7)
	w.String("rank seven")
	sealed := Seal([4]byte{'D', 'E', 'M', 'O'}, 1, w.Bytes())

	body, err := Open([4]byte{'D', 'E', 'M', 'O'}, 1, sealed)
	r := NewReader(body)
	fmt.Println(r.U32(), r.String(64), r.End(), err)

	_, err = Open([4]byte{'D', 'E', 'M', 'O'}, 1, sealed[:len(sealed)-1])
	fmt.Println(err)
	// Output:
	// 7 rank seven <nil> <nil>
	// the checksum does not match: it was cut short or altered
}

func TestRoundTrip(t *testing.T) {
	var w Writer
	w.U8(1)
	w.Bool(true)
	w.Bool(false)
	w.U16(0x0203)
	w.U32(0x04050607)
	w.U64(0x08090a0b0c0d0e0f)
	w.Raw([]byte{9, 9})
	w.Blob(nil)
	w.String("text")
	if diff := cmp.Diff([]byte{1, 1, 0, 3, 2, 7, 6, 5, 4}, w.Bytes()[:9]); diff != "" {
		t.Fatalf("not little-endian (-want +got):\n%s", diff)
	}
	r := NewReader(w.Bytes())
	want := []any{uint8(1), true, false, uint16(0x0203), uint32(0x04050607), uint64(0x08090a0b0c0d0e0f), []byte{9, 9}, []byte{}, "text"}
	got := []any{r.U8(), r.Bool(), r.Bool(), r.U16(), r.U32(), r.U64(), r.Raw(2), r.Blob(0), r.String(4)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("fields changed on the way (-want +got):\n%s", diff)
	}
	testerr.Check(t, r.End())
}

func TestReaderErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []byte
		read func(*Reader)
		want string
	}{
		{"short integer", []byte{1, 2, 3}, func(r *Reader) { r.U32() }, "4 bytes expected at offset 0, 3 left"},
		{"offset", []byte{1, 2, 3}, func(r *Reader) { r.U16(); r.U16() }, "2 bytes expected at offset 2, 1 left"},
		{"first error stays", []byte{1}, func(r *Reader) { r.U64(); r.U16(); r.U8() }, "8 bytes expected"},
		{"negative", []byte{1}, func(r *Reader) { r.Raw(-1) }, "-1 bytes expected"},
		{"blob over limit", []byte{5, 0, 0, 0, 1, 2, 3, 4, 5}, func(r *Reader) { r.Blob(4) }, "5 bytes, at most 4"},
		{"blob over input", []byte{5, 0, 0, 0, 1}, func(r *Reader) { r.Blob(8) }, "5 bytes expected at offset 4, 1 left"},
		{"huge blob", []byte{255, 255, 255, 255}, func(r *Reader) { r.String(1 << 20) }, "4294967295 bytes"},
		{"truth value", []byte{2}, func(r *Reader) { r.Bool() }, "2 is not a bool"},
		{"left over", []byte{1, 2, 3}, func(r *Reader) { r.U8() }, "2 bytes left over at offset 1"},
		{"caller's", []byte{1}, func(r *Reader) { r.Fail(errors.New("no such colour")) }, "no such colour"},
	} {
		r := NewReader(c.in)
		c.read(r)
		if err := r.End(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

func TestOpenFindsEveryAlteration(t *testing.T) {
	kind := [4]byte{'T', 'E', 'S', 'T'}
	sealed := Seal(kind, 3, []byte("some body"))
	for i := range sealed {
		for bit := range 8 {
			bad := bytes.Clone(sealed)
			bad[i] ^= 1 << bit
			if _, err := Open(kind, 3, bad); err == nil {
				t.Errorf("byte %d bit %d altered and not found", i, bit)
			}
		}
		if _, err := Open(kind, 3, sealed[:i]); err == nil {
			t.Errorf("cut to %d bytes and not found", i)
		}
	}
	if _, err := Open(kind, 4, sealed); err == nil || !strings.Contains(err.Error(), "version 3") {
		t.Errorf("another version: %v", err)
	}
	if _, err := Open([4]byte{'E', 'L', 'S', 'E'}, 3, sealed); err == nil || !strings.Contains(err.Error(), "TEST") {
		t.Errorf("another kind: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	kind := [4]byte{'T', 'E', 'S', 'T'}
	f.Add(Seal(kind, 1, nil))
	f.Add(Seal(kind, 1, []byte("body")))
	f.Add([]byte("TEST"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if body, err := Open(kind, 1, in); err == nil {
			if diff := cmp.Diff(in, Seal(kind, 1, body)); diff != "" {
				t.Fatalf("what it opens to seals differently (-want +got):\n%s", diff)
			}
		}
	})
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{1, 0, 2, 0, 0, 0, 'h', 'i'})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(in)
		r.U8()
		r.Bool()
		s := r.Blob(16)
		r.U16()
		r.U64()
		if len(s) > 16 || r.Len() > len(in) {
			t.Fatalf("read %d bytes of at most 16, %d of %d left", len(s), r.Len(), len(in))
		}
		if r.End() == nil && r.Len() != 0 {
			t.Fatal("bytes left over and no error")
		}
	})
}
