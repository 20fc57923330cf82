package devicecode

import (
	"bytes"
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo/internal/signature"
)

// signatures returns the parameters of the kernels of an object, from the description of
// its source that the compiler has put into it for debuggers (DWARF). entry reports
// whether a function of this name is a kernel. What the compiler did not describe is left
// out: launches are then checked by the sizes that the device knows.
func signatures(object []byte, entry func(name string) bool) []signature.Kernel {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil
	}
	data, err := f.DWARF()
	if err != nil {
		return nil
	}
	d := describer{Data: data}
	var kernels []signature.Kernel
	r := data.Reader()
	seen := map[string]bool{}
	for {
		e, err := r.Next()
		if err != nil || e == nil {
			return kernels
		}
		switch e.Tag {
		case dwarf.TagCompileUnit, dwarf.TagNamespace:
			continue // kernels are in these
		case dwarf.TagSubprogram:
			name := linkageName(data, e)
			if name != "" && e.Val(dwarf.AttrDeclaration) == nil && entry(name) && !seen[name] {
				seen[name] = true
				if params, ok := d.parameters(r, e); ok {
					kernels = append(kernels, signature.Kernel{Name: name, Params: params})
				}
				continue
			}
		}
		r.SkipChildren()
	}
}

// attrMIPSLinkageName is what some compilers use for AttrLinkageName.
const attrMIPSLinkageName dwarf.Attr = 0x2007

// linkageName returns the name of a function's symbol. A function of a namespace may be
// declared in an entry of its own, to which the definition's entry refers.
func linkageName(data *dwarf.Data, e *dwarf.Entry) string {
	for _, attr := range []dwarf.Attr{dwarf.AttrLinkageName, attrMIPSLinkageName, dwarf.AttrName} {
		if name, ok := e.Val(attr).(string); ok && name != "" {
			return name
		}
	}
	if declared, ok := e.Val(dwarf.AttrSpecification).(dwarf.Offset); ok {
		r := data.Reader()
		r.Seek(declared)
		if e, err := r.Next(); err == nil && e != nil && e.Val(dwarf.AttrSpecification) == nil {
			return linkageName(data, e)
		}
	}
	return ""
}

// describer describes types of an object.
type describer struct {
	*dwarf.Data
	integers map[*dwarf.EnumType]dwarf.Type // of which enums are made, which a dwarf.EnumType does not have
}

// parameters reads the children of a function's entry.
func (d *describer) parameters(r *dwarf.Reader, function *dwarf.Entry) (params []signature.Param, ok bool) {
	ok = true
	for function.Children {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == 0 {
			break
		}
		if e.Tag == dwarf.TagFormalParameter {
			p := signature.Param{}
			p.Name, _ = e.Val(dwarf.AttrName).(string)
			offset, _ := e.Val(dwarf.AttrType).(dwarf.Offset)
			t, err := d.Type(offset)
			ok = ok && err == nil
			if ok {
				p.Type = d.typeOf(t)
			}
			params = append(params, p)
		}
		r.SkipChildren()
	}
	return params, ok
}

// typeOf describes a type by value. const, volatile and restrict of the value itself do
// not matter to the caller that passes it.
func (d *describer) typeOf(t dwarf.Type) signature.Type {
	out := signature.Type{Name: nameOf(t)}
	if size := t.Size(); size > 0 && size <= 1<<31 {
		out.Size = uint32(size)
	}
	switch t := t.(type) {
	case *dwarf.QualType:
		return d.typeOf(t.Type)
	case *dwarf.TypedefType:
		name := out.Name
		out = d.typeOf(t.Type)
		out.Name = name
	case *dwarf.BoolType:
		out.Kind = signature.Bool
	case *dwarf.CharType, *dwarf.IntType:
		out.Kind = signature.Int
	case *dwarf.UcharType, *dwarf.UintType:
		out.Kind = signature.Uint
	case *dwarf.FloatType:
		out.Kind = signature.Float
	case *dwarf.EnumType:
		out.Kind = d.enumKind(t)
	case *dwarf.PtrType:
		out.Kind = signature.Pointer
		if to := d.pointee(t.Type); to.Kind != signature.Opaque {
			out.PointsTo(to)
		}
	case *dwarf.ArrayType:
		element := d.typeOf(t.Type)
		// One of no elements, which may end a struct, has no element for a description.
		if t.Count > 0 && uint64(t.Count)*uint64(element.Size) == uint64(out.Size) {
			out.Kind, out.Count = signature.Array, uint32(t.Count)
			out.Fields = []signature.Field{{Type: element}}
		}
	case *dwarf.StructType:
		out.Kind, out.Fields = signature.Struct, d.fieldsOf(t)
	}
	return out
}

