package bench

import (
	"bytes"
	"context"
	"errors"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/elements"
)

// problem is a collective at one size on one rank: its data, and the right result.
type problem struct {
	collective  collective.Kind
	rank, ranks int
	root        int
	typ         collective.Type
	op          collective.Op
	count       uint64 // elements of a part
	inPlace     bool
}

// size returns the bytes for which bandwidth is defined.
func (p *problem) size() uint64 { return p.part() * uint64(p.collective.Parts(p.ranks)) }

// part returns the bytes of a part.
func (p *problem) part() uint64 { return p.count * uint64(p.typ.Size()) }

// buffers returns the ranges of a contestant's buffers that hold this rank's input and
// output.
func (p *problem) buffers(in, out *gpu.Buffer) (i, o *gpu.Buffer, err error) {
	if p.inPlace {
		in = out
	}
	part := p.part()
	if i, err = in.Slice(part*uint64(p.collective.Internal().InOffset(p.rank, p.inPlace)), part*uint64(p.collective.InParts(p.ranks))); err != nil {
		return nil, nil, err
	}
	o, err = out.Slice(part*uint64(p.collective.Internal().OutOffset(p.rank, p.inPlace)), part*uint64(p.collective.OutParts(p.ranks)))
	return i, o, err
}

// outBytes returns the bytes of the output and, in place, of what lies before it.
func (p *problem) outBytes() uint64 {
	return p.part() * uint64(p.collective.OutParts(p.ranks)+p.collective.Internal().OutOffset(p.rank, p.inPlace))
}

// alike reports whether all ranks' outputs must have the same bits: the outputs of an
// all-reduce.
func (p *problem) alike() bool {
	return p.collective.Reduces() && p.collective.InParts(p.ranks) == 1 && !p.collective.Rooted()
}

const (
	poison = 0xff // a NaN in every float type
	guard  = 64   // bytes after the output that must stay unchanged
)

// seedOf returns the seed of a part of a rank's input.
func seedOf(seed uint64, rank, part int) uint64 {
	for _, v := range []int{rank, part} {
		seed = (seed ^ uint64(v+1)) * 0x9e3779b97f4a7c15 // as SplitMix64 steps
		seed ^= seed >> 29
	}
	return seed
}

// referee fills and checks problems' data, on a stream of its own.
type referee struct {
	checker *elements.Checker
	stream  *gpu.Stream
}

func newReferee(ctx context.Context, d *gpu.Device, t collective.Type) (*referee, error) {
	typ, err := elements.Of(t)
	if err != nil {
		return nil, err
	}
	checker, err := elements.NewChecker(ctx, d, typ)
	if err != nil {
		return nil, err
	}
	stream, err := d.NewStream()
	if err != nil {
		return nil, errors.Join(err, checker.Close())
	}
	return &referee{checker, stream}, nil
}

func (r *referee) close() error { return errors.Join(r.stream.Close(), r.checker.Close()) }

// fill poisons the output and fills the input with random data that belong to
// the seed.
func (r *referee) fill(ctx context.Context, p *problem, in, out *gpu.Buffer, seed uint64) error {
	if err := r.stream.Fill(out, 0, poison, min(p.outBytes()+guard, out.Size())); err != nil {
		return err
	}
	if p.inPlace {
		in = out
	}
	for part := range p.collective.InParts(p.ranks) {
		at := p.part() * uint64(part+p.collective.Internal().InOffset(p.rank, p.inPlace))
		if err := r.checker.Fill(r.stream, in, at, p.count, seedOf(seed, p.rank, part)); err != nil {
			return err
		}
	}
	return r.stream.Synchronize(ctx)
}

// check returns the number of output elements that are wrong for the seed, plus the
// number of bytes written after the output. sum is a checksum of the output.
// roundings bounds how often a reduced element was rounded.
func (r *referee) check(ctx context.Context, p *problem, out *gpu.Buffer, seed uint64, roundings int) (wrong int, sum uint64, err error) {
	offset := p.collective.Internal().OutOffset(p.rank, p.inPlace)
	for part := range p.collective.OutParts(p.ranks) {
		ranks, theirs := p.collective.Internal().Sources(p.rank, part, p.ranks, p.root)
		seeds := make([]uint64, len(ranks))
		for k, rank := range ranks {
			seeds[k] = seedOf(seed, rank, theirs)
		}
		at := p.part() * uint64(part+offset)
		if len(ranks) == 0 {
			bad, err := p.touched(out, at)
			if err != nil {
				return 0, 0, err
			}
			wrong += bad
			continue
		}
		bad, partSum, err := r.checker.Check(ctx, r.stream, out, at, p.count, p.op, seeds, roundings)
		if err != nil {
			return 0, 0, err
		}
		wrong, sum = wrong+bad, sum*31+partSum
	}
	behind, err := p.writtenBehind(out, p.outBytes())
	return wrong + behind, sum, err
}

// touched returns the number of bytes of a part that must not be written and were. In
// place, the input is there.
func (p *problem) touched(out *gpu.Buffer, at uint64) (int, error) {
	if p.inPlace {
		return 0, nil
	}
	part, err := out.Slice(at, p.part())
	if err != nil {
		return 0, err
	}
	return written(part)
}

// writtenBehind returns the number of bytes from `end` on that are no longer poison. In
// place, a reduce-scatter's input goes on there.
func (p *problem) writtenBehind(out *gpu.Buffer, end uint64) (int, error) {
	if p.inPlace && p.collective.InParts(p.ranks) > 1 {
		return 0, nil
	}
	tail, err := out.Slice(end, min(guard, out.Size()-end))
	if err != nil || tail.Size() == 0 {
		return 0, err
	}
	return written(tail)
}

// written counts the bytes that are not poison.
func written(b *gpu.Buffer) (int, error) {
	data := make([]byte, b.Size())
	if err := gpu.CopyOut(data, b); err != nil {
		return 0, err
	}
	return len(data) - bytes.Count(data, []byte{poison}), nil
}
