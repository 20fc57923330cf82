package devicecode_test

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed reduce_test.cu
var reduceSource string

// float is a floating point format: the bits of its exponent and its fraction.
type float struct{ exponent, fraction int }

var (
	f32  = float{8, 23}
	f16  = float{5, 10}
	bf16 = float{8, 7}
)

// value gives what the bits mean. It is exact.
func (f float) value(bits uint32) float64 {
	bias := 1<<(f.exponent-1) - 1
	sign := 1 - 2*float64(bits>>(f.exponent+f.fraction)&1)
	exponent, fraction := int(bits>>f.fraction)&(1<<f.exponent-1), float64(bits&(1<<f.fraction-1))
	switch {
	case exponent == 1<<f.exponent-1 && fraction != 0:
		return math.NaN()
	case exponent == 1<<f.exponent-1:
		return math.Inf(int(sign))
	case exponent == 0:
		return sign * math.Ldexp(fraction, 1-bias-f.fraction)
	}
	return sign * math.Ldexp(fraction+float64(uint32(1)<<f.fraction), exponent-bias-f.fraction)
}

// quiet makes a NaN a quiet one: C libraries do not agree with GPUs about the
// maximum of a number and a signalling one.
func (f float) quiet(bits uint32) uint32 {
	if math.IsNaN(f.value(bits)) {
		bits |= 1 << (f.fraction - 1)
	}
	return bits
}

// bits gives the nearest number of the format, of two as near the even one, which
// is IEEE 754's roundTiesToEven. v is not NaN.
func (f float) bits(v float64) uint32 {
	bias := 1<<(f.exponent-1) - 1
	sign := uint32(0)
	if math.Signbit(v) {
		sign, v = 1<<(f.exponent+f.fraction), -v
	}
	infinite := uint32(1<<f.exponent-1) << f.fraction
	switch {
	case v == 0:
		return sign
	case math.IsInf(v, 1):
		return sign | infinite
	}
	_, e := math.Frexp(v) // v is in [2^(e-1), 2^e)
	least := max(e-1, 1-bias) - f.fraction
	units := uint32(math.RoundToEven(math.Ldexp(v, -least)))
	// units below 2^fraction are subnormal; what carries over counts the exponent up.
	return sign | min(units+uint32(least+f.fraction-1+bias)<<f.fraction, infinite)
}

func TestFloatFormats(t *testing.T) {
	for bits := range uint32(1 << 16) {
		for _, f := range []float{f16, bf16} {
			if v := f.value(bits); !math.IsNaN(v) && f.bits(v) != bits {
				t.Fatalf("%v: %#x is %v, which is %#x", f, bits, v, f.bits(v))
			}
		}
		if v := math.Float32frombits(bits*65537 + 3); v == v && (f32.value(math.Float32bits(v)) != float64(v) || f32.bits(float64(v)) != math.Float32bits(v)) {
			t.Fatalf("%v is %#x", v, f32.bits(float64(v)))
		}
	}
	for _, c := range []struct {
		f    float
		v    float64
		want uint32
	}{
		{f16, 65519.99, 0x7bff}, {f16, 65520, 0x7c00}, {f16, 0x1p-25, 0}, {f16, 0x1.8p-24, 2}, {f16, 1 + 0x1p-11, 0x3c00},
		{f16, 1 + 0x3p-11, 0x3c02}, {f16, -0x1.ffcp-15, 0x8400}, {f16, 0x1.ffbp-15, 0x3ff}, {bf16, 1 + 0x1p-8, 0x3f80}, {bf16, 1 + 0x3p-8, 0x3f82}, {bf16, math.MaxFloat32, 0x7f80},
	} {
		if got := c.f.bits(c.v); got != c.want {
			t.Errorf("%v: %v is %#x, want %#x", c.f, c.v, got, c.want)
		}
	}
}

