package wire

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// A Codec encodes structs of type T, field by field in their order, and decodes them. A number, a bool and an array of
// bytes are as they are in memory, and another array is as a struct of as many fields; an int has four bytes, and is not negative; a [time.Duration] is from 0 to 1<<60, so that
// sums of some do not overflow. Strings and slices have their length before them, and structs are as their fields.
//
// The tag `wire:"64"` of a string or slice has at most 64 bytes or elements of it encoded, and more be an error when they
// are decoded. With "64,text" what is not printable ASCII is decoded as a question mark, and of a slice "64,100" has
// elements of at most 100 bytes. The tag `wire:"signed"` allows an
// int to be negative, and `wire:"-"` leaves a field out.
type Codec[T any] struct{ fields []field }

// field is how to encode a value that lies at an offset in a struct.
type field struct {
	offset uintptr
	typ    reflect.Type
	kind   reflect.Kind
	most   uint64  // bytes or elements
	text   bool    // of a string
	signed bool    // of an int
	parts  []field // of a struct, or of each element of a slice
	least  int     // bytes that it takes encoded
}

var duration = reflect.TypeFor[time.Duration]()

// For returns the codec of a struct type. It panics if a field has no encoding.
func For[T any]() *Codec[T] { return &Codec[T]{fieldOf(reflect.TypeFor[T](), 0, "").parts} }

func fieldOf(t reflect.Type, offset uintptr, tag string) field {
	f := field{offset: offset, typ: t, kind: t.Kind(), most: math.MaxUint32, signed: tag == "signed"}
	most, text, _ := strings.Cut(tag, ",")
	f.text = text == "text"
	if n, err := strconv.Atoi(most); err == nil {
		f.most = uint64(n)
	}
	f.least = int(t.Size())
	switch f.kind {
	case reflect.Struct:
		f.least = 0
		for i := range t.NumField() {
			if s := t.Field(i); s.Tag.Get("wire") != "-" {
				part := fieldOf(s.Type, s.Offset, s.Tag.Get("wire"))
				f.parts, f.least = append(f.parts, part), f.least+part.least
			}
		}
	case reflect.Slice:
		f.parts, f.least = []field{fieldOf(t.Elem(), 0, text)}, 4
	case reflect.Int, reflect.String:
		f.least = 4
	case reflect.Bool, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float64:
	case reflect.Int64:
		if t != duration {
			panic("wire: an int64 is no Duration")
		}
	case reflect.Array:
		if t.Elem().Kind() != reflect.Uint8 {
			f.kind, f.least = reflect.Struct, 0
			for i := range t.Len() {
				part := fieldOf(t.Elem(), uintptr(i)*t.Elem().Size(), tag)
				f.parts, f.least = append(f.parts, part), f.least+part.least
			}
		}
	default:
		panic("wire: no encoding of " + t.String())
	}
	return f
}

// Marshal returns the encoded struct.
func (c *Codec[T]) Marshal(v *T) []byte {
	w := NewWriter(256)
	c.Write(w, v)
	return w.Bytes()
}

// Seal is [Seal] of the encoded struct.
func (c *Codec[T]) Seal(kind [4]byte, version uint8, v *T) []byte {
	return Seal(kind, version, c.Marshal(v))
}

// Open returns the struct that Seal has encoded.
func (c *Codec[T]) Open(kind [4]byte, version uint8, sealed []byte) (v T, err error) {
	body, err := Open(kind, version, sealed)
	if err != nil {
		return v, err
	}
	return c.Unmarshal(body)
}

// MarshalVersion returns the encoded struct behind a version.
func (c *Codec[T]) MarshalVersion(version uint8, v *T) []byte {
	w := NewWriter(256)
	w.U8(version)
	c.Write(w, v)
	return w.Bytes()
}

// UnmarshalVersion returns the struct that MarshalVersion has encoded. It is an error if that had another version.
func (c *Codec[T]) UnmarshalVersion(version uint8, b []byte) (v T, err error) {
	r := NewReader(b)
	if its := r.U8(); r.Err() == nil && its != version {
		return v, fmt.Errorf("it is of version %d, this build reads version %d", its, version)
	}
	v = c.Read(r)
	return v, r.End()
}