// enumKind returns the kind of the integer that an enum is made of. NVIDIA's compilers do not tell that, so
// there only an enumerator does that one of the other sign cannot have.
func (d *describer) enumKind(t *dwarf.EnumType) signature.Kind {
	if d.integers == nil {
		d.findIntegers()
	}
	if of := d.integers[t]; of != nil {
		return d.typeOf(of).Kind
	}
	if t.ByteSize >= 8 { // where an enumerator's number may be the bits of another
		return signature.Enum
	}
	for _, v := range t.Val {
		switch {
		case v.Val < 0:
			return signature.Int
		case v.Val>>(8*t.ByteSize-1) != 0:
			return signature.Uint
		}
	}
	return signature.Enum
}

// findIntegers finds the integers of all enums.
func (d *describer) findIntegers() {
	d.integers = map[*dwarf.EnumType]dwarf.Type{}
	r := d.Reader()
	for {
		e, err := r.Next()
		if err != nil || e == nil {
			return
		}
		offset, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		if e.Tag != dwarf.TagEnumerationType || !ok {
			continue
		}
		// Type returns the same pointer for the same offset each time.
		t, err := d.Type(e.Offset)
		of, errOf := d.Type(offset)
		if enum, ok := t.(*dwarf.EnumType); ok && err == nil && errOf == nil {
			d.integers[enum] = of
		}
	}
}

// elements are the types of CUDA's that stand for elements. On emulated devices they are typedefs.
var elements = map[string]bool{"__half": true, "__nv_bfloat16": true, "__nv_fp8_e4m3": true, "__nv_fp8_e5m2": true}

// pointee describes what a pointer points to, without const and volatile, by a name that is not the
// program's own for a type of another name: no typedef but <cstdint>'s and CUDA's.
func (d *describer) pointee(t dwarf.Type) signature.Type {
	for {
		switch of := t.(type) {
		case *dwarf.QualType:
			t = of.Type
			continue
		case *dwarf.TypedefType:
			if elements[of.Name] {
				return signature.Type{Kind: signature.Struct, Name: of.Name}
			}
			if !signature.IsNumber(of.Name, d.typeOf(of)) {
				t = of.Type
				continue
			}
		case *dwarf.StructType: // whose fields are not wanted, and may lead here again
			return signature.Type{Kind: signature.Struct, Name: nameOf(t)}
		case nil, *dwarf.FuncType, *dwarf.ArrayType, *dwarf.VoidType:
			return signature.Type{}
		case *dwarf.EnumType:
			return signature.Type{Kind: signature.Enum, Name: nameOf(t), Size: uint32(of.Size())}
		case *dwarf.PtrType:
			return signature.Type{Kind: signature.Pointer, Name: nameOf(t), Size: uint32(of.Size())}
		}
		return d.typeOf(t)
	}
}