// TestReduce16 reduces 16-bit numbers of all bit patterns. A sum is made in fp32
// and rounded once at its end, to the bit.
func TestReduce16(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "reduce_test.cu", reduceSource)
	random := rand.New(rand.NewPCG(1, 2))
	const n = 1 << 16
	for name, f := range map[string]float{"f16": f16, "bf16": bf16} {
		for _, inputs := range []int{1, 2, 3, 8} {
			rows := make([]uint16, inputs*n)
			for i := range rows {
				// Every pattern once in each row; the second row is near the first,
				// or near its negative, so that little is lost and much cancels.
				switch row, at := i/n, i%n; row {
				case 0:
					rows[i] = uint16(at)
				case 1:
					rows[i] = uint16(at) + uint16(random.IntN(1<<(f.fraction+2))) ^ uint16(random.IntN(2)<<15)
				default:
					rows[i] = uint16(random.Uint32())
				}
				rows[i] = uint16(f.quiet(uint32(rows[i])))
			}
			for op, apply := range map[string]func(a, b float32) float32{"sum": sum32, "max": max32, "min": min32} {
				got := reduced[uint16](t, d, kernel(name+"_"+op), rows, inputs, n)
				for i, bits := range got {
					wide := float32(f.value(uint32(rows[i])))
					for row := 1; row < inputs; row++ {
						wide = apply(wide, float32(f.value(uint32(rows[row*n+i]))))
					}
					if wide != wide {
						if !math.IsNaN(f.value(uint32(bits))) {
							t.Fatalf("%s %s of %d, element %d: %#x, want a NaN", name, op, inputs, i, bits)
						}
						continue
					}
					if want := uint16(f.bits(float64(wide))); bits != want && (op == "sum" || wide != 0) {
						t.Fatalf("%s %s of %d, element %d: %#x, want %#x", name, op, inputs, i, bits, want)
					}
				}
			}
		}
	}
}

// TestReduce32 reduces floats and integers of 32 bits.
func TestReduce32(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "reduce_test.cu", reduceSource)
	random := rand.New(rand.NewPCG(3, 4))
	const n, inputs = 4096, 5
	rows := make([]uint32, inputs*n)
	for i := range rows {
		rows[i] = f32.quiet(random.Uint32())
	}
	for name, apply := range map[string]func(a, b uint32) uint32{
		"i32_sum": func(a, b uint32) uint32 { return a + b },
		"i32_max": func(a, b uint32) uint32 { return uint32(max(int32(a), int32(b))) },
		"i32_min": func(a, b uint32) uint32 { return uint32(min(int32(a), int32(b))) },
		"f32_sum": on32(sum32), "f32_max": on32(max32), "f32_min": on32(min32),
	} {
		for i, bits := range reduced[uint32](t, d, kernel(name), rows, inputs, n) {
			want := rows[i]
			for row := 1; row < inputs; row++ {
				want = apply(want, rows[row*n+i])
			}
			a, b := math.Float32frombits(bits), math.Float32frombits(want)
			if bits != want && (name[0] == 'i' || a == a || b == b) {
				t.Fatalf("%s, element %d: %#x, want %#x", name, i, bits, want)
			}
		}
	}
}

func sum32(a, b float32) float32 { return a + b }

// max32 and min32 give the other operand for a NaN.
func max32(a, b float32) float32 {
	if a != a || b > a {
		return b
	}
	return a
}

func min32(a, b float32) float32 {
	if a != a || b < a {
		return b
	}
	return a
}

func on32(apply func(a, b float32) float32) func(a, b uint32) uint32 {
	return func(a, b uint32) uint32 {
		return math.Float32bits(apply(math.Float32frombits(a), math.Float32frombits(b)))
	}
}

// reduced gives the reduction of rows of n elements, of which a word of the kernel
// holds some.
func reduced[T uint16 | uint32](t *testing.T, d *gpu.Device, k *gpu.Kernel, rows []T, inputs, n int) []T {
	t.Helper()
	bytes := binary.Size(rows[:n])
	word := 16
	if k.Name()[0] == 'b' || k.Name()[0] == 'i' {
		word = 8
	}
	out := upload(t, d, make([]T, n))
	run(t, d, k, gpu.Blocks(4, 64), out, upload(t, d, rows), inputs, bytes/word)
	return contents[T](t, out, n)
}
