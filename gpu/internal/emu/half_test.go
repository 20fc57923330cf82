package emu_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// format is a floating point format of 16 bits, with this many bits of fraction.
type format struct {
	name     string
	fraction int
}

func (f format) bias() int        { return 1<<(14-f.fraction) - 1 }
func (f format) infinity() uint16 { return uint16(1<<15 - 1<<f.fraction) }

// value returns the value of the bits.
func (f format) value(bits uint16) float64 {
	sign := 1.0
	if bits>>15 != 0 {
		sign = -1
	}
	exponent := int(bits&0x7fff) >> f.fraction
	fraction := int(bits) & (1<<f.fraction - 1)
	switch {
	case bits&0x7fff == f.infinity():
		return sign * math.Inf(1)
	case bits&0x7fff > f.infinity():
		return math.NaN()
	case exponent == 0:
		return sign * math.Ldexp(float64(fraction), 1-f.bias()-f.fraction)
	}
	return sign * math.Ldexp(float64(fraction|1<<f.fraction), exponent-f.bias()-f.fraction)
}

// round returns the bits nearest to x, of two equally near ones the even one.
func (f format) round(x *big.Float) uint16 {
	sign := uint16(0)
	if x.Signbit() {
		sign = 1 << 15
	}
	if x.IsInf() {
		return sign | f.infinity()
	}
	x = new(big.Float).Abs(x)
	if x.Sign() == 0 {
		return sign
	}
	// In units of the last place, the nearest integer.
	exponent := max(x.MantExp(nil)-1, 1-f.bias())
	unit := exponent - f.fraction
	scaled := new(big.Float).SetMantExp(x, -unit)
	whole, _ := scaled.Int(nil)
	rest := new(big.Float).SetPrec(2000).Sub(scaled, new(big.Float).SetInt(whole))
	n := whole.Int64()
	if c := rest.Cmp(big.NewFloat(0.5)); c > 0 || c == 0 && n%2 != 0 {
		n++
	}
	bits := n + int64(exponent+f.bias()-1)<<f.fraction
	return sign | uint16(min(bits, int64(f.infinity())))
}

func (f format) round64(x float64) uint16 {
	if math.IsNaN(x) {
		return 0x7fff
	}
	return f.round(big.NewFloat(x))
}

var formats = []format{{"half", 10}, {"bfloat16", 7}}

const halfSource = `
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define STAMP(T, name) \
extern "C" __global__ void name##_widen(float* out) { \
  int i = threadIdx.x + blockIdx.x * blockDim.x; \
  out[i] = __##name##2float(__ushort_as_##name(i)); \
} \
extern "C" __global__ void name##_narrow(const float* in, unsigned short* out) { \
  int i = threadIdx.x + blockIdx.x * blockDim.x; \
  out[i] = __##name##_as_ushort(__float2##name##_rn(in[i])); \
} \
extern "C" __global__ void name##_compute(const T* in, T* out) { \
  int i = threadIdx.x + blockIdx.x * blockDim.x; \
  T a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2], *o = out + 8 * i; \
  o[0] = a + b; o[1] = __hsub(a, b); o[2] = a * b; o[3] = __hdiv(a, b); o[4] = __hfma(a, b, c); \
  o[5] = __hmax(a, b); o[6] = __hmin(a, b); \
  o[7] = __ushort_as_##name((a < b) | __hgt(a, b) << 1 | (a == b) << 2 | __hisnan(a) << 3 | (a != b) << 4 | __hle(a, b) << 5 | __hne(a, b) << 6); \
} \
extern "C" __global__ void name##_integers(const long long* in, T* out) { \
  out[4 * threadIdx.x] = __ll2##name##_rn(in[threadIdx.x]); \
  out[4 * threadIdx.x + 1] = T((unsigned long long)in[threadIdx.x]); \
  out[4 * threadIdx.x + 2] = __int2##name##_rn((int)in[threadIdx.x]); \
  out[4 * threadIdx.x + 3] = T((short)in[threadIdx.x]); \
}
STAMP(__half, half)
STAMP(__nv_bfloat16, bfloat16)
`

func TestHalfConversions(t *testing.T) {
	d := open(t)
	m := load(t, d, halfSource)
	for _, f := range formats {
		wide := alloc(t, d, 1<<16*4)
		ran(t, d, kernelOf(t, m, f.name+"_widen"), shape(64, 1024), wide.Ptr())
		values := read[float32](t, d, wide.Ptr(), 1<<16)
		for i, v := range values {
			want := f.value(uint16(i))
			if float64(v) != want && !(math.IsNaN(want) && math.IsNaN(float64(v))) || math.Signbit(want) != math.Signbit(float64(v)) && want == want {
				t.Fatalf("%s %#04x: %g, want %g", f.name, i, v, want)
			}
		}
		// Every number, what lies half-way to the next, and what is just beside that.
		var in []float32
		for _, v := range values {
			if v != v {
				in = append(in, v)
				continue
			}
			next := f.value(f.round64(float64(v)) + 1)
			half := float32(float64(v) + (next-float64(v))/2)
			if math.IsInf(next, 0) || next != next {
				half = float32(float64(v) * (1 + math.Ldexp(1, -f.fraction-2)))
			}
			in = append(in, v, half, math.Nextafter32(half, 1e38), math.Nextafter32(half, -1e38))
		}
		in = append(in, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32)
		for len(in)%1024 != 0 {
			in = append(in, math.Float32frombits(rand.Uint32()))
		}
		from, to := alloc(t, d, uint64(len(in))*4), alloc(t, d, uint64(len(in))*2)
		write(t, d, from.Ptr(), in)
		ran(t, d, kernelOf(t, m, f.name+"_narrow"), shape(uint32(len(in)/1024), 1024), from.Ptr(), to.Ptr())
		for i, bits := range read[uint16](t, d, to.Ptr(), len(in)) {
			if want := f.round64(float64(in[i])); bits != want {
				t.Fatalf("%s of %g: %#04x, want %#04x", f.name, in[i], bits, want)
			}
		}
	}
}

