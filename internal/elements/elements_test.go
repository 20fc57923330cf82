package elements

import (
	"encoding/binary"
	"fmt"
	"math"
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

// TestWrongIsSeen reduces on the host, then spoils each element by the least
// step that must be noticed.
func TestWrongIsSeen(t *testing.T) {
	const n, ranks = 500, 4
	seeds := []uint64{7, 8, 9, 10}
	for _, typ := range Reducible() {
		for _, op := range Ops() {
			parts := make([][]byte, ranks)
			for r := range parts {
				parts[r] = make([]byte, n*typ.Size())
				typ.Fill(parts[r], seeds[r])
				if bad := typ.Wrong(parts[r], seeds[r]); bad != 0 {
					t.Fatalf("%s: %d of Fill's own elements are wrong", typ, bad)
				}
			}
			got := make([]byte, n*typ.Size())
			for i := range n {
				v := typ.value(typ.get(parts[0][i*typ.Size():]))
				for r := 1; r < ranks; r++ {
					v = apply(op, v, typ.value(typ.get(parts[r][i*typ.Size():])))
				}
				typ.put(got[i*typ.Size():], nearest(typ, v))
			}
			if bad := typ.WrongReduced(got, op, seeds, 1); bad != 0 {
				t.Errorf("%s %s: %d right elements count as wrong", typ, op, bad)
			}
			for i := range n {
				bits := typ.get(got[i*typ.Size():])
				typ.put(got[i*typ.Size():], bits^1<<(typ.Size()*8-12)) // a middle bit of the mantissa, or of the integer
			}
			if bad := typ.WrongReduced(got, op, seeds, 1); bad != n {
				t.Errorf("%s %s: %d of %d spoiled elements were seen", typ, op, bad, n)
			}
		}
	}
}

// nearest finds the bits of the value nearest to v by search, as a reference
// that shares nothing with the code under test but the meaning of bits.
func nearest(t Type, v float64) uint64 {
	if t.Type == collective.I32 {
		return uint64(uint32(int64(v)))
	}
	sign := uint64(0)
	if v < 0 {
		sign = 1 << (8*t.Size() - 1)
	}
	lo, hi := uint64(0), uint64(1)<<(8*t.Size()-1)-1
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if x := t.value(mid); x <= math.Abs(v) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if up := t.value(lo+1) - math.Abs(v); up < math.Abs(v)-t.value(lo) {
		lo++
	}
	return sign | lo
}