// fieldsOf describes the members of a struct. It returns nil for a union, and for a struct
// that has bases or bit fields besides: those leave holes that alignment does not explain.
func (d *describer) fieldsOf(t *dwarf.StructType) []signature.Field {
	if t.Kind == "union" {
		return nil
	}
	var fields []signature.Field
	end := int64(0)
	for i, f := range t.Field {
		of := d.typeOf(f.Type)
		if i == 0 && f.ByteOffset != 0 || f.BitSize != 0 || f.ByteOffset < end || f.ByteOffset-end >= alignmentOf(of) {
			return nil
		}
		end = f.ByteOffset + int64(of.Size)
		fields = append(fields, signature.Field{Name: f.Name, Offset: uint32(f.ByteOffset), Type: of})
	}
	if end > t.ByteSize {
		return nil
	}
	return fields
}

// alignmentOf returns the alignment of a type, or a larger one for structs that may have
// been given one in the source, such as float4.
func alignmentOf(t signature.Type) int64 {
	switch {
	case t.Kind == signature.Opaque, t.Kind == signature.Struct && (t.Fields == nil || t.Size%16 == 0):
		return 16
	case t.Kind == signature.Struct, t.Kind == signature.Array:
		most := int64(1)
		for _, f := range t.Fields {
			most = max(most, alignmentOf(f.Type))
		}
		return most
	}
	return int64(t.Size)
}

// plainNames are the names of types as most write them, by the names that GCC gives.
var plainNames = map[string]string{
	"short int":              "short",
	"short unsigned int":     "unsigned short",
	"long int":               "long",
	"long unsigned int":      "unsigned long",
	"long long int":          "long long",
	"long long unsigned int": "unsigned long long",
}

// nameOf returns a type's name as in the source.
func nameOf(t dwarf.Type) string {
	switch t := t.(type) {
	case *dwarf.QualType:
		return qualifiedName(t)
	case *dwarf.PtrType:
		switch t.Type.(type) {
		case nil:
			return "void*"
		case *dwarf.FuncType:
			return strings.Replace(t.Type.String(), "func(", "function(", 1) + "*"
		}
		return nameOf(t.Type) + "*"
	case *dwarf.ArrayType:
		return arrayName(t)
	case *dwarf.StructType:
		return cmp.Or(innerName(t.StructName), t.Kind)
	case *dwarf.EnumType:
		return cmp.Or(innerName(t.EnumName), "enum")
	case *dwarf.VoidType:
		return "void"
	}
	if name, ok := plainNames[t.String()]; ok {
		return name
	}
	return t.String()
}

// arrayName returns the name of an array, with the outermost of several dimensions first.
func arrayName(t *dwarf.ArrayType) string {
	dimensions := ""
	for {
		if t.Count < 0 { // not known, as of a struct's last member
			dimensions += "[]"
		} else {
			dimensions += fmt.Sprintf("[%d]", t.Count)
		}
		inner, ok := t.Type.(*dwarf.ArrayType)
		if !ok {
			return nameOf(t.Type) + dimensions
		}
		t = inner
	}
}

// innerName returns the name of a type without the name of the class around it, which NVIDIA's
// compilers add by mangling: _ZN5Outer4ModeE is Mode. An unnamed type has none.
func innerName(name string) string {
	rest, ok := strings.CutPrefix(name, "_ZN")
	last := ""
	for ok && rest != "E" {
		if strings.HasPrefix(rest, "Ut") {
			return ""
		}
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n == 0 || n > len(rest)-digits {
			return name
		}
		last, rest = rest[digits:digits+n], rest[digits+n:]
	}
	return cmp.Or(last, name)
}

// qualifiedName returns the name of a type with const and volatile. To the kernel's callers
// restrict is not part of a type's name.
func qualifiedName(t *dwarf.QualType) string {
	has := map[string]bool{t.Qual: true}
	inner := t.Type
	for {
		q, ok := inner.(*dwarf.QualType)
		if !ok {
			break
		}
		has[q.Qual] = true
		inner = q.Type
	}
	name := nameOf(inner)
	_, pointer := inner.(*dwarf.PtrType)
	for _, qual := range []string{"volatile", "const"} {
		switch {
		case has[qual] && pointer:
			name += " " + qual
		case has[qual]:
			name = qual + " " + name
		}
	}
	return name
}
