package collective

import (
	"fmt"
	"math/bits"
	"slices"
)

// Type is the type of the elements of a call. The zero value is F32.
type Type uint8

// The element types.
const (
	F32    Type = iota // float32
	F16                // [Float16]
	BF16               // [BFloat16]
	F64                // float64
	I32                // int32
	I64                // int64
	U8                 // uint8
	F8E4M3             // [Float8E4M3]
	F8E5M2             // [Float8E5M2]
)

// typeSpec is what there is to know about a type.
type typeSpec struct {
	name   string
	size   int
	device string // the kernels' name of a type that they reduce
	zero   any    // of its Go type
}

// typeSpecs are the types. Nothing writes to it.
var typeSpecs = []typeSpec{
	F32:    {"f32", 4, "float", float32(0)},
	F16:    {"f16", 2, "__half", Float16(0)},
	BF16:   {"bf16", 2, "__nv_bfloat16", BFloat16(0)},
	F64:    {"f64", 8, "double", float64(0)},
	I32:    {"i32", 4, "int32_t", int32(0)},
	I64:    {"i64", 8, "int64_t", int64(0)},
	U8:     {"u8", 1, "uint8_t", uint8(0)},
	F8E4M3: {"f8e4m3", 1, "__nv_fp8_e4m3", Float8E4M3(0)},
	F8E5M2: {"f8e5m2", 1, "__nv_fp8_e5m2", Float8E5M2(0)},
}

// Types returns all element types.
func Types() []Type { return valuesBelow[Type](len(typeSpecs)) }

// ParseType returns the type of a name, such as "f32".
func ParseType(name string) (Type, error) {
	return parse("element type", name, Types(), func(t string) bool { return t == name })
}

func (t Type) valid() bool { return int(t) < len(typeSpecs) }

// Size returns the bytes of an element, or 0 for what is not a type.
func (t Type) Size() int {
	if !t.valid() {
		return 0
	}
	return typeSpecs[t].size
}

// device returns the type as Elements::of of collective.cuh takes it.
func (t Type) device() uint32 { return uint32(t)<<3 | uint32(bits.TrailingZeros(uint(t.Size()))) }

// String returns the name, such as "f32".
func (t Type) String() string {
	if !t.valid() {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return typeSpecs[t].name
}

// Element is a Go type of elements.
type Element interface {
	float32 | Float16 | BFloat16 | float64 | int32 | int64 | uint8 | Float8E4M3 | Float8E5M2
}

// TypeOf returns the type of Go values.
func TypeOf[T Element]() Type {
	return Type(slices.IndexFunc(typeSpecs, func(s typeSpec) bool { return s.zero == any(*new(T)) }))
}

// Op is the operation of a reduction. The zero value is Sum.
//
// Floats of 8 and 16 bits are reduced in float32 and rounded at the end, to nearest even;
// a ring, and reductions across hosts, round sums of 16 bits more often. Results of fp8
// that are too large, infinities included, become the largest finite number. Integers wrap
// around.
type Op uint8

// The operations.
const (
	Sum Op = iota
	Prod
	Max // of a number and a NaN the number; +0 is above -0
	Min // likewise
	// Avg is the sum divided by the number of ranks; integers toward zero, i32 and u8 without wrapping around.
	// A sum of f32 or smaller floats beyond the range of float32 counts as infinite, though the average may
	// not be.
	Avg
)

// opSpecs are the names of the operations, and the kernels'. Nothing writes to it.
var opSpecs = [...]struct{ name, device string }{
	Sum: {"sum", "Sum"}, Prod: {"prod", "Prod"}, Max: {"max", "Max"}, Min: {"min", "Min"}, Avg: {"avg", "Avg"},
}

// Ops returns all operations.
func Ops() []Op { return valuesBelow[Op](len(opSpecs)) }

// ParseOp returns the operation of a name, such as "sum".
func ParseOp(name string) (Op, error) {
	return parse("operation", name, Ops(), func(o string) bool { return o == name })
}

func (o Op) valid() bool { return int(o) < len(opSpecs) }

// String returns the name, such as "sum".
func (o Op) String() string {
	if !o.valid() {
		return fmt.Sprintf("operation %d", uint8(o))
	}
	return opSpecs[o].name
}

// CanReduce reports whether there are kernels that reduce elements of type t with
// operation o.
func CanReduce(t Type, o Op) bool {
	return t.valid() && o.valid() && typeSpecs[t].device != "" && opSpecs[o].device != ""
}
