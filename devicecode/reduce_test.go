package devicecode_test

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed reduce_test.cu
var reduceSource string

// kernelWords are the bytes of the words that the kernels of a type reduce.
var kernelWords = map[string]int{
	"f32": 16, "f16": 16, "bf16": 8, "f64": 8, "e4m3": 8, "e5m2": 16, "i32": 8, "i64": 16, "u8": 16,
}

// reduced returns the reduction of rows of n elements. A cut that is not 0 is the row
// from which on a reducer of its own reduces.
func reduced[T uint8 | uint16 | uint32 | uint64](t *testing.T, d *gpu.Device, kernel func(string) *gpu.Kernel, typ, op string, rows []T, inputs, n, cut int) []T {
	t.Helper()
	size := len(fmt.Sprintf("%x", ^T(0))) / 2
	out := upload(t, d, make([]T, n))
	run(t, d, kernel(typ+"_"+op), gpu.Blocks(4, 64), out, upload(t, d, rows), inputs, n*size/kernelWords[typ], cut)
	return contents[T](t, out, n)
}

// column returns element i of each row.
func column[T any](rows []T, inputs, n, i int) []T {
	c := make([]T, inputs)
	for row := range c {
		c[row] = rows[row*n+i]
	}
	return c
}

// TestReduceNarrow reduces floats of 8 and 16 bits, of all bit patterns. They are
// reduced in fp32 and rounded once, to the bit.
func TestReduceNarrow(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "reduce_test.cu", reduceSource)
	const n = 1 << 16
	for _, f := range narrowFloats {
		for _, inputs := range []int{1, 2, 3, 8} {
			rows := patterns(f, inputs, n)
			for op, apply := range floatOps[float32]() {
				for i, got := range reducedNarrow(t, d, kernel, f, op, rows, inputs, n, 0) {
					wide := float32(f.value(uint32(rows[i])))
					for _, next := range column(rows, inputs, n, i)[1:] {
						wide = apply(wide, float32(f.value(uint32(next))))
					}
					if op == "avg" {
						wide /= float32(inputs)
					}
					if want := f.bits(float64(wide)); !f.same(uint32(got), want) {
						t.Fatalf("%s %s of %#x: %#x, want %#x", f.name, op, column(rows, inputs, n, i), got, want)
					}
				}
			}
		}
	}
}

// reducedNarrow is reduced for bit patterns of 8 or 16 bits.
func reducedNarrow(t *testing.T, d *gpu.Device, kernel func(string) *gpu.Kernel, f float, op string, rows []uint16, inputs, n, cut int) []uint16 {
	t.Helper()
	if f.size() == 2 {
		return reduced(t, d, kernel, f.name, op, rows, inputs, n, cut)
	}
	short := make([]uint8, len(rows))
	for i, bits := range rows {
		short[i] = uint8(bits)
	}
	long := make([]uint16, n)
	for i, bits := range reduced(t, d, kernel, f.name, op, short, inputs, n, cut) {
		long[i] = uint16(bits)
	}
	return long
}

// patterns returns rows of which the first holds every bit pattern. The second has,
// of 8 bits, every pattern with each of the first; of 16, what is near the first or
// near its negative, so that little is lost and much cancels.
func patterns(f float, inputs, n int) []uint16 {
	random := rand.New(rand.NewPCG(1, 2))
	rows := make([]uint16, inputs*n)
	for i := range rows {
		switch row, at := i/n, i%n; {
		case row == 0:
			rows[i] = uint16(at)
		case row == 1 && f.size() == 1:
			rows[i] = uint16(at >> 8)
		case row == 1:
			rows[i] = uint16(at) + uint16(random.IntN(1<<(f.fraction+2))) ^ uint16(random.IntN(2)<<15)
		default:
			rows[i] = uint16(random.Uint32())
		}
		rows[i] &= 1<<(8*f.size()) - 1
	}
	return rows
}

// TestReduceInParts joins reductions that are not finished. Nothing is rounded before
// the end but sums and products of 16 bits, which are their elements' in between.
func TestReduceInParts(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "reduce_test.cu", reduceSource)
	const n, inputs, cut = 1 << 16, 5, 2
	for _, f := range narrowFloats {
		rows := patterns(f, inputs, n)
		for op, apply := range floatOps[float32]() {
			for i, got := range reducedNarrow(t, d, kernel, f, op, rows, inputs, n, cut) {
				var halves [2]float32
				for row, bits := range column(rows, inputs, n, i) {
					half, v := &halves[min(row/cut, 1)], float32(f.value(uint32(bits)))
					if row == 0 || row == cut {
						*half = v
					} else {
						*half = apply(*half, v)
					}
				}
				if f.size() == 2 && op != "avg" {
					for k, v := range halves {
						halves[k] = float32(f.value(f.bits(float64(v))))
					}
				}
				wide := apply(halves[0], halves[1])
				if op == "avg" {
					wide /= inputs
				}
				if want := f.bits(float64(wide)); !f.same(uint32(got), want) {
					t.Fatalf("%s %s of %#x: %#x, want %#x", f.name, op, column(rows, inputs, n, i), got, want)
				}
			}
		}
	}
	// Averages of sums that the elements do not hold.
	for _, got := range reduced(t, d, kernel, "i32", "avg", slices.Repeat([]uint32{math.MaxInt32 - 1}, 5*64), 5, 64, 2) {
		if got != math.MaxInt32-1 {
			t.Fatalf("the average of five times %d is %d", math.MaxInt32-1, int32(got))
		}
	}
	for _, got := range reduced(t, d, kernel, "u8", "avg", slices.Repeat([]uint8{200}, 5*64), 5, 64, 3) {
		if got != 200 {
			t.Fatalf("the average of five times 200 is %d", got)
		}
	}
}