func TestHalfArithmetic(t *testing.T) {
	d := open(t)
	m := load(t, d, halfSource)
	random := rand.New(rand.NewPCG(1, 2))
	for _, f := range formats {
		const n = 16 << 10
		in := make([]uint16, 3*n)
		special := []uint16{0, 0x8000, 1, 0x8001, f.infinity(), f.infinity() | 0x8000, f.infinity() - 1, 0x7fff, 1 << f.fraction, 1<<f.fraction - 1}
		for i := range in {
			switch {
			case i < 3*2000:
				in[i] = special[random.IntN(len(special))]
			case i < 3*8000: // near to each other, so that sums cancel and fmas tie
				in[i] = uint16(random.IntN(2)<<15) | uint16(f.bias()<<f.fraction+random.IntN(4<<f.fraction))
			default:
				in[i] = uint16(random.Uint32())
			}
		}
		from, to := alloc(t, d, 3*n*2), alloc(t, d, 8*n*2)
		write(t, d, from.Ptr(), in)
		ran(t, d, kernelOf(t, m, f.name+"_compute"), shape(n/1024, 1024), from.Ptr(), to.Ptr())
		got := read[[8]uint16](t, d, to.Ptr(), n)
		for i, g := range got {
			a, b, c := f.value(in[3*i]), f.value(in[3*i+1]), f.value(in[3*i+2])
			want := [8]uint16{
				f.round64(a + b), f.round64(a - b), f.round64(a * b), f.round64(a / b), f.fma(a, b, c),
				f.extreme(in[3*i], in[3*i+1], false), f.extreme(in[3*i], in[3*i+1], true),
				bit(a < b, 0) | bit(a > b, 1) | bit(a == b, 2) | bit(a != a, 3) | bit(a != b, 4) | bit(a <= b, 5) | bit(a < b || a > b, 6),
			}
			if g != want {
				t.Fatalf("%s of %g, %g, %g (%#04x): %#04x, want %#04x", f.name, a, b, c, in[3*i:3*i+3], g, want)
			}
		}

		integers := []int64{0, 1, -1, 2049, 65504, 65519, 65520, -70000, 1 << 53, 1<<62 + 1, -1 << 63, 1<<62 + 1<<54, 1<<62 + 1<<54 + 1, 1<<54 - 1}
		ints, outs := alloc(t, d, uint64(len(integers))*8), alloc(t, d, uint64(len(integers))*8)
		write(t, d, ints.Ptr(), integers)
		ran(t, d, kernelOf(t, m, f.name+"_integers"), shape(1, uint32(len(integers))), ints.Ptr(), outs.Ptr())
		for i, g := range read[[4]uint16](t, d, outs.Ptr(), len(integers)) {
			v := integers[i]
			want := [4]uint16{
				f.round(new(big.Float).SetInt64(v)), f.round(new(big.Float).SetUint64(uint64(v))),
				f.round64(float64(int32(v))), f.round64(float64(int16(v))),
			}
			if g != want {
				t.Errorf("%s of %d: %#04x, want %#04x", f.name, v, g, want)
			}
		}
	}
}

func bit(set bool, n int) uint16 {
	if set {
		return 1 << n
	}
	return 0
}

// fma rounds a * b + c once.
func (f format) fma(a, b, c float64) uint16 {
	if plain := a*b + c; math.IsNaN(plain) || math.IsInf(plain, 0) {
		return f.round64(plain)
	}
	exact := new(big.Float).SetPrec(2000)
	exact.Mul(big.NewFloat(a), big.NewFloat(b))
	if sum := new(big.Float).SetPrec(2000).Add(exact, big.NewFloat(c)); sum.Sign() != 0 {
		return f.round(sum)
	}
	return f.round64(a*b + c) // the sign of a zero
}

// extreme returns the lesser or the greater, a number rather than a NaN.
func (f format) extreme(a, b uint16, less bool) uint16 {
	x, y := f.value(a), f.value(b)
	switch {
	case x != x && y != y:
		return 0x7fff
	case x != x:
		return b
	case y != y:
		return a
	case x == y: // differ at most in a zero's sign
		if less {
			return a | b
		}
		return a & b
	case (x < y) == less:
		return a
	}
	return b
}
