package elements

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed elements.cu
var source []byte

const file = "elements.cu"

// Checker fills and checks elements of one type where they are, on a device, which
// takes milliseconds where the host takes seconds.
type Checker struct {
	typ         Type
	module      *gpu.Module
	fill, check *gpu.Kernel
	seeds       *gpu.Buffer // room for maxSeeds
	found       *gpu.Buffer // wrong elements and checksum
	blocks      int
}

const (
	maxSeeds       = devicecode.MaxRanks
	checkerThreads = 64
	blocksPerSM    = 16
)

// NewChecker makes a checker. The caller closes it.
//
// Errors: as for [devicecode.Load], and of memory.
func NewChecker(ctx context.Context, d *gpu.Device, t Type) (_ *Checker, err error) {
	c := &Checker{typ: t}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.module, err = devicecode.Load(ctx, d, file, source, t.options()); err != nil {
		return nil, err
	}
	if c.fill, err = c.module.Kernel("fill"); err != nil {
		return nil, err
	}
	if c.check, err = c.module.Kernel("check"); err != nil {
		return nil, err
	}
	if c.blocks, err = c.check.MaxResidentBlocks(checkerThreads, 0); err != nil {
		return nil, err
	}
	// More keep no GPU busier.
	c.blocks = min(c.blocks, blocksPerSM*d.Info().Multiprocessors)
	if c.seeds, err = d.Alloc(8 * maxSeeds); err != nil {
		return nil, err
	}
	c.found, err = d.Alloc(16)
	return c, err
}

// Compile compiles what checkers of a type load, and keeps it in the cache. arch is [devicecode.Compile]'s.
//
// Errors: as for devicecode.Compile.
func Compile(ctx context.Context, arch string, t Type) error {
	_, err := devicecode.Compile(ctx, arch, file, source, t.options())
	return err
}

func (t Type) options() devicecode.Options {
	place := slices.IndexFunc(types, func(other Type) bool { return other.Type == t.Type })
	return devicecode.Options{Defines: []string{fmt.Sprintf("TYPE=%d", place)}}
}

// shape returns a grid for count elements.
func (c *Checker) shape(count uint64) gpu.LaunchConfig {
	return gpu.Blocks(int(max(1, min(uint64(c.blocks), (count+checkerThreads-1)/checkerThreads))), checkerThreads)
}

// Fill queues what [Type.Fill] does, from an offset in bytes on.
func (c *Checker) Fill(s *gpu.Stream, dst *gpu.Buffer, offset, count, seed uint64) error {
	part, err := dst.Slice(offset, count*uint64(c.typ.Size()))
	if err != nil {
		return err
	}
	return c.fill.Launch(s, c.shape(count), part, count, seed)
}

// Check returns what [Type.WrongReduced] does for the elements from an offset in bytes
// on, for data of Fill, and a checksum of them. Of one seed it is [Type.Wrong]. It
// waits for what the stream has to do before.
func (c *Checker) Check(ctx context.Context, s *gpu.Stream, got *gpu.Buffer, offset, count uint64, op collective.Op, seeds []uint64, roundings int) (wrong int, sum uint64, err error) {
	if len(seeds) > maxSeeds {
		return 0, 0, fmt.Errorf("%d seeds are more than %d", len(seeds), maxSeeds)
	}
	part, err := got.Slice(offset, count*uint64(c.typ.Size()))
	if err != nil {
		return 0, 0, err
	}
	if err := s.Synchronize(ctx); err != nil {
		return 0, 0, err
	}
	if err := gpu.CopyIn(c.seeds, seeds); err != nil {
		return 0, 0, err
	}
	if err := gpu.CopyIn(c.found, []uint64{0, 0}); err != nil {
		return 0, 0, err
	}
	var bounds struct {
		Relative, Absolute, WideRelative, WideAbsolute float64
		Times                                          uint64
	}
	bounds.Times = uint64(roundings)
	if f := c.typ.float; f != nil {
		bounds.Relative, bounds.Absolute = f.relative, f.absolute
		bounds.WideRelative, bounds.WideAbsolute = f.wide.relative, f.wide.absolute
	}
	err = c.check.Launch(s, c.shape(count), part, count, uint32(op), c.seeds, uint32(len(seeds)), bounds, c.found)
	if err != nil {
		return 0, 0, err
	}
	if err := s.Synchronize(ctx); err != nil {
		return 0, 0, err
	}
	found := make([]uint64, 2)
	err = gpu.CopyOut(found, c.found)
	return int(found[0]), found[1], err
}

// Close releases the checker's memory and kernels.
func (c *Checker) Close() error {
	var errs []error
	for _, b := range []*gpu.Buffer{c.found, c.seeds} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	if c.module != nil {
		errs = append(errs, c.module.Close())
	}
	return errors.Join(errs...)
}