// TestReduceFloats reduces floats that are as wide as what they are reduced in.
func TestReduceFloats(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "reduce_test.cu", reduceSource)
	const n, inputs = 4096, 5
	random := rand.New(rand.NewPCG(3, 4))
	special32 := []uint32{0, 1 << 31, 1, 1<<31 | 1, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x3f800000, 0x7f7fffff}
	special64 := []uint64{0, 1 << 63, 1, 1<<63 | 1, 0x7ff << 52, 0xfff << 52, 0x7ff8 << 48, 0x7ff<<52 | 1, ^uint64(0), 0x3ff << 52, 0x7ff<<52 - 1}
	rows32, rows64 := make([]uint32, inputs*n), make([]uint64, inputs*n)
	for i := range rows32 {
		switch {
		case i%n < n/2:
			rows32[i], rows64[i] = special32[random.IntN(len(special32))], special64[random.IntN(len(special64))]
		case i%n < n*3/4: // near 1, so that products stay finite
			rows32[i], rows64[i] = 0x3f800000+random.Uint32N(1<<24)-1<<23, 0x3ff<<52+random.Uint64N(1<<53)-1<<52
		default:
			rows32[i], rows64[i] = random.Uint32(), random.Uint64()
		}
	}
	for op, apply := range floatOps[float32]() {
		for i, got := range reduced(t, d, kernel, "f32", op, rows32, inputs, n, 0) {
			values := column(rows32, inputs, n, i)
			wide := math.Float32frombits(values[0])
			for _, v := range values[1:] {
				wide = apply(wide, math.Float32frombits(v))
			}
			if op == "avg" {
				wide /= inputs
			}
			picked := op == "max" || op == "min"
			if v := math.Float32frombits(got); got != math.Float32bits(wide) && (picked || v == v || wide == wide) {
				t.Fatalf("f32 %s of %#x: %#x, want %#x", op, values, got, math.Float32bits(wide))
			}
		}
	}
	for op, apply := range floatOps[float64]() {
		for i, got := range reduced(t, d, kernel, "f64", op, rows64, inputs, n, 0) {
			values := column(rows64, inputs, n, i)
			wide := math.Float64frombits(values[0])
			for _, v := range values[1:] {
				wide = apply(wide, math.Float64frombits(v))
			}
			if op == "avg" {
				wide /= inputs
			}
			if v := math.Float64frombits(got); got != math.Float64bits(wide) && (v == v || wide == wide) {
				t.Fatalf("f64 %s of %#x: %#x, want %#x", op, values, got, math.Float64bits(wide))
			}
		}
	}
}

// TestReduceIntegers reduces integers, whose sums and products wrap around.
func TestReduceIntegers(t *testing.T) {
	testIntegers(t, "i32", func(v uint32) int32 { return int32(v) }, func(sum int64) uint32 { return uint32(sum) })
	testIntegers(t, "i64", func(v uint64) int64 { return int64(v) }, func(sum int64) uint64 { return uint64(sum) })
	testIntegers(t, "u8", func(v uint8) uint8 { return v }, func(sum int64) uint8 { return uint8(sum) })
}

// testIntegers has the elements' bits U stand for values V. The average is taken of a
// sum in int64, which wraps around for none but int64.
func testIntegers[U uint8 | uint32 | uint64, V int32 | int64 | uint8](t *testing.T, typ string, value func(U) V, bits func(int64) U) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "reduce_test.cu", reduceSource)
	random := rand.New(rand.NewPCG(5, 6))
	const n = 4096
	for _, inputs := range []int{1, 2, 7} {
		rows := make([]U, inputs*n)
		for i := range rows {
			rows[i] = U(random.Uint64())
		}
		for _, op := range []string{"sum", "prod", "max", "min", "avg"} {
			for _, cut := range []int{0, inputs / 2} {
				for i, got := range reduced(t, d, kernel, typ, op, rows, inputs, n, cut) {
					values := column(rows, inputs, n, i)
					want, sum := values[0], int64(value(values[0]))
					for _, v := range values[1:] {
						sum += int64(value(v))
						switch op {
						case "sum":
							want += v
						case "prod":
							want *= v
						case "max":
							want = U(max(value(want), value(v)))
						case "min":
							want = U(min(value(want), value(v)))
						}
					}
					if op == "avg" {
						want = bits(sum / int64(inputs))
					}
					if got != want {
						t.Fatalf("%s %s of %#x: %#x, want %#x", typ, op, values, got, want)
					}
				}
			}
		}
	}
}

// floatOps are the operations on floats; an average begins with its sum.
func floatOps[T float32 | float64]() map[string]func(a, b T) T {
	sum := func(a, b T) T { return a + b }
	return map[string]func(a, b T) T{
		"sum": sum, "avg": sum,
		"prod": func(a, b T) T { return a * b },
		"max":  func(a, b T) T { return number(a, b, a > b, math.Signbit(float64(b))) },
		"min":  func(a, b T) T { return number(a, b, a < b, math.Signbit(float64(a))) },
	}
}

// number is IEEE 754 maximumNumber and minimumNumber: a where it wins or b is a NaN.
// Two zeros are settled by their signs. Of two NaNs it makes the one that GPUs do.
func number[T float32 | float64](a, b T, wins, winsTie bool) T {
	switch {
	case a != a && b != b:
		return T(math.Float32frombits(0x7fffffff))
	case b != b, wins, a == b && winsTie:
		return a
	}
	return b
}
