package communicator

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// check fails the test unless the pieces in use and the free ranges tile the
// slabs, with no two free ranges side by side.
func check(t *testing.T, a *arena, used []piece) {
	t.Helper()
	for i, s := range a.slabs {
		type part struct {
			span
			free bool
		}
		var parts []part
		for _, f := range s.free {
			parts = append(parts, part{f, true})
		}
		for _, p := range used {
			if p.slab == s {
				parts = append(parts, part{p.span, false})
			}
		}
		slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.offset, b.offset) })
		at := uint64(0)
		for j, p := range parts {
			if p.offset != at || p.size == 0 || p.offset%pieceAlign != 0 {
				t.Fatalf("slab %d has %+v where %d should begin: pieces overlap or are lost", i, p, at)
			}
			if j > 0 && p.free && parts[j-1].free {
				t.Fatalf("slab %d has free ranges side by side at %d", i, at)
			}
			at += p.size
		}
		if at != s.buf.Size() {
			t.Fatalf("slab %d of %d bytes: %d are accounted for", i, s.buf.Size(), at)
		}
	}
}

func TestArenaRandom(t *testing.T) {
	a := &arena{dev: testdev.Open(t, 0)}
	defer a.close()
	var used []piece
	for step := range 5000 {
		if len(used) > 0 && rand.IntN(100) < 45 {
			i := rand.IntN(len(used))
			a.free(used[i])
			used = slices.Delete(used, i, i+1)
		} else {
			n := 1 + rand.Uint64N(1000)
			if rand.IntN(100) == 0 {
				n = 1 + rand.Uint64N(1<<19) // also more than a slab
			}
			p, err := a.alloc(n)
			testerr.Check(t, err)
			b, err := p.buffer(n)
			if err != nil || uint64(b.Ptr())%pieceAlign != 0 {
				t.Fatalf("a piece of %d bytes: %v at %#x", n, err, b.Ptr())
			}
			used = append(used, p)
		}
		if step%100 == 0 {
			check(t, a, used)
		}
	}
	for _, p := range used {
		a.free(p)
	}
	check(t, a, nil)
	for i, s := range a.slabs {
		if len(s.free) != 1 {
			t.Errorf("slab %d is in %d parts when all is given back", i, len(s.free))
		}
	}
	testerr.Report(t, a.close())
}

func TestArenaReuses(t *testing.T) {
	a := &arena{dev: testdev.Open(t, 0)}
	defer a.close()
	for range 10_000 {
		p := testerr.Must(a.alloc(64))(t)
		q := testerr.Must(a.alloc(100_000))(t)
		a.free(p)
		a.free(q)
	}
	if len(a.slabs) != 1 {
		t.Errorf("%d slabs for what fits one", len(a.slabs))
	}
}
