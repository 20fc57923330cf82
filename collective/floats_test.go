package collective

import (
	"fmt"
	"math"
	"testing"
)

func ExampleFloat16() {
	third := NewFloat16(1. / 3)
	fmt.Printf("%v %#x %v\n", third, uint16(third), third.Float32() == 1./3)
	// Output: 0.33325195 0x3555 false
}

func ExampleTypeOf() {
	t := TypeOf[BFloat16]()
	fmt.Println(t, t.Size())
	// Output: bf16 2
}

// formats are the formats with conversions, and how many bits they have.
var formats = []struct {
	name  string
	bits  int
	limit float32 // the largest finite number
	inf   bool    // what is larger becomes an infinity
	value func(uint32) float32
	round func(float32) uint32
}{
	{"f16", 16, 65504, true, func(b uint32) float32 { return Float16(b).Float32() }, func(f float32) uint32 { return uint32(NewFloat16(f)) }},
	{"bf16", 16, 0x1.fep127, true, func(b uint32) float32 { return BFloat16(b).Float32() }, func(f float32) uint32 { return uint32(NewBFloat16(f)) }},
	{"f8e4m3", 8, 448, false, func(b uint32) float32 { return Float8E4M3(b).Float32() }, func(f float32) uint32 { return uint32(NewFloat8E4M3(f)) }},
	{"f8e5m2", 8, 57344, false, func(b uint32) float32 { return Float8E5M2(b).Float32() }, func(f float32) uint32 { return uint32(NewFloat8E5M2(f)) }},
}

// TestFloats converts all numbers of each format, and the float32s around what lies
// in the middle between two of them.
func TestFloats(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			sign := uint32(1) << (f.bits - 1)
			before, most := float32(-1), float32(0)
			for b := range sign {
				v := f.value(b)
				switch {
				case v != v:
					if r := f.value(f.round(v)); r == r {
						t.Errorf("the NaN %#x becomes %v", b, r)
					}
					continue
				case math.IsInf(float64(v), 0):
					if got := f.value(f.round(v)); f.inf && got != v || !f.inf && got != f.limit {
						t.Errorf("%v becomes %v", v, got)
					}
					continue
				case v <= before:
					t.Fatalf("%#x is %v, which is not above %v", b, v, before)
				case f.value(b|sign) != -v || math.Signbit(float64(f.value(b|sign))) == math.Signbit(float64(v)):
					t.Fatalf("%#x is %v, which is not -%v", b|sign, f.value(b|sign), v)
				}
				for _, s := range []uint32{0, sign} {
					if got := f.round(f.value(b | s)); got != b|s {
						t.Fatalf("%#x became %#x", b|s, got)
					}
				}
				if b > 0 {
					middle := float32((float64(before) + float64(v)) / 2) // exact
					even := b
					if b%2 == 1 {
						even = b - 1
					}
					for x, want := range map[float32]uint32{
						middle: even, math.Nextafter32(middle, 0): b - 1, math.Nextafter32(middle, math.MaxFloat32): b,
					} {
						if got := f.round(x); got != want || f.round(-x) != want|sign {
							t.Fatalf("%v became %#x and %#x, want %#x", x, got, f.round(-x), want)
						}
					}
				}
				before, most = v, v
			}
			if most != f.limit {
				t.Errorf("the largest is %v, want %v", most, f.limit)
			}
			// Half a step above the largest is too large, since that is even or there is no other.
			for _, x := range []float32{math.MaxFloat32, float32(math.Inf(1))} {
				want := f.limit
				if f.inf {
					want = float32(math.Inf(1))
				}
				if got := f.value(f.round(x)); got != want || f.value(f.round(-x)) != -want {
					t.Errorf("%v became %v, want %v", x, got, want)
				}
			}
			if got := f.value(f.round(float32(math.NaN()))); got == got {
				t.Errorf("NaN became %v", got)
			}
		})
	}
}

func TestTypes(t *testing.T) {
	for want, got := range map[Type]Type{
		F32: TypeOf[float32](), F16: TypeOf[Float16](), BF16: TypeOf[BFloat16](), F64: TypeOf[float64](), I32: TypeOf[int32](),
		I64: TypeOf[int64](), U8: TypeOf[uint8](), F8E4M3: TypeOf[Float8E4M3](), F8E5M2: TypeOf[Float8E5M2](),
	} {
		if got != want {
			t.Errorf("the type of %v is %v", want, got)
		}
	}
	for _, typ := range Types() {
		if back, err := ParseType(typ.String()); err != nil || back != typ {
			t.Errorf("%v: %v, %v", typ, back, err)
		}
	}
	for _, op := range Ops() {
		if back, err := ParseOp(op.String()); err != nil || back != op {
			t.Errorf("%v: %v, %v", op, back, err)
		}
	}
	if typ, err := ParseType("f31"); err == nil {
		t.Errorf("f31 is %v", typ)
	}
	if op, err := ParseOp("xor"); err == nil {
		t.Errorf("xor is %v", op)
	}
}