// Write appends the encoded struct.
func (c *Codec[T]) Write(w *Writer, v *T) {
	for i := range c.fields {
		c.fields[i].write(w, unsafe.Pointer(v))
	}
}

// Unmarshal returns the struct that b encodes. Byte slices in it alias b.
func (c *Codec[T]) Unmarshal(b []byte) (v T, err error) {
	r := NewReader(b)
	v = c.Read(r)
	return v, r.End()
}

// Read returns the struct that a Reader has next.
func (c *Codec[T]) Read(r *Reader) (v T) {
	for i := range c.fields {
		c.fields[i].read(r, unsafe.Pointer(&v))
	}
	return v
}

func (f *field) write(w *Writer, p unsafe.Pointer) {
	p = unsafe.Add(p, f.offset)
	switch f.kind {
	case reflect.Bool:
		w.Bool(*(*bool)(p))
	case reflect.Uint8:
		w.U8(*(*uint8)(p))
	case reflect.Uint16:
		w.U16(*(*uint16)(p))
	case reflect.Uint32:
		w.U32(*(*uint32)(p))
	case reflect.Uint64, reflect.Float64:
		w.U64(*(*uint64)(p))
	case reflect.Int:
		w.U32(uint32(*(*int)(p)))
	case reflect.Int64:
		w.U64(uint64(max(*(*int64)(p), 0)))
	case reflect.String:
		s := *(*string)(p)
		w.String(s[:min(uint64(len(s)), f.most)])
	case reflect.Array:
		w.Raw(unsafe.Slice((*byte)(p), f.typ.Size()))
	case reflect.Struct:
		for i := range f.parts {
			f.parts[i].write(w, p)
		}
	case reflect.Slice:
		s := reflect.NewAt(f.typ, p).Elem()
		n := int(min(uint64(s.Len()), f.most))
		if f.parts[0].kind == reflect.Uint8 {
			w.Blob(s.Bytes()[:n])
			return
		}
		w.U32(uint32(n))
		for i := range n {
			f.parts[0].write(w, unsafe.Add(s.UnsafePointer(), uintptr(i)*f.typ.Elem().Size()))
		}
	}
}

// maxDuration bounds a Duration.
const maxDuration = 1 << 60

func (f *field) read(r *Reader, p unsafe.Pointer) {
	p = unsafe.Add(p, f.offset)
	switch f.kind {
	case reflect.Bool:
		*(*bool)(p) = r.Bool()
	case reflect.Uint8:
		*(*uint8)(p) = r.U8()
	case reflect.Uint16:
		*(*uint16)(p) = r.U16()
	case reflect.Uint32:
		*(*uint32)(p) = r.U32()
	case reflect.Uint64, reflect.Float64:
		*(*uint64)(p) = r.U64()
	case reflect.Int:
		n := int(int32(r.U32()))
		if n < 0 && !f.signed {
			r.Fail(fmt.Errorf("%d is less than 0, or too much", n))
		}
		*(*int)(p) = n
	case reflect.Int64:
		*(*int64)(p) = int64(min(r.U64(), maxDuration))
	case reflect.String:
		s := r.String(int(f.most))
		if f.text {
			s = Printable(s)
		}
		*(*string)(p) = s
	case reflect.Array:
		copy(unsafe.Slice((*byte)(p), f.typ.Size()), r.Raw(int(f.typ.Size())))
	case reflect.Struct:
		for i := range f.parts {
			f.parts[i].read(r, p)
		}
	case reflect.Slice:
		f.readSlice(r, reflect.NewAt(f.typ, p).Elem())
	}
}

func (f *field) readSlice(r *Reader, s reflect.Value) {
	if f.parts[0].kind == reflect.Uint8 {
		s.SetBytes(r.Blob(int(f.most)))
		return
	}
	n := int(r.U32())
	if most := min(f.most, uint64(r.Len()/max(f.parts[0].least, 1))); uint64(n) > most {
		r.Fail(fmt.Errorf("%d elements, at most %d are allowed, or there", n, most))
	}
	if n == 0 || r.err != nil {
		return
	}
	s.Set(reflect.MakeSlice(f.typ, n, n))
	for i := range n {
		f.parts[0].read(r, unsafe.Add(s.UnsafePointer(), uintptr(i)*f.typ.Elem().Size()))
	}
}

// Printable returns the text with ? for what is not printable ASCII.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}
