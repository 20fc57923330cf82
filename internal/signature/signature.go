// Package signature describes the parameters of a module's kernels, as the compiler
// knows them. The description follows the module's image, so that it is stored and sent
// with it: package devicecode writes it, and package gpu checks launches against it.
//
// The image itself is not changed, and what loads it without this package ignores what
// follows: a cubin and a module of an emulated device tell their own length.
package signature

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// Kind is what a value of a type can be made from.
type Kind uint8

// The kinds of types.
const (
	Opaque   Kind = iota // known by name and size alone
	Bool                 //
	Int                  // signed
	Uint                 // unsigned
	Enum                 // an integer of an enum of which the compiler does not tell whether it is signed
	Float                //
	Pointer              //
	Struct               // a struct, class or union; Fields are all of it but padding, or nil if not known
	Array                // Count elements of Fields[0]
	lastKind = Array
)

// Type is a type of C++.
type Type struct {
	Kind   Kind
	Name   string  // as in the source: "const float*"
	Size   uint32  // bytes
	Count  uint32  // of an array's elements
	Fields []Field // of a Struct; the element of an Array; what a Pointer points to, see PointsTo
}

// numbers are the types of numbers whose names say what they are, by name. char is as on the
// machines that this module is for.
var numbers = map[string]Type{
	"bool": {Kind: Bool, Size: 1}, "float": {Kind: Float, Size: 4}, "double": {Kind: Float, Size: 8},
	"char": {Kind: Int, Size: 1}, "signed char": {Kind: Int, Size: 1}, "unsigned char": {Kind: Uint, Size: 1},
	"short": {Kind: Int, Size: 2}, "unsigned short": {Kind: Uint, Size: 2},
	"int": {Kind: Int, Size: 4}, "unsigned int": {Kind: Uint, Size: 4},
	"long": {Kind: Int, Size: 8}, "unsigned long": {Kind: Uint, Size: 8},
	"long long": {Kind: Int, Size: 8}, "unsigned long long": {Kind: Uint, Size: 8},
	"int8_t": {Kind: Int, Size: 1}, "int16_t": {Kind: Int, Size: 2}, "int32_t": {Kind: Int, Size: 4}, "int64_t": {Kind: Int, Size: 8},
	"uint8_t": {Kind: Uint, Size: 1}, "uint16_t": {Kind: Uint, Size: 2}, "uint32_t": {Kind: Uint, Size: 4}, "uint64_t": {Kind: Uint, Size: 8},
	"intptr_t": {Kind: Int, Size: 8}, "ptrdiff_t": {Kind: Int, Size: 8}, "ssize_t": {Kind: Int, Size: 8},
	"uintptr_t": {Kind: Uint, Size: 8}, "size_t": {Kind: Uint, Size: 8},
	"unsigned": {Kind: Uint, Size: 4}, "uint": {Kind: Uint, Size: 4}, "ushort": {Kind: Uint, Size: 2}, "ulong": {Kind: Uint, Size: 8},
}

// IsNumber reports whether a name says which number a type is.
func IsNumber(name string, t Type) bool {
	n, ok := numbers[name]
	return ok && n.Kind == t.Kind && n.Size == t.Size
}

// PointsTo has a pointer point to a number, another pointer or a struct, of which the fields are
// left out. Its name is one that the program did not give to another type.
func (t *Type) PointsTo(to Type) {
	if to.Kind == Struct || to.Size > t.Size {
		to.Size = 0
	}
	to.Count, to.Fields = 0, nil
	t.Fields = []Field{{Type: to}}
}

// Pointee returns what a pointer points to: a number or a pointer, by whatever name. All else is
// Opaque, without a size: a struct, an enum, and void. Descriptions of version 1 have
// only the pointer's name, which does not tell of a number to which the program has given a name.
func (t Type) Pointee() Type {
	if t.Kind != Pointer {
		return Type{}
	}
	if len(t.Fields) > 0 {
		to := t.Fields[0].Type
		if to.Size == 0 || to.Kind == Enum {
			return Type{Name: to.Name}
		}
		return to
	}
	name, ok := strings.CutSuffix(strings.TrimSuffix(strings.TrimSuffix(t.Name, " const"), " volatile"), "*")
	if !ok {
		return Type{}
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "const "), "volatile ")
	if strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(name, " const"), " volatile"), "*") {
		return Type{Kind: Pointer, Name: name, Size: t.Size}
	}
	to := numbers[name]
	to.Name = name
	return to
}

// Field is a member of a struct.
type Field struct {
	Name   string
	Offset uint32 // bytes
	Type   Type
}

// Param is a parameter of a kernel.
type Param struct {
	Name string // "" if it has none
	Type Type
}

// String returns the parameter as in the source: "uint32_t n".
func (p Param) String() string {
	return strings.TrimSuffix(p.Type.Name+" "+p.Name, " ")
}

// Kernel is a kernel and its parameters, in order.
type Kernel struct {
	Name   string
	Params []Param
}

