package devicecode_test

import (
	"math"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// float is a floating point format: the bits of its exponent and its fraction. The format with
// 4 bits of exponent and 3 of fraction is finite where the exponent is all ones, but for 0x7f
// and 0xff.
type float struct {
	name               string
	exponent, fraction int
}

var (
	f32  = float{"f32", 8, 23}
	f16  = float{"f16", 5, 10}
	bf16 = float{"bf16", 8, 7}
	e4m3 = float{"e4m3", 4, 3}
	e5m2 = float{"e5m2", 5, 2}

	narrowFloats = []float{f16, bf16, e4m3, e5m2}
)

// size returns the bytes of a number.
func (f float) size() int { return (1 + f.exponent + f.fraction) / 8 }

// value returns what the bits mean. It is exact.
func (f float) value(bits uint32) float64 {
	bias := 1<<(f.exponent-1) - 1
	sign := 1 - 2*float64(bits>>(f.exponent+f.fraction)&1)
	exponent, fraction := int(bits>>f.fraction)&(1<<f.exponent-1), float64(bits&(1<<f.fraction-1))
	switch {
	case f == e4m3 && bits&0x7f == 0x7f, f != e4m3 && exponent == 1<<f.exponent-1 && fraction != 0:
		return math.NaN()
	case f != e4m3 && exponent == 1<<f.exponent-1:
		return math.Inf(int(sign))
	case exponent == 0:
		return sign * math.Ldexp(fraction, 1-bias-f.fraction)
	}
	return sign * math.Ldexp(fraction+float64(uint32(1)<<f.fraction), exponent-bias-f.fraction)
}

// bits returns the nearest number of the format, of two as near the even one, which
// is IEEE 754's roundTiesToEven. Of 8 bits, what is too large becomes the largest
// finite number.
func (f float) bits(v float64) uint32 {
	bias := 1<<(f.exponent-1) - 1
	sign := uint32(0)
	if math.Signbit(v) {
		sign, v = 1<<(f.exponent+f.fraction), -v
	}
	most := uint32(1<<f.exponent-1) << f.fraction // infinity
	switch f {
	case e4m3:
		most = 0x7e
	case e5m2:
		most--
	}
	switch {
	case v == 0:
		return sign
	case math.IsInf(v, 1):
		return sign | most
	case v != v:
		return 1<<(f.exponent+f.fraction) - 1
	}
	_, e := math.Frexp(v) // v is in [2^(e-1), 2^e)
	least := max(e-1, 1-bias) - f.fraction
	units := uint64(math.RoundToEven(math.Ldexp(v, -least)))
	// units below 2^fraction are subnormal; what carries over counts the exponent up.
	return sign | uint32(min(units+uint64(least+f.fraction-1+bias)<<f.fraction, uint64(most)))
}

// same reports whether two patterns are the same or both are NaNs, of which not every
// GPU makes the same one.
func (f float) same(a, b uint32) bool {
	return a == b || math.IsNaN(f.value(a)) && math.IsNaN(f.value(b))
}

func TestFloatFormats(t *testing.T) {
	for bits := range uint32(1 << 16) {
		for _, f := range narrowFloats {
			bits := bits & (1<<(8*f.size()) - 1)
			if v := f.value(bits); !math.IsNaN(v) && !math.IsInf(v, 0) && f.bits(v) != bits {
				t.Fatalf("%v: %#x is %v, which is %#x", f, bits, v, f.bits(v))
			}
		}
		if v := math.Float32frombits(bits*65537 + 3); v == v && (f32.value(math.Float32bits(v)) != float64(v) || f32.bits(float64(v)) != math.Float32bits(v)) {
			t.Fatalf("%v is %#x", v, f32.bits(float64(v)))
		}
	}
	inf := math.Inf(1)
	for _, c := range []struct {
		f    float
		v    float64
		want uint32
	}{
		{f16, 65519.99, 0x7bff}, {f16, 65520, 0x7c00}, {f16, 0x1p-25, 0}, {f16, 0x1.8p-24, 2}, {f16, 1 + 0x1p-11, 0x3c00},
		{f16, 1 + 0x3p-11, 0x3c02}, {f16, -0x1.ffcp-15, 0x8400}, {f16, 0x1.ffbp-15, 0x3ff}, {f16, -inf, 0xfc00},
		{bf16, 1 + 0x1p-8, 0x3f80}, {bf16, 1 + 0x3p-8, 0x3f82}, {bf16, math.MaxFloat32, 0x7f80},
		{e4m3, 448, 0x7e}, {e4m3, 464, 0x7e}, {e4m3, -1e30, 0xfe}, {e4m3, inf, 0x7e}, {e4m3, 0x1p-10, 0}, {e4m3, 0x1.8p-9, 2},
		{e4m3, 1 + 0x1p-4, 0x38}, {e4m3, 1 + 0x3p-4, 0x3a}, {e4m3, 256, 0x78}, {e4m3, math.NaN(), 0x7f},
		{e5m2, 57344, 0x7b}, {e5m2, 61440, 0x7b}, {e5m2, -inf, 0xfb}, {e5m2, 0x1p-17, 0}, {e5m2, 0x1.8p-16, 2}, {e5m2, 1.125, 0x3c},
	} {
		if got := c.f.bits(c.v); got != c.want {
			t.Errorf("%v: %v is %#x, want %#x", c.f, c.v, got, c.want)
		}
	}
}

// TestFloat8 widens every number of 8 bits, and narrows every one, what lies half-way
// between two, what is just beside either, and floats of every exponent.
func TestFloat8(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "reduce_test.cu", reduceSource)
	for _, f := range []float{e4m3, e5m2} {
		patterns := make([]uint8, 256)
		for i := range patterns {
			patterns[i] = uint8(i)
		}
		wide := upload(t, d, make([]float32, 256))
		run(t, d, kernel(f.name+"_widen"), gpu.Blocks(1, 64), wide, upload(t, d, patterns), 256)
		var numbers []float32
		for i, got := range contents[float32](t, wide, 256) {
			want := f.value(uint32(i))
			if got != got && want != want {
				continue
			}
			if math.Float64bits(float64(got)) != math.Float64bits(want) {
				t.Fatalf("%s %#x is %v, want %v", f.name, i, got, want)
			}
			next := f.value(uint32(i)&0x80 | min(uint32(i)&0x7f+1, 0x7f)) // infinite or not a number behind the last
			if half := (got + float32(next)) / 2; half == half {
				numbers = append(numbers, half)
			}
			numbers = append(numbers, got, got*float32(1+math.Ldexp(1, -f.fraction-1)))
		}
		for exponent := range uint32(256) {
			numbers = append(numbers, math.Float32frombits(exponent<<23), -math.Float32frombits(exponent<<23|0x600000))
		}
		inf := float32(math.Inf(1))
		for _, v := range numbers {
			numbers = append(numbers, math.Nextafter32(v, inf), math.Nextafter32(v, -inf))
		}
		narrow := upload(t, d, make([]uint8, len(numbers)))
		run(t, d, kernel(f.name+"_narrow"), gpu.Blocks(4, 64), narrow, upload(t, d, numbers), len(numbers))
		for i, got := range contents[uint8](t, narrow, len(numbers)) {
			if want := f.bits(float64(numbers[i])); !f.same(uint32(got), want) {
				t.Fatalf("%s of %v (%#x) is %#x, want %#x", f.name, numbers[i], math.Float32bits(numbers[i]), got, want)
			}
		}
	}
}
