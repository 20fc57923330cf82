package collective

import (
	"math"
	"strconv"
)

// Float16 is an IEEE 754 binary16 number: 5 bits of exponent, 10 of fraction. Its
// values are the bits.
type Float16 uint16

// BFloat16 is the upper half of a float32: 8 bits of exponent, 7 of fraction. Its
// values are the bits.
type BFloat16 uint16

// Float8E4M3 is a number of the Open Compute Project's 8-bit format E4M3 (OCP 8-bit
// Floating Point Specification, 2023): 4 bits of exponent, 3 of fraction, no
// infinities, one NaN of each sign. The largest is 448. Its values are the bits.
type Float8E4M3 uint8

// Float8E5M2 is a number of the Open Compute Project's 8-bit format E5M2: 5 bits of
// exponent, 2 of fraction, with infinities and NaNs. The largest is 57344. Its values
// are the bits.
type Float8E5M2 uint8

// NewFloat16 returns the number nearest to f, or the even one of two equally near.
// A value that is too large becomes an infinity, and every NaN becomes 0x7fff.
func NewFloat16(f float32) Float16 { return Float16(float16.round(f)) }

// NewBFloat16 returns the number nearest to f, or the even one of two equally near.
// A value that is too large becomes an infinity, and every NaN becomes 0x7fff.
func NewBFloat16(f float32) BFloat16 { return BFloat16(bfloat16.round(f)) }

// NewFloat8E4M3 returns the number nearest to f, or the even one of two equally near.
// A value that is too large, such as an infinity, becomes 448, and every NaN becomes 0x7f,
// as CUDA converts with __NV_SATFINITE.
func NewFloat8E4M3(f float32) Float8E4M3 { return Float8E4M3(float8E4M3.round(f)) }

// NewFloat8E5M2 returns the number nearest to f, or the even one of two equally near.
// A value that is too large, such as an infinity, becomes 57344, and every NaN becomes 0x7f,
// as CUDA converts with __NV_SATFINITE.
func NewFloat8E5M2(f float32) Float8E5M2 { return Float8E5M2(float8E5M2.round(f)) }

// Float32 returns the number, exactly.
func (f Float16) Float32() float32 { return float16.value(uint32(f)) }

// Float32 returns the number, exactly.
func (f BFloat16) Float32() float32 { return bfloat16.value(uint32(f)) }

// Float32 returns the number, exactly.
func (f Float8E4M3) Float32() float32 { return float8E4M3.value(uint32(f)) }

// Float32 returns the number, exactly.
func (f Float8E5M2) Float32() float32 { return float8E5M2.value(uint32(f)) }

// String returns the number in decimal.
func (f Float16) String() string { return decimal(f.Float32()) }

// String returns the number in decimal.
func (f BFloat16) String() string { return decimal(f.Float32()) }

// String returns the number in decimal.
func (f Float8E4M3) String() string { return decimal(f.Float32()) }

// String returns the number in decimal.
func (f Float8E5M2) String() string { return decimal(f.Float32()) }

func decimal(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }

// format is how a number of fewer bits than a float32 is made of a sign, an exponent
// and a fraction.
type format struct {
	exponent, fraction int    // bits
	most               uint32 // the largest finite number
	over               uint32 // what becomes of a larger one
	nan                uint32
	infinities         bool // those with all bits of the exponent set are infinities and NaNs
}

var (
	float16    = format{5, 10, 0x7bff, 0x7c00, 0x7fff, true}
	bfloat16   = format{8, 7, 0x7f7f, 0x7f80, 0x7fff, true}
	float8E4M3 = format{4, 3, 0x7e, 0x7e, 0x7f, false}
	float8E5M2 = format{5, 2, 0x7b, 0x7b, 0x7f, true}
)

// Of a float32.
const (
	fractionBits = 23
	bias         = 127
)

func (t format) bias() int { return 1<<(t.exponent-1) - 1 }

// round returns the bits of the number nearest to f, of two the even one.
func (t format) round(f float32) uint32 {
	bits := math.Float32bits(f)
	magnitude := bits &^ (1 << 31)
	sign := bits >> 31 << (t.exponent + t.fraction)
	if f != f {
		return t.nan
	}
	// The magnitude is significand * 2^(exponent - bias - fractionBits).
	exponent, significand := int(magnitude>>fractionBits), magnitude&(1<<fractionBits-1)
	if exponent > 0 {
		significand |= 1 << fractionBits
	} else {
		exponent = 1
	}
	exponent += t.bias() - bias
	drop := fractionBits - t.fraction
	kept := uint64(significand)
	if exponent >= 1 {
		kept += uint64(exponent-1) << fractionBits
	} else {
		drop = min(drop+1-exponent, 62) // a subnormal number
	}
	kept = (kept + 1<<(drop-1) - 1 + kept>>drop&1) >> drop
	if kept > uint64(t.most) {
		return sign | t.over
	}
	return sign | uint32(kept)
}

// value returns what the bits mean.
func (t format) value(bits uint32) float32 {
	sign := bits >> (t.exponent + t.fraction) & 1 << 31
	magnitude := bits & (1<<(t.exponent+t.fraction) - 1)
	if magnitude > t.most {
		if t.infinities && magnitude&(1<<t.fraction-1) == 0 {
			return math.Float32frombits(sign | 0xff<<fractionBits)
		}
		return float32(math.NaN())
	}
	exponent, significand := int(magnitude>>t.fraction), magnitude&(1<<t.fraction-1)
	if exponent > 0 {
		significand |= 1 << t.fraction
	} else {
		exponent = 1
	}
	f := float32(math.Ldexp(float64(significand), exponent-t.bias()-t.fraction))
	return math.Float32frombits(math.Float32bits(f) | sign)
}