// String returns the kernel's declaration: "scale(float* data, uint32_t n)".
func (k Kernel) String() string {
	params := make([]string, len(k.Params))
	for i, p := range k.Params {
		params[i] = p.String()
	}
	return k.Name + "(" + strings.Join(params, ", ") + ")"
}

// The description is in an envelope of kind and version, behind which is its length (4
// bytes) and the mark.
var kind = [4]byte{'m', 's', 'i', 'g'}

const (
	version = 2 // in 1 pointers do not tell what they point to
	mark    = "MSCCLSIG"
	footer  = 4 + len(mark)
)

// What a description has at most. The limits keep a damaged one from using up memory.
const (
	maxBytes   = 16 << 20
	maxKernels = 1 << 14
	maxParams  = 4096
	maxName    = 4096
	maxDepth   = 32
	maxTypes   = 1 << 20
)

// Append returns the image with a description of its kernels behind it, or the image
// alone if there are more kernels than a description has.
func Append(image []byte, kernels []Kernel) []byte {
	w := wire.NewWriter(1 << 10)
	w.U32(uint32(len(kernels)))
	for _, k := range kernels {
		w.String(k.Name)
		w.U32(uint32(len(k.Params)))
		for _, p := range k.Params {
			w.String(p.Name)
			write(w, p.Type)
		}
	}
	sealed := wire.Seal(kind, version, w.Bytes())
	if _, err := read(sealed); err != nil {
		return image // beyond the limits
	}
	out := bytes.Clone(image)
	out = append(out, sealed...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(sealed)))
	return append(out, mark...)
}

func write(w *wire.Writer, t Type) {
	w.U8(uint8(t.Kind))
	w.String(t.Name)
	w.U32(t.Size)
	w.U32(t.Count)
	w.U32(uint32(len(t.Fields)))
	for _, f := range t.Fields {
		w.String(f.Name)
		w.U32(f.Offset)
		write(w, f.Type)
	}
}

// Split returns an image without the description of its kernels, and that, or nil if
// there is none.
func Split(image []byte) ([]byte, []Kernel, error) {
	if !bytes.HasSuffix(image, []byte(mark)) || len(image) < footer {
		return image, nil, nil
	}
	end := len(image) - footer
	size := binary.LittleEndian.Uint32(image[end:])
	if uint64(size) > uint64(min(end, maxBytes)) {
		return nil, nil, fmt.Errorf("the description of the kernels' parameters has %d bytes of an image of %d", size, len(image))
	}
	start := end - int(size)
	kernels, err := read(image[start:end])
	if err != nil {
		return nil, nil, fmt.Errorf("the description of the kernels' parameters: %w", err)
	}
	return image[:start:start], kernels, nil
}

func read(sealed []byte) ([]Kernel, error) {
	if len(sealed) > maxBytes {
		return nil, fmt.Errorf("%d bytes are too many", len(sealed))
	}
	body, err := wire.Open(kind, version, sealed)
	if err != nil {
		var first error
		if body, first = wire.Open(kind, 1, sealed); first != nil {
			return nil, err
		}
	}
	d := decoder{Reader: wire.NewReader(body)}
	var kernels []Kernel
	for n := d.count(maxKernels); n > 0 && d.Err() == nil; n-- {
		k := Kernel{Name: d.String(maxName)}
		for n := d.count(maxParams); n > 0 && d.Err() == nil; n-- {
			k.Params = append(k.Params, Param{Name: d.String(maxName), Type: d.typ(0)})
		}
		kernels = append(kernels, k)
	}
	if err := d.End(); err != nil {
		return nil, err
	}
	return kernels, nil
}

type decoder struct {
	*wire.Reader
	types int
}

// count reads a number of things.
func (d *decoder) count(limit uint32) uint32 {
	n := d.U32()
	if n > limit {
		d.Fail(fmt.Errorf("%d of something, at most %d are allowed", n, limit))
		return 0
	}
	return n
}

func (d *decoder) typ(depth int) Type {
	if d.types++; depth > maxDepth || d.types > maxTypes {
		d.Fail(fmt.Errorf("types are nested too deeply, or too many"))
		return Type{}
	}
	t := Type{Kind: Kind(d.U8()), Name: d.String(maxName), Size: d.U32(), Count: d.U32()}
	n := d.count(maxTypes)
	switch {
	case d.Err() != nil:
	case t.Kind > lastKind:
		d.Fail(fmt.Errorf("there is no kind %d of types", t.Kind))
	case t.Kind == Array && n != 1, t.Kind != Array && t.Count != 0, t.Kind == Pointer && n > 1, t.Kind < Pointer && n != 0:
		d.Fail(fmt.Errorf("a type of kind %d has %d fields and %d elements", t.Kind, n, t.Count))
	}
	for ; n > 0 && d.Err() == nil; n-- {
		f := Field{Name: d.String(maxName), Offset: d.U32(), Type: d.typ(depth + 1)}
		if uint64(f.Offset)+uint64(f.Type.Size) > uint64(t.Size) {
			d.Fail(fmt.Errorf("field %q ends beyond the %d bytes of its type", f.Name, t.Size))
		}
		t.Fields = append(t.Fields, f)
	}
	return t
}
