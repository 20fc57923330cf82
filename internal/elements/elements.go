// Package elements is the reference arithmetic of element types on the host: random
// data, the float64 reference, and whether a result is right. Data is a function of a
// seed and an index, so that every rank can check what all ranks contributed without
// holding it.
package elements

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo/collective"
)

// Type is an element type with its reference arithmetic.
type Type struct {
	collective.Type

	// random gives the bits of a finite value of moderate size.
	random func(r uint64) uint64
	// value gives what the bits mean.
	value func(bits uint64) float64
	// relative and absolute bound the error of one rounding.
	relative, absolute float64
}

// types are all element types.
var types = []Type{
	{collective.F32, randomFloat(23, 127), func(b uint64) float64 { return float64(math.Float32frombits(uint32(b))) }, 0x1p-24, 0x1p-149},
	{collective.F16, randomFloat(10, 15), func(b uint64) float64 { return float64(collective.Float16(b).Float32()) }, 0x1p-11, 0x1p-25},
	{collective.BF16, randomFloat(7, 127), func(b uint64) float64 { return float64(collective.BFloat16(b).Float32()) }, 0x1p-8, 0x1p-133},
	{collective.I32, func(r uint64) uint64 { return r & (1<<32 - 1) }, func(b uint64) float64 { return float64(int32(b)) }, 0, 0},
	{collective.U8, func(r uint64) uint64 { return r & 0xff }, func(b uint64) float64 { return float64(b) }, 0, 0}, // to move, not to reduce
}

// Of returns the reference arithmetic of an element type.
//
// Errors: for types that it has none of.
func Of(t collective.Type) (Type, error) {
	for _, known := range types {
		if known.Type == t {
			return known, nil
		}
	}
	return Type{}, fmt.Errorf("there is no reference arithmetic for %v", t)
}

// Reducible returns the element types that some operation of [Ops] reduces.
func Reducible() []Type {
	var some []Type
	for _, t := range types {
		if collective.CanReduce(t.Type, collective.Sum) {
			some = append(some, t)
		}
	}
	return some
}

// Ops returns the operations that reductions have.
func Ops() []collective.Op {
	var some []collective.Op
	for _, o := range collective.Ops() {
		if collective.CanReduce(collective.F32, o) {
			some = append(some, o)
		}
	}
	return some
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

// apply returns the operation of two values.
func apply(o collective.Op, a, b float64) float64 {
	switch o {
	case collective.Max:
		return math.Max(a, b)
	case collective.Min:
		return math.Min(a, b)
	}
	return a + b
}

// exact reports whether the result of an operation is one of the operands.
func exact(o collective.Op) bool { return o == collective.Max || o == collective.Min }

// mix scrambles a seed and an index (the finaliser of SplitMix64; Steele, Lea
// and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
func mix(seed, index uint64) uint64 {
	z := seed*0x9e3779b97f4a7c15 + index*0xbf58476d1ce4e5b9 + 0x94d049bb133111eb
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Fill writes len(dst)/Size() random elements that belong to the seed.
func (t Type) Fill(dst []byte, seed uint64) {
	for i := 0; (i+1)*t.Size() <= len(dst); i++ {
		t.put(dst[i*t.Size():], t.random(mix(seed, uint64(i))))
	}
}

func (t Type) put(dst []byte, bits uint64) {
	switch t.Size() {
	case 1:
		dst[0] = byte(bits)
	case 2:
		binary.LittleEndian.PutUint16(dst, uint16(bits))
	case 4:
		binary.LittleEndian.PutUint32(dst, uint32(bits))
	}
}

func (t Type) get(src []byte) uint64 {
	switch t.Size() {
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
func (t Type) WrongReduced(got []byte, op collective.Op, seeds []uint64, roundings int) (wrong int) {
	for i := 0; (i+1)*t.Size() <= len(got); i++ {
		want, magnitude := 0.0, 0.0
		for k, seed := range seeds {
			v := t.value(t.random(mix(seed, uint64(i))))
			magnitude += math.Abs(v)
			if k == 0 {
				want = v
			} else {
				want = apply(op, want, v)
			}
		}
		bits := t.get(got[i*t.Size():])
		if t.Type == collective.I32 && !exact(op) {
			if uint32(bits) != uint32(int64(want)) {
				wrong++
			}
			continue
		}
		bound := 0.0
		if !exact(op) {
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
	for i := 0; (i+1)*t.Size() <= len(got); i++ {
		if t.get(got[i*t.Size():]) != t.random(mix(seed, uint64(i)))&(1<<(8*t.Size())-1) {
			wrong++
		}
	}
	return wrong
}
