package bench

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
	"github.com/mscclgo/mscclgo/samples"
)

// problem is a collective at one size on one rank: its data, and what is right.
type problem struct {
	collective  *samples.Collective
	rank, ranks int
	root        int
	typ         elements.Type
	op          elements.Op
	count       uint64 // elements of a part
	inPlace     bool
}

// size gives the bytes for which bandwidth is defined.
func (p *problem) size() uint64 { return p.part() * uint64(p.collective.Parts(p.ranks)) }

// part gives the bytes of a part.
func (p *problem) part() uint64 { return p.count * uint64(p.typ.Size) }

// outBytes gives the bytes of the output, and of what lies before it in place.
func (p *problem) outBytes() uint64 {
	return p.part() * uint64(p.collective.OutParts(p.ranks)+p.collective.OutOffset(p.rank, p.inPlace))
}

// alike says whether all ranks' outputs have to have the same bits: those of an
// all-reduce.
func (p *problem) alike() bool { return p.collective.Reduces && p.collective.InParts(p.ranks) == 1 }

const (
	poison = 0xff // a NaN in every float type
	guard  = 64   // bytes behind the output that have to stay as they are
	// chunk is the bytes of data that go by one seed: small enough to share out
	// among CPUs, and a multiple of every element.
	chunk = 128 << 10
)

// seedOf gives the seed of a chunk of a part of a rank's input.
func seedOf(seed uint64, rank, part, chunk int) uint64 {
	for _, v := range []int{rank, part, chunk} {
		seed = (seed ^ uint64(v+1)) * 0x9e3779b97f4a7c15 // as SplitMix64 steps
		seed ^= seed >> 29
	}
	return seed
}

// inEachChunk calls f for each chunk of data, on all CPUs.
func inEachChunk(data []byte, f func(number int, chunk []byte)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	chunks := (len(data) + chunk - 1) / chunk
	for range min(runtime.GOMAXPROCS(0), chunks) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < chunks; i = int(next.Add(1)) - 1 {
				f(i, data[i*chunk:min((i+1)*chunk, len(data))])
			}
		})
	}
	wg.Wait()
}

// fill poisons the output and fills the input with random data that belong to
// the seed. host has room for a part.
func (p *problem) fill(in, out *gpu.Buffer, seed uint64, host []byte) error {
	end := min(p.outBytes()+guard, out.Size())
	blank := bytes.Repeat([]byte{poison}, int(min(chunk, end)))
	for at := uint64(0); at < end; at += uint64(len(blank)) {
		part, err := out.Slice(at, min(uint64(len(blank)), end-at))
		if err != nil {
			return err
		}
		if err := gpu.CopyIn(part, blank[:part.Size()]); err != nil {
			return err
		}
	}
	if p.inPlace {
		in = out
	}
	host = host[:p.part()]
	for part := range p.collective.InParts(p.ranks) {
		inEachChunk(host, func(i int, data []byte) { p.typ.Fill(data, seedOf(seed, p.rank, part, i)) })
		to, err := in.Slice(p.part()*uint64(part+p.collective.InOffset(p.rank, p.inPlace)), p.part())
		if err != nil {
			return err
		}
		if err := gpu.CopyIn(to, host); err != nil {
			return err
		}
	}
	return nil
}

// check counts the output elements that are not right for the seed, and the
// bytes behind the output that were written. sum is a checksum of the output.
// roundings bounds how often a reduced element was rounded.
func (p *problem) check(out *gpu.Buffer, seed uint64, host []byte, roundings int) (wrong int, sum uint32, err error) {
	host = host[:p.part()]
	var bad atomic.Int64
	sums := make([]byte, 4*((len(host)+chunk-1)/chunk))
	offset := p.collective.OutOffset(p.rank, p.inPlace)
	for part := range p.collective.OutParts(p.ranks) {
		from, err := out.Slice(p.part()*uint64(part+offset), p.part())
		if err != nil {
			return 0, 0, err
		}
		if err := gpu.CopyOut(host, from); err != nil {
			return 0, 0, err
		}
		ranks, theirs := p.collective.Sources(p.rank, part, p.ranks, p.root)
		inEachChunk(host, func(i int, data []byte) {
			seeds := make([]uint64, len(ranks))
			for k, rank := range ranks {
				seeds[k] = seedOf(seed, rank, theirs, i)
			}
			if p.collective.Reduces {
				bad.Add(int64(p.typ.WrongReduced(data, p.op, seeds, roundings)))
			} else {
				bad.Add(int64(p.typ.Wrong(data, seeds[0])))
			}
			binary.LittleEndian.PutUint32(sums[4*i:], crc32.Checksum(data, castagnoli))
		})
		sum = crc32.Update(sum, castagnoli, sums)
	}
	behind, err := p.writtenBehind(out, p.outBytes())
	return int(bad.Load()) + behind, sum, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writtenBehind counts the bytes from `end` on that are no longer poison. In
// place, a reduce-scatter's input goes on there.
func (p *problem) writtenBehind(out *gpu.Buffer, end uint64) (int, error) {
	if p.inPlace && p.collective.InParts(p.ranks) > 1 {
		return 0, nil
	}
	tail, err := out.Slice(end, min(guard, out.Size()-end))
	if err != nil || tail.Size() == 0 {
		return 0, err
	}
	behind := make([]byte, tail.Size())
	if err := gpu.CopyOut(behind, tail); err != nil {
		return 0, err
	}
	return len(behind) - bytes.Count(behind, []byte{poison}), nil
}
