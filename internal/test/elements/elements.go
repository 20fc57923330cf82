// Package elements is the reference arithmetic of element types on the host: random
// data, what a reduction has to make of them, and whether a result is right. Data is a
// function of a seed and an index, so that every rank can check what all ranks
// contributed without holding it.
package elements

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo/collective"
)

// Type is an element type with its reference arithmetic: of floats, or of integers if
// float is nil.
type Type struct {
	collective.Type
	signed bool // of integers
	*float
}

// float is the arithmetic of a floating point type. All of a float64 is exact in it, or
// near enough.
type float struct {
	mantissa, bias int
	value          func(bits uint64) float64
	// nearest returns the value of the type that a result is rounded to. It is monotone.
	nearest            func(v float64) float64
	relative, absolute float64 // bounds of the error of one rounding to the type
	wide               *rounding
}

// rounding bounds the error of an operation in the type that reductions are made in.
type rounding struct{ relative, absolute float64 }

var (
	inFloat32 = &rounding{0x1p-23, 0x1p-149}
	inFloat64 = &rounding{0x1p-52, 0x1p-1074}
)

// types are all element types, in the order of elements.cu.
var types = []Type{
	{collective.F32, true, &float{
		23, 127, func(b uint64) float64 { return float64(math.Float32frombits(uint32(b))) },
		func(v float64) float64 { return float64(float32(v)) }, 0x1p-24, 0x1p-150, inFloat32,
	}},
	{collective.F16, true, &float{
		10, 15, func(b uint64) float64 { return float64(collective.Float16(b).Float32()) },
		func(v float64) float64 { return float64(collective.NewFloat16(float32(v)).Float32()) }, 0x1p-11, 0x1p-25, inFloat32,
	}},
	{collective.BF16, true, &float{
		7, 127, func(b uint64) float64 { return float64(collective.BFloat16(b).Float32()) },
		func(v float64) float64 { return float64(collective.NewBFloat16(float32(v)).Float32()) }, 0x1p-8, 0x1p-134, inFloat32,
	}},
	{collective.F64, true, &float{
		52, 1023, math.Float64frombits,
		func(v float64) float64 { return v }, 0x1p-53, 0x1p-1075, inFloat64,
	}},
	{collective.F8E4M3, true, &float{
		3, 7, func(b uint64) float64 { return float64(collective.Float8E4M3(b).Float32()) },
		func(v float64) float64 { return float64(collective.NewFloat8E4M3(float32(v)).Float32()) }, 0x1p-4, 0x1p-10, inFloat32,
	}},
	{collective.F8E5M2, true, &float{
		2, 15, func(b uint64) float64 { return float64(collective.Float8E5M2(b).Float32()) },
		func(v float64) float64 { return float64(collective.NewFloat8E5M2(float32(v)).Float32()) }, 0x1p-3, 0x1p-17, inFloat32,
	}},
	{collective.I32, true, nil},
	{collective.I64, true, nil},
	{collective.U8, false, nil},
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

// mix scrambles a seed and an index (the finaliser of SplitMix64; Steele, Lea
// and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
func mix(seed, index uint64) uint64 {
	z := seed*0x9e3779b97f4a7c15 + index*0xbf58476d1ce4e5b9 + 0x94d049bb133111eb
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// random returns the bits of element i that belongs to a seed: any integer, or a finite
// float of either sign with an exponent from -6 to 1, so that sums of a few neither
// overflow nor lose all of a term.
func (t Type) random(seed, i uint64) uint64 {
	r := mix(seed, i)
	if t.float == nil {
		return r & t.mask()
	}
	exponent, sign := uint64(t.bias-6)+r>>60&7, r>>59&1
	return sign<<(8*t.Size()-1) | exponent<<t.mantissa | r&(1<<t.mantissa-1)
}

// mask returns as many ones as an element has bits.
func (t Type) mask() uint64 { return 1<<(8*t.Size()) - 1 }

// integer returns the value of an integer's bits.
func (t Type) integer(bits uint64) int64 {
	if !t.signed {
		return int64(bits)
	}
	unused := 64 - 8*t.Size()
	return int64(bits<<unused) >> unused
}

// Fill writes len(dst)/Size() random elements that belong to the seed.
func (t Type) Fill(dst []byte, seed uint64) {
	for i := 0; (i+1)*t.Size() <= len(dst); i++ {
		t.put(dst[i*t.Size():], t.random(seed, uint64(i)))
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
	case 8:
		binary.LittleEndian.PutUint64(dst, bits)
	}
}

func (t Type) get(src []byte) uint64 {
	switch t.Size() {
	case 1:
		return uint64(src[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(src))
	case 4:
		return uint64(binary.LittleEndian.Uint32(src))
	}
	return binary.LittleEndian.Uint64(src)
}

// WrongReduced counts the elements of got that are not the reduction of what Fill makes
// of the seeds. Integers, maxima and minima are exact. Other floats may be off by what
// the operations lose in the type that they are made in, and by a number of roundings to
// their own type: 1 for the result.
func (t Type) WrongReduced(got []byte, op collective.Op, seeds []uint64, roundings int) (wrong int) {
	operands := make([]uint64, len(seeds))
	for i := 0; (i+1)*t.Size() <= len(got); i++ {
		for k, seed := range seeds {
			operands[k] = t.random(seed, uint64(i))
		}
		bits, right := t.get(got[i*t.Size():]), false
		if t.float == nil {
			right = bits == t.reduceIntegers(op, operands)
		} else {
			least, most := t.reduceFloats(op, operands, roundings)
			right = t.value(bits) >= least && t.value(bits) <= most // a NaN is not
		}
		if !right {
			wrong++
		}
	}
	return wrong
}

// reduceIntegers returns the bits of a reduction.
func (t Type) reduceIntegers(op collective.Op, operands []uint64) uint64 {
	v := t.integer(operands[0])
	for _, bits := range operands[1:] {
		switch next := t.integer(bits); op {
		case collective.Prod:
			v *= next
		case collective.Max:
			v = max(v, next)
		case collective.Min:
			v = min(v, next)
		default:
			v += next
		}
	}
	if op == collective.Avg {
		v /= int64(len(operands))
	}
	return uint64(v) & t.mask()
}

// reduceFloats returns what the value of a reduction is at least and at most. Roundings
// to the type before the last one are of partial results, which the operations that
// follow may enlarge.
func (t Type) reduceFloats(op collective.Op, operands []uint64, roundings int) (least, most float64) {
	v := t.value(operands[0])
	size, growth := math.Abs(v), max(1, math.Abs(v)) // of all together, as a sum and as a product
	for _, bits := range operands[1:] {
		next := t.value(bits)
		size += math.Abs(next)
		growth *= max(1, math.Abs(next))
		switch op {
		case collective.Prod:
			v *= next
		case collective.Max:
			v = max(v, next)
		case collective.Min:
			v = min(v, next)
		default:
			v += next
		}
	}
	ranks := float64(len(operands))
	if op == collective.Max || op == collective.Min || ranks == 1 {
		return v, v
	}
	lost := t.wide.absolute + float64(roundings-1)*t.absolute
	if op == collective.Prod {
		size = math.Abs(v)
		lost *= growth
	}
	lost += (ranks*t.wide.relative + float64(roundings-1)*t.relative) * size
	if op == collective.Avg {
		v, lost = v/ranks, lost/ranks
	}
	return t.nearest(v - lost), t.nearest(v + lost)
}

// Wrong counts the elements of got that are not what Fill makes of the seed.
func (t Type) Wrong(got []byte, seed uint64) (wrong int) {
	for i := 0; (i+1)*t.Size() <= len(got); i++ {
		if t.get(got[i*t.Size():]) != t.random(seed, uint64(i)) {
			wrong++
		}
	}
	return wrong
}
