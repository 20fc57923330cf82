package kernelgen

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// structure is a type of Go that stands for one of C++.
type structure struct{ Name, Comment, Body string }

// types names the types of C++ in Go, and declares the types that Go does not have.
type types struct {
	structs []structure
	taken   names
	known   map[string]string // by what a type is
}

func newTypes(taken ...string) *types {
	t := &types{taken: names{}, known: map[string]string{}}
	for _, name := range taken {
		t.taken[name] = true
	}
	return t
}

// handles are the library's structs that kernels take by value.
var handles = map[string]any{
	"Watch":                        devicecode.Watch{},
	"Device2DeviceSemaphoreHandle": devicecode.Device2DeviceSemaphore{},
	"MemoryChannelHandle":          devicecode.MemoryChannel{},
	"MemoryChannelSet":             devicecode.MemoryChannelSet{},
	"GroupHandle":                  devicecode.Group{},
	"PeerMemory":                   devicecode.PeerMemory{},
	"FifoHandle":                   devicecode.Fifo{},
	"Host2DeviceSemaphoreHandle":   devicecode.Host2DeviceSemaphore{},
	"BasePortChannelHandle":        devicecode.BasePortChannel{},
	"PortChannelHandle":            devicecode.PortChannel{},
	"PortChannelSet":               devicecode.PortChannelSet{},
}

// name returns a type of Go with the same layout.
func (ts *types) name(t signature.Type) string {
	switch t.Kind {
	case signature.Bool:
		return "bool"
	case signature.Int, signature.Enum:
		if t.Size <= 8 {
			return fmt.Sprintf("int%d", 8*t.Size)
		}
	case signature.Uint:
		if t.Size <= 8 {
			return fmt.Sprintf("uint%d", 8*t.Size)
		}
	case signature.Float:
		switch t.Size {
		case 2:
			return "uint16" // its bits
		case 4, 8:
			return fmt.Sprintf("float%d", 8*t.Size)
		}
	case signature.Pointer:
		return "gpu.Ptr"
	case signature.Array:
		return fmt.Sprintf("[%d]%s", t.Count, ts.name(t.Fields[0].Type))
	case signature.Struct:
		return ts.structure(t)
	}
	return fmt.Sprintf("[%d]byte", t.Size)
}

// structure returns the name of a struct of Go, which it declares unless the library does.
func (ts *types) structure(t signature.Type) string {
	// CUDA's own numbers, such as __half, by their bits. Their members have other names on
	// each device.
	if strings.HasPrefix(t.Name, "__") && len(t.Fields) == 1 && t.Fields[0].Type.Size == t.Size && t.Fields[0].Type.Kind == signature.Uint {
		return ts.name(t.Fields[0].Type)
	}
	if mirror, ok := handles[t.Name]; ok && sameLayout(t, fieldsOf(reflect.TypeOf(mirror))) {
		return reflect.TypeOf(mirror).String()
	}
	key := fmt.Sprintf("%+v", t)
	if name, ok := ts.known[key]; ok {
		return name
	}
	name := ts.taken.unique(exported(t.Name))
	ts.known[key] = name
	at := len(ts.structs)
	ts.structs = append(ts.structs, structure{Name: name}) // before its fields' structs
	body, ok := ts.body(t)
	comment := fmt.Sprintf("the type %s of C++.", t.Name)
	if !ok {
		body = fmt.Sprintf("[%d]byte", t.Size)
		comment = fmt.Sprintf("the %d bytes of the type %s of C++.", t.Size, t.Name)
	}
	ts.structs[at].Body, ts.structs[at].Comment = body, comment
	return name
}

// body returns the declaration of a struct with the same members at the same places. ok is
// false if Go cannot have that.
func (ts *types) body(t signature.Type) (body string, ok bool) {
	if len(t.Fields) == 0 {
		return "", false
	}
	var b strings.Builder
	b.WriteString("struct {\n")
	fields := names{}
	end, most := uint32(0), uint32(1)
	pad := func(to uint32) {
		if to > end {
			fmt.Fprintf(&b, "_ [%d]byte\n", to-end)
			end = to
		}
	}
	for i, f := range t.Fields {
		if f.Type.Size == 0 { // Go would add bytes behind one that is the last
			continue
		}
		align := alignment(f.Type)
		most = max(most, align)
		if f.Offset%align != 0 {
			return "", false
		}
		if natural := (end + align - 1) / align * align; natural != f.Offset {
			pad(f.Offset)
		}
		name := exported(f.Name)
		if len(words(f.Name)) == 0 {
			name = fmt.Sprintf("Field%d", i+1)
		}
		fmt.Fprintf(&b, "%s %s // %s\n", fields.unique(name), ts.name(f.Type), f.Type.Name)
		end = f.Offset + f.Type.Size
	}
	if t.Size%most != 0 {
		return "", false
	}
	if (end+most-1)/most*most != t.Size {
		pad(t.Size)
	}
	b.WriteString("}")
	return b.String(), true
}

// alignment returns the alignment of what name returns.
func alignment(t signature.Type) uint32 {
	switch t.Kind {
	case signature.Bool, signature.Int, signature.Uint, signature.Enum, signature.Float, signature.Pointer:
		if t.Size <= 8 {
			return max(t.Size, 1)
		}
	case signature.Array:
		return alignment(t.Fields[0].Type)
	case signature.Struct:
		most := uint32(1)
		for _, f := range t.Fields {
			most = max(most, alignment(f.Type))
		}
		return most
	}
	return 1
}

// fieldsOf returns the type that has the fields of a handle: what its Internal returns.
func fieldsOf(handle reflect.Type) reflect.Type {
	if m, ok := handle.MethodByName("Internal"); ok {
		return m.Type.Out(0)
	}
	return handle
}

// sameLayout reports whether a type of Go has the members of one of C++ where that has them.
func sameLayout(t signature.Type, mirror reflect.Type) bool {
	if uint64(t.Size) != uint64(mirror.Size()) {
		return false
	}
	switch t.Kind {
	case signature.Struct:
		if mirror.Kind() != reflect.Struct || mirror.NumField() != len(t.Fields) {
			return false
		}
		for i, f := range t.Fields {
			if m := mirror.Field(i); uintptr(f.Offset) != m.Offset || !sameLayout(f.Type, m.Type) {
				return false
			}
		}
		return true
	case signature.Array:
		return mirror.Kind() == reflect.Array && mirror.Len() == int(t.Count) && sameLayout(t.Fields[0].Type, mirror.Elem())
	case signature.Pointer:
		return mirror == reflect.TypeFor[gpu.Ptr]()
	case signature.Uint:
		return mirror.Kind() >= reflect.Uint8 && mirror.Kind() <= reflect.Uint64
	case signature.Int:
		return mirror.Kind() >= reflect.Int8 && mirror.Kind() <= reflect.Int64
	}
	return false
}
