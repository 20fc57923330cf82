package main

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/test/elements"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// result returns what a trial must leave in the output of a rank, between guards: computed by
// the kind's parts alone, for sums of whole numbers, in which the order does not matter.
func result(t *testing.T, k *trial, rank, ranks int) []byte {
	t.Helper()
	all := poisoned((k.kind.OutParts(ranks)+k.kind.Internal().OutOffset(rank, k.inPlace))*k.part() + 2*guard)
	for p := range k.kind.OutParts(ranks) {
		from, theirs := k.kind.Internal().Sources(rank, p, ranks, k.root)
		out := all[guard+(p+k.kind.Internal().OutOffset(rank, k.inPlace))*k.part():][:k.part()]
		for i, r := range from {
			in := make([]byte, len(out))
			k.elements.Fill(in, k.seeds(r, theirs))
			for j := range out { // of u8
				if i == 0 {
					out[j] = 0
				}
				out[j] += in[j]
			}
		}
	}
	return all
}

// TestTrial checks that each byte of an output, and each beside it, matters.
func TestTrial(t *testing.T) {
	const ranks, root = 3, 1
	typ := testerr.Must(elements.Of(collective.U8))(t)
	for _, kind := range collective.Kinds() {
		for rank := range ranks {
			t.Run(fmt.Sprint(kind, " ", rank), func(t *testing.T) {
				k := &trial{
					call: call{kind: kind, typ: collective.U8, op: collective.Sum}, elements: typ, count: 5, root: root,
					seeds: func(rank, part int) uint64 { return uint64(rank*10 + part) },
				}
				all := result(t, k, rank, ranks)
				if wrong := k.wrong(all, rank, ranks); wrong != 0 {
					t.Fatalf("%d elements of the right result are wrong", wrong)
				}
				for i := range all {
					all[i] ^= 0x10
					if wrong := k.wrong(all, rank, ranks); wrong != 1 {
						t.Errorf("byte %d of %d is changed, and %d are wrong", i, len(all), wrong)
					}
					all[i] ^= 0x10
				}
			})
		}
	}
}

// TestAmount checks that 0, 1 and the most are drawn, and nothing above.
func TestAmount(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, most := range []uint64{0, 1, 5, 64} {
		drawn := map[uint64]bool{}
		for range 5000 {
			drawn[amount(random, most)] = true
		}
		for n := range most + 1 {
			if !drawn[n] {
				t.Errorf("of up to %d, %d is never drawn", most, n)
			}
		}
		if len(drawn) != int(most)+1 {
			t.Errorf("of up to %d, %d numbers are drawn", most, len(drawn))
		}
	}
}

// TestPlan checks that a run follows from the seed.
func TestPlan(t *testing.T) {
	c := config{seed: 7, ranks: 5, steps: 40, most: 1 << 20, slack: 1}
	for _, f := range faults {
		a, b := c.plan(f, 3, 1), c.plan(f, 3, 1)
		if fmt.Sprintf("%+v", a.task) != fmt.Sprintf("%+v", b.task) || a.delay != b.delay || fmt.Sprint(a.transports) != fmt.Sprint(b.transports) || a.reform != b.reform {
			t.Errorf("%s: %+v and %+v", f.name, a, b)
		}
	}
}
