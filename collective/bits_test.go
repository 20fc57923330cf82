package collective_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// floats are the types of floats that are added in float32.
var floats = []struct {
	typ   collective.Type
	round func(float32) uint64
	value func(uint64) float32
}{
	{collective.F32, func(f float32) uint64 { return uint64(math.Float32bits(f)) }, func(b uint64) float32 { return math.Float32frombits(uint32(b)) }},
	{collective.F16, func(f float32) uint64 { return uint64(collective.NewFloat16(f)) }, func(b uint64) float32 { return collective.Float16(b).Float32() }},
	{collective.BF16, func(f float32) uint64 { return uint64(collective.NewBFloat16(f)) }, func(b uint64) float32 { return collective.BFloat16(b).Float32() }},
	{collective.F8E4M3, func(f float32) uint64 { return uint64(collective.NewFloat8E4M3(f)) }, func(b uint64) float32 { return collective.Float8E4M3(b).Float32() }},
	{collective.F8E5M2, func(f float32) uint64 { return uint64(collective.NewFloat8E5M2(f)) }, func(b uint64) float32 { return collective.Float8E5M2(b).Float32() }},
}

// inRankOrder are the algorithms that add in the order of the ranks and round once.
var inRankOrder = map[collective.Kind][]string{
	collective.AllReduce:     {"oneShotLL8", "oneShotLL16", "oneShotLL128", "twoShotLL16", "twoShotLL128", "direct", "pushed", "staged"},
	collective.ReduceScatter: {"LL8", "LL16", "LL128", "direct", "pushed"},
	collective.Reduce:        {"LL8", "LL16", "LL128", "twoShotLL128", "direct", "pushed"},
}

// TestSameBits compares sums and averages of every algorithm that adds in the order of the ranks with
// the host's, bit by bit, for any count, grid, alignment and place. The host adds in that order too.
func TestSameBits(t *testing.T) {
	testdev.Parallel(t)
	detector.SkipKernels(t)
	for i, f := range floats {
		ranks := []int{4, 3, 6, 4, 3}[i] // more than four are served by other kernels
		t.Run(fmt.Sprintf("%v/ranks=%d", f.typ, ranks), func(t *testing.T) {
			data := roughData(ranks, 700*ranks, f.round)
			for k, op := range []collective.Op{collective.Sum, collective.Avg} {
				if testing.Short() && k != i%2 {
					continue // compilers take most of the time
				}
				want := data.reduced(op, f.round, f.value, false)
				if f.typ == collective.F32 && slices.Equal(want, data.reduced(op, f.round, f.value, true)) {
					t.Fatal("these sums do not depend on the order of the ranks")
				}
				runMembers(t, ranks, collective.Options{}, func(m *member) error { return m.sameBits(f.typ, op, data, want) })
			}
		})
	}
}

// rough are the elements of each rank, as bits.
type rough [][]uint64

// roughData returns elements whose sums depend on the order: of both signs and many magnitudes.
func roughData(ranks, n int, round func(float32) uint64) rough {
	random := rand.New(rand.NewPCG(uint64(ranks), uint64(n)))
	data := make(rough, ranks)
	for r := range data {
		for range n {
			f := float32(math.Ldexp(random.Float64()*2-1, random.IntN(12)-6))
			data[r] = append(data[r], round(f))
		}
	}
	return data
}

// reduced returns the elements' reductions, added in float32 and rounded once, in the order of
// the ranks or against it.
func (d rough) reduced(op collective.Op, round func(float32) uint64, value func(uint64) float32, backwards bool) []uint64 {
	want := make([]uint64, len(d[0]))
	for i := range want {
		var sum float32
		for k := range d {
			r := k
			if backwards {
				r = len(d) - 1 - k
			}
			if next := value(d[r][i]); k == 0 {
				sum = next
			} else {
				sum += next
			}
		}
		if op == collective.Avg {
			sum /= float32(len(d))
		}
		want[i] = round(sum)
	}
	return want
}

// packed returns elements of so many bytes each.
func packed(elements []uint64, size int) []byte {
	var all []byte
	for _, e := range elements {
		all = append(all, binary.LittleEndian.AppendUint64(nil, e)[:size]...)
	}
	return all
}

func (m *member) sameBits(typ collective.Type, op collective.Op, data rough, want []uint64) error {
	const room = 64
	rank, ranks, size := m.comm.Rank(), m.comm.Size(), typ.Size()
	var memory [2]*collective.Memory
	for k := range memory {
		b, err := m.comm.Device().Alloc(uint64(len(want)*size + room))
		if err != nil {
			return err
		}
		if memory[k], err = m.runner.Share(m.ctx, b); err != nil {
			return err
		}
	}
	trial := 0
	for _, kind := range []collective.Kind{collective.AllReduce, collective.ReduceScatter, collective.Reduce} {
		for _, algorithm := range inRankOrder[kind] {
			for _, count := range []int{1, 37, 700} {
				for _, inPlace := range []bool{false, true} {
					trial++
					root := trial % ranks
					total := count * kind.InParts(ranks)
					// Element i of all inputs is element i of the data: parts follow one another.
					out := want[:total]
					if kind == collective.ReduceScatter {
						out = want[rank*count : (rank+1)*count]
					}
					offset := uint64(trial % 3 * size)
					in, err := memory[0].Slice(offset, uint64(total*size))
					if err != nil {
						return err
					}
					// In another alignment to the input, or in place.
					to, err := memory[1].Slice(offset*uint64(trial%2), uint64(total*size))
					if err != nil {
						return err
					}
					from := in
					if inPlace {
						from = to
					}
					if err := gpu.CopyIn(to.Buffer, bytes.Repeat([]byte{0xee}, total*size)); err != nil {
						return err
					}
					if err := gpu.CopyIn(from.Buffer, packed(data[rank][:total], size)); err != nil {
						return err
					}
					call := collective.Call{
						Kind: kind, Type: typ, Op: op, Count: uint64(count), Root: root, In: in, Out: to, InPlace: inPlace,
						Choice: collective.Choice{Algorithm: algorithm, Blocks: 2 + trial%2, Threads: 64},
					}
					operation, err := m.runner.Prepare(m.ctx, call)
					if err != nil {
						return err
					}
					if err := operation.Launch(m.stream); err != nil {
						return err
					}
					if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
						return err
					}
					if kind == collective.Reduce && rank != root {
						continue
					}
					at := kind.Internal().OutOffset(rank, inPlace) * count * size
					got := make([]byte, total*size)
					if err := gpu.CopyOut(got, to.Buffer); err != nil {
						return err
					}
					got = got[at : at+len(out)*size]
					for i, e := range out {
						if !bytes.Equal(got[i*size:(i+1)*size], packed([]uint64{e}, size)) {
							return fmt.Errorf("%s of %v on rank %d, in place %v: element %d is %x, want %x", algorithm, &call, rank, inPlace, i, got[i*size:(i+1)*size], packed([]uint64{e}, size))
						}
					}
				}
			}
		}
	}
	return nil
}
