// Package elements knows the element types and operations of reductions on the
// host: random data, the float64 reference, and whether a result is right. Data
// is a function of a seed and an index, so that every rank can check what all
// ranks contributed without holding it.
package elements

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Type is an element type.
type Type struct {
	Name string // as kernels' names have it: "f32"
	Size int    // bytes

	// random gives the bits of a finite value of moderate size.
	random func(r uint64) uint64
	// value gives what the bits mean.
	value func(bits uint64) float64
	// relative and absolute bound the error of one rounding.
	relative, absolute float64
}

// types are all element types.
var types = []Type{
	{"f32", 4, randomFloat(23, 127), func(b uint64) float64 { return float64(math.Float32frombits(uint32(b))) }, 0x1p-24, 0x1p-149},
	{"f16", 2, randomFloat(10, 15), float16, 0x1p-11, 0x1p-25},
	{"bf16", 2, randomFloat(7, 127), func(b uint64) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }, 0x1p-8, 0x1p-133},
	{"i32", 4, func(r uint64) uint64 { return r & (1<<32 - 1) }, func(b uint64) float64 { return float64(int32(b)) }, 0, 0},
	{"u8", 1, func(r uint64) uint64 { return r & 0xff }, func(b uint64) float64 { return float64(b) }, 0, 0}, // to move, not to reduce
}

// ParseType finds a type by name.
func ParseType(name string) (Type, error) {
	var names []string
	for _, t := range types {
		if t.Name == name {
			return t, nil
		}
		names = append(names, t.Name)
	}
	return Type{}, fmt.Errorf("element type %q is none of %s", name, strings.Join(names, ", "))
}

// Reducible gives the element types that reductions take.
func Reducible() []Type {
	return slices.DeleteFunc(slices.Clone(types), func(t Type) bool { return t.Size == 1 })
}

// randomFloat makes finite floats of either sign with exponents from -6 to 1, so
// that sums of a few neither overflow nor lose all of a term.
func randomFloat(mantissa, bias int) func(uint64) uint64 {
	return func(r uint64) uint64 {
		exponent := uint64(bias-6) + r>>60&7
		sign := r >> 59 & 1
		exponentBits := uint64(8)
		if bias == 15 {
			exponentBits = 5
		}
		return (sign<<exponentBits|exponent)<<mantissa | r&(1<<mantissa-1)
	}
}

// float16 gives the value of an IEEE 754 binary16.
func float16(b uint64) float64 {
	sign := 1 - 2*float64(b>>15&1)
	exponent, fraction := int(b>>10&31), float64(b&1023)
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}

// Op is a reduction.
type Op struct {
	Name  string // as kernels' names have it: "sum"
	apply func(a, b float64) float64
	exact bool // the result is one of the operands
}

var ops = []Op{
	{"sum", func(a, b float64) float64 { return a + b }, false},
	{"max", math.Max, true},
	{"min", math.Min, true},
}

// ParseOp finds an operation by name.
func ParseOp(name string) (Op, error) {
	var names []string
	for _, o := range ops {
		if o.Name == name {
			return o, nil
		}
		names = append(names, o.Name)
	}
	return Op{}, fmt.Errorf("operation %q is none of %s", name, strings.Join(names, ", "))
}

// Ops gives all operations.
func Ops() []Op { return slices.Clone(ops) }

// mix scrambles a seed and an index (the finaliser of SplitMix64; Steele, Lea
// and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
func mix(seed, index uint64) uint64 {
	z := seed*0x9e3779b97f4a7c15 + index*0xbf58476d1ce4e5b9 + 0x94d049bb133111eb
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Fill writes len(dst)/Size random elements that belong to the seed.
func (t Type) Fill(dst []byte, seed uint64) {
	for i := 0; (i+1)*t.Size <= len(dst); i++ {
		t.put(dst[i*t.Size:], t.random(mix(seed, uint64(i))))
	}
}

func (t Type) put(dst []byte, bits uint64) {
	switch t.Size {
	case 1:
		dst[0] = byte(bits)
	case 2:
		binary.LittleEndian.PutUint16(dst, uint16(bits))
	case 4:
		binary.LittleEndian.PutUint32(dst, uint32(bits))
	}
}

func (t Type) get(src []byte) uint64 {
	switch t.Size {
	case 1:
		return uint64(src[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(src))
	}
	return uint64(binary.LittleEndian.Uint32(src))
}

// WrongReduced counts the elements of got that are not the reduction of what
// Fill makes of the seeds. A sum of floats may be off by the rounding of each
// addition in fp32, and by so many roundings to the type: 1 for the result.
func (t Type) WrongReduced(got []byte, op Op, seeds []uint64, roundings int) (wrong int) {
	for i := 0; (i+1)*t.Size <= len(got); i++ {
		want, magnitude := 0.0, 0.0
		for k, seed := range seeds {
			v := t.value(t.random(mix(seed, uint64(i))))
			magnitude += math.Abs(v)
			if k == 0 {
				want = v
			} else {
				want = op.apply(want, v)
			}
		}
		bits := t.get(got[i*t.Size:])
		if t.Name == "i32" && !op.exact {
			if uint32(bits) != uint32(int64(want)) {
				wrong++
			}
			continue
		}
		bound := 0.0
		if !op.exact {
			// The result's own rounding is relative to it, those before to partial
			// sums, which are no larger than all magnitudes together.
			bound = t.relative*(math.Abs(want)+float64(roundings-1)*magnitude) +
				float64(roundings)*t.absolute + float64(len(seeds))*0x1p-23*magnitude
		}
		// Written so that a NaN is wrong.
		if v := t.value(bits); !(math.Abs(v-want) <= bound) {
			wrong++
		}
	}
	return wrong
}

// Wrong counts the elements of got that are not what Fill makes of the seed.
func (t Type) Wrong(got []byte, seed uint64) (wrong int) {
	for i := 0; (i+1)*t.Size <= len(got); i++ {
		if t.get(got[i*t.Size:]) != t.random(mix(seed, uint64(i)))&(1<<(8*t.Size)-1) {
			wrong++
		}
	}
	return wrong
}
