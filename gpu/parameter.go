package gpu

import (
	"fmt"
	"reflect"

	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// param is a parameter as launches see it.
type param struct {
	place     backend.Param
	signature signature.Param
	known     bool           // there is a signature
	kind      signature.Kind // of the type or, of a struct that only wraps one value, of that
	wraps     bool           // the type is such a struct
}

// newParams joins what the device and the module's image tell of a kernel's parameters.
// Where the two differ, the image's description is of another kernel, so only sizes are
// checked.
func newParams(places []backend.Param, described []signature.Param) []param {
	params := make([]param, len(places))
	same := len(described) == len(places)
	for i, place := range places {
		params[i].place = place
		same = same && described[i].Type.Size == place.Size
	}
	if !same {
		return params
	}
	for i := range params {
		p, t := &params[i], described[i].Type
		p.known, p.signature = true, described[i]
		for t.Kind == signature.Struct && len(t.Fields) == 1 && t.Fields[0].Type.Size == t.Size {
			t, p.wraps = t.Fields[0].Type, true
		}
		p.kind = t.Kind
	}
	return params
}

// String returns what an error says of the parameter, after its number.
func (p *param) String() string {
	if !p.known {
		return ""
	}
	return fmt.Sprintf(" (%v)", p.signature)
}

// accept returns an error if the parameter's type does not take an argument whose size it
// has, according to pack. It does not allocate if the argument is right.
func (p *param) accept(arg any) error {
	if !p.known || p.kind == signature.Opaque {
		return nil
	}
	switch v := arg.(type) {
	case *Buffer:
		return p.takes(p.kind == signature.Pointer, arg)
	case Ptr:
		return p.takes(p.kind == signature.Pointer || p.kind == signature.Uint && !p.wraps, arg)
	case int:
		return p.takesInt(int64(v), !p.wraps, arg)
	case uint:
		return p.takesUint(uint64(v), !p.wraps, arg)
	case int32:
		return p.takesInt(int64(v), true, arg)
	case uint32:
		return p.takesUint(uint64(v), true, arg)
	case int64:
		return p.takesInt(v, true, arg)
	case uint64:
		return p.takesUint(v, true, arg)
	case float32, float64:
		return p.takes(p.kind == signature.Float, arg)
	case bool:
		return p.takes(p.kind == signature.Bool, arg)
	}
	switch v := reflect.ValueOf(arg); v.Kind() {
	case reflect.Int:
		return p.takesInt(v.Int(), !p.wraps, arg)
	case reflect.Uint:
		return p.takesUint(v.Uint(), !p.wraps, arg)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return p.takesInt(v.Int(), true, arg)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return p.takesUint(v.Uint(), true, arg)
	case reflect.Float32, reflect.Float64:
		return p.takes(p.kind == signature.Float, arg)
	case reflect.Bool:
		return p.takes(p.kind == signature.Bool, arg)
	case reflect.Struct, reflect.Array, reflect.Complex64, reflect.Complex128: // a struct of two floats
		return p.takes(p.wraps || p.kind == signature.Struct || p.kind == signature.Array, arg)
	}
	return nil
}

// takesInt checks a signed number. fixed is false for a Go int that would become the bits
// of a struct, such as a __half.
func (p *param) takesInt(v int64, fixed bool, arg any) error {
	switch p.kind {
	case signature.Uint:
		if v < 0 {
			return fmt.Errorf("%d is negative, and the parameter is unsigned", v)
		}
	case signature.Int:
		if v > p.mostSigned() {
			return p.tooLarge(arg)
		}
	case signature.Enum:
	default:
		return p.takes(false, arg)
	}
	return p.takes(fixed, arg)
}

// takesUint checks an unsigned number. One of 16 bits may be the bits of a float of as many.
func (p *param) takesUint(v uint64, fixed bool, arg any) error {
	switch p.kind {
	case signature.Int:
		if v > uint64(p.mostSigned()) {
			return p.tooLarge(arg)
		}
	case signature.Uint, signature.Enum:
	case signature.Float:
		_, plain := arg.(uint)
		return p.takes(p.signature.Type.Size < 4 && !plain, arg)
	default:
		return p.takes(false, arg)
	}
	return p.takes(fixed, arg)
}

func (p *param) mostSigned() int64 { return 1<<(8*min(p.place.Size, 8)-1) - 1 }

func (p *param) tooLarge(arg any) error {
	return fmt.Errorf("%v does not fit into a signed number of %d bytes", arg, p.place.Size)
}

// takes returns nil if ok, and otherwise what the parameter takes instead of arg.
func (p *param) takes(ok bool, arg any) error {
	if ok {
		return nil
	}
	size := p.place.Size
	want := fmt.Sprintf("a struct or an array of %d bytes", size)
	switch {
	case p.wraps:
		want = fmt.Sprintf("a struct, or its bits as a uint%d", 8*size)
	case p.kind == signature.Bool:
		want = "a bool"
	case p.kind == signature.Int || p.kind == signature.Uint || p.kind == signature.Enum:
		want = "an integer"
	case p.kind == signature.Float:
		want = fmt.Sprintf("a float%d", 8*size)
	case p.kind == signature.Pointer:
		want = "a pointer, *gpu.Buffer or gpu.Ptr"
	}
	article := "a"
	switch arg.(type) {
	case *Buffer, Ptr:
		return fmt.Errorf("the parameter takes %s, not a %T", want, arg)
	case int, int8, int16, int32, int64:
		article = "an"
	}
	return fmt.Errorf("the parameter takes %s, not %s %T (%v)", want, article, arg, arg)
}
