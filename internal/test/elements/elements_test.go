package elements

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
)

func Example() {
	t, _ := Of(collective.I32)
	a, b := make([]byte, 8), make([]byte, 8)
	t.Fill(a, 1)
	t.Fill(b, 2)
	for i := 0; i < 8; i += 4 {
		binary.LittleEndian.PutUint32(a[i:], binary.LittleEndian.Uint32(a[i:])+binary.LittleEndian.Uint32(b[i:]))
	}
	fmt.Println(t.WrongReduced(a, collective.Sum, []uint64{1, 2}, 1), t.WrongReduced(a, collective.Sum, []uint64{1, 3}, 1))
	// Output: 0 2
}

// TestWrongIsSeen reduces on the host, then spoils each element by the least step that
// must be noticed.
func TestWrongIsSeen(t *testing.T) {
	const n, ranks = 500, 4
	seeds := []uint64{7, 8, 9, 10}
	for _, typ := range types {
		for _, op := range collective.Ops() {
			parts := make([][]byte, ranks)
			for r := range parts {
				parts[r] = make([]byte, n*typ.Size())
				typ.Fill(parts[r], seeds[r])
				if bad := typ.Wrong(parts[r], seeds[r]); bad != 0 {
					t.Fatalf("%s: %d of Fill's own elements are wrong", typ, bad)
				}
			}
			got, spoiled, last := make([]byte, n*typ.Size()), make([]byte, n*typ.Size()), make([]byte, n*typ.Size())
			for i := range n {
				at := i * typ.Size()
				operands := make([]uint64, ranks)
				for r := range operands {
					operands[r] = typ.get(parts[r][at:])
				}
				bits := reduced(typ, op, operands)
				typ.put(got[at:], bits)
				typ.put(last[at:], bits^1)
				typ.put(spoiled[at:], bits^spoil(typ, op))
			}
			if bad := typ.WrongReduced(got, op, seeds, 1); bad != 0 {
				t.Errorf("%s %s: %d right elements count as wrong", typ, op, bad)
			}
			if bad := typ.WrongReduced(spoiled, op, seeds, 1); bad != n {
				t.Errorf("%s %s: %d of %d spoiled elements were seen", typ, op, bad, n)
			}
			// Of narrow floats, the last bit counts, unless a result is nearly half-way
			// between two.
			if bad := typ.WrongReduced(last, op, seeds, 1); typ.Size() < 4 && bad < n*9/10 {
				t.Errorf("%s %s: %d of %d wrong last bits were seen", typ, op, bad, n)
			}
			if typ.float == nil {
				continue
			}
			for i := range n {
				typ.put(got[i*typ.Size():], typ.mask()) // a NaN in every type
			}
			if bad := typ.WrongReduced(got, op, seeds, 8); bad != n {
				t.Errorf("%s %s: %d of %d NaNs were seen", typ, op, bad, n)
			}
		}
	}
}

// spoil returns the bits of an element that must not be wrong: the last one of what is
// exact, and of a float one near the middle of its mantissa.
func spoil(t Type, op collective.Op) uint64 {
	if t.float == nil || op == collective.Max || op == collective.Min {
		return 1
	}
	return 1 << ((t.mantissa + 1) / 2)
}

// reduced returns the bits of a reduction that a device would make.
func reduced(t Type, op collective.Op, operands []uint64) uint64 {
	if t.float == nil {
		return reducedInteger(t, op, operands)
	}
	v := t.value(operands[0])
	for _, bits := range operands[1:] {
		switch next := t.value(bits); op {
		case collective.Prod:
			v *= next
		case collective.Max:
			v = math.Max(v, next)
		case collective.Min:
			v = math.Min(v, next)
		default:
			v += next
		}
		if t.Type != collective.F64 {
			v = float64(float32(v))
		}
	}
	if op == collective.Avg {
		v /= float64(len(operands))
	}
	return nearest(t, v)
}

// reducedInteger makes integers of any size, as the reference does not.
func reducedInteger(t Type, op collective.Op, operands []uint64) uint64 {
	value := func(bits uint64) *big.Int {
		v := new(big.Int).SetUint64(bits)
		if t.signed && bits>>(8*t.Size()-1) != 0 {
			v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*t.Size())))
		}
		return v
	}
	wrapped := func(v *big.Int, size int) uint64 {
		return new(big.Int).And(v, new(big.Int).SetUint64(1<<(8*size)-1)).Uint64()
	}
	v := value(operands[0])
	for _, bits := range operands[1:] {
		next := value(bits)
		switch c := next.Cmp(v); {
		case op == collective.Prod:
			v.Mul(v, next)
		case op == collective.Sum || op == collective.Avg:
			v.Add(v, next)
		case op == collective.Max && c > 0, op == collective.Min && c < 0:
			v = next
		}
	}
	if op == collective.Avg {
		v = big.NewInt(int64(wrapped(v, 8)))
		v.Quo(v, big.NewInt(int64(len(operands))))
	}
	return wrapped(v, t.Size())
}

// nearest finds the bits of the value nearest to v by search, as a reference
// that shares nothing with the code under test but the meaning of bits.
func nearest(t Type, v float64) uint64 {
	sign := uint64(0)
	if v < 0 {
		sign = 1 << (8*t.Size() - 1)
	}
	lo, hi := uint64(0), uint64(1)<<(8*t.Size()-1)-1
	for lo < hi {
		mid := lo + (hi-lo+1)/2
		if x := t.value(mid); x <= math.Abs(v) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	below, above := math.Abs(v)-t.value(lo), t.value(lo+1)-math.Abs(v)
	if above < below || above == below && lo%2 == 1 {
		lo++
	}
	return sign | lo
}
