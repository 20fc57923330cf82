package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// ringNumbers are random small whole numbers, of which all sums are exact, whatever their order.
// A smaller size takes the first of them.
type ringNumbers struct {
	mine []collective.Float16 // this rank's, and ringGuard more
	sums []collective.Float16 // of all ranks
	got  []collective.Float16 // room for what a reduction has left
}

const (
	ringGuard = 64 // elements behind the data that must stay
	// ringMost is the largest number: float16 has all whole numbers to 2048.
	ringMost = 2048/devicecode.MaxRanks - 1
)

// newRingNumbers makes the numbers for data of some sizes, in bytes.
func newRingNumbers(rank, ranks int, sizes []uint64) *ringNumbers {
	count := int(slices.Max(sizes))/collective.F16.Size() + ringGuard
	var half [ringMost*devicecode.MaxRanks + 1]collective.Float16
	for i := range half {
		half[i] = collective.NewFloat16(float32(i))
	}
	n := &ringNumbers{
		mine: make([]collective.Float16, count), sums: make([]collective.Float16, count), got: make([]collective.Float16, count),
	}
	// A sum is a whole number until all are added, and then its float16, of as many bits: that
	// spares another slice of hundreds of megabytes.
	theirs := make([]byte, count)
	for other := range ranks {
		rand.NewChaCha8([32]byte{byte(other), byte(other >> 8)}).Read(theirs) // alike on all ranks
		for i, b := range theirs {
			number := b % (ringMost + 1)
			n.sums[i] += collective.Float16(number)
			if other == rank {
				n.mine[i] = half[number]
			}
		}
	}
	for i, sum := range n.sums {
		n.sums[i] = half[sum]
	}
	return n
}

// wrong counts the wrong elements of a reduction of so many.
func (n *ringNumbers) wrong(count uint64) (wrong int) {
	if slices.Equal(n.got[:count], n.sums[:count]) && slices.Equal(n.got[count:count+ringGuard], n.mine[count:count+ringGuard]) {
		return 0
	}
	for i, v := range n.got[:count+ringGuard] {
		want := n.mine[i]
		if uint64(i) < count {
			want = n.sums[i]
		}
		if v != want {
			wrong++
		}
	}
	return wrong
}

// verifyAll returns an error of the first contestant that has left this rank wrong elements.
// Collective.
func (r *pipeRings) verifyAll(ctx context.Context, p *problem, all []ringContestant) error {
	for _, k := range all {
		wrong, err := r.verify(ctx, p, k)
		if err == nil && wrong > 0 {
			err = fmt.Errorf("%s: rank %d has %d wrong elements of %d", k.name, p.rank, wrong, p.count)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// verify reduces this rank's numbers once, and returns how many elements are wrong. Collective.
func (r *pipeRings) verify(ctx context.Context, p *problem, k ringContestant) (wrong int, err error) {
	n := r.numbers
	if err := gpu.CopyIn(r.data, n.mine[:p.count+ringGuard]); err != nil {
		return 0, err
	}
	once, err := k.repeat(ctx, p, 1, 1, false)
	if err != nil {
		return 0, err
	}
	defer once.close()
	if err := r.comm.Barrier(ctx); err != nil {
		return 0, err
	}
	if err := once.queue(ctx); err != nil {
		return 0, err
	}
	if err := once.wait(ctx); err != nil {
		return 0, err
	}
	if err := gpu.CopyOut(n.got[:p.count+ringGuard], r.data); err != nil {
		return 0, err
	}
	return n.wrong(p.count), nil
}
