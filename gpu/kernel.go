package gpu

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// Attributes are what the compiler settled for a kernel.
type Attributes = backend.Attributes

// Dim3 is a grid's or block's extent; a 0 counts as 1.
type Dim3 struct{ X, Y, Z int }

func (d Dim3) each() [3]int { return [3]int{cmp.Or(d.X, 1), cmp.Or(d.Y, 1), cmp.Or(d.Z, 1)} }

// LaunchConfig is the shape of a launch.
type LaunchConfig struct {
	Grid, Block Dim3
	// DynamicShared is the bytes of extern __shared__ memory a block.
	DynamicShared int
	// Cooperative makes the launch fail unless all blocks fit on the device at
	// once. Kernels whose blocks wait for each other, here or on a peer, need
	// that.
	Cooperative bool
	// Overlap lets the launch begin while the kernel before it in the stream ends,
	// on devices that can (Info.LaunchOverlap); it is without effect elsewhere. All
	// threads must call mscclgo::awaitPrevious() (launch.cuh) before they touch
	// memory. Blocks that wait there already take up room on the device.
	Overlap bool
}

// Blocks is the shape of most launches: a row of blocks of a row of threads.
func Blocks(blocks, threads int) LaunchConfig {
	return LaunchConfig{Grid: Dim3{X: blocks}, Block: Dim3{X: threads}}
}

// Kernel is an entry point of a module, good for as long as the module.
type Kernel struct {
	mod    *Module
	name   string
	b      backend.Kernel
	params []backend.Param
	bytes  int       // of all arguments
	packed sync.Pool // of *[]byte: arguments under way to a launch
}

func newKernel(m *Module, name string, b backend.Kernel) *Kernel {
	k := &Kernel{mod: m, name: name, b: b, params: b.Params()}
	for _, p := range k.params {
		k.bytes = max(k.bytes, int(p.Offset+p.Size))
	}
	k.packed.New = func() any {
		packed := make([]byte, k.bytes)
		return &packed
	}
	return k
}

// Name gives the kernel's name.
func (k *Kernel) Name() string { return k.name }

// Attributes gives what the compiler settled for the kernel.
func (k *Kernel) Attributes() (Attributes, error) {
	if err := k.mod.usable("gpu: attributes of " + k.name); err != nil {
		return Attributes{}, err
	}
	return k.b.Attributes()
}

// SetMaxDynamicShared raises the limit of [LaunchConfig.DynamicShared], which
// is 48 KiB on NVIDIA GPUs before.
//
// Errors: ErrInvalid for more than a block of the device has.
func (k *Kernel) SetMaxDynamicShared(bytes int) error {
	op := "gpu: set the dynamic shared memory of " + k.name
	if err := k.mod.usable(op); err != nil {
		return err
	}
	if limit := k.mod.dev.info.MaxSharedPerBlock; bytes < 0 || bytes > limit {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d bytes asked, a block of %v has at most %d", bytes, k.mod.dev, limit)
	}
	return k.b.SetMaxDynamicShared(bytes)
}

// MaxResidentBlocks says how many blocks of so many threads, with so many bytes
// of dynamic shared memory, the device holds at once. A grid whose blocks wait
// for each other must not be larger, counting all ranks that share the device.
// It is 0 for a block that cannot be.
func (k *Kernel) MaxResidentBlocks(threads, dynamicShared int) (int, error) {
	if err := k.mod.usable("gpu: resident blocks of " + k.name); err != nil {
		return 0, err
	}
	if threads < 1 || threads > k.mod.dev.info.MaxThreadsPerBlock || dynamicShared < 0 || dynamicShared > k.mod.dev.info.MaxSharedPerBlock {
		return 0, nil
	}
	return k.b.MaxResidentBlocks(threads, dynamicShared)
}

// Launch queues the kernel on a stream. Arguments are plain values in the order
// of the kernel's parameters: integers, floats and bools, [Ptr] or *[Buffer]
// for pointers, and structs or arrays of such for what the kernel takes by
// value. A Go int or uint takes the size of an integer parameter, if its value
// fits; everything else must have the parameter's size exactly. Sizes are all
// that a device tells of parameters: a Go int for a float goes unnoticed. The
// arguments are the caller's again when Launch returns.
//
// Errors: ErrInvalid for arguments of the wrong number, size or device, and for
// a shape that the device cannot run. What the kernel does wrong is reported by
// [Stream.Synchronize].
func (k *Kernel) Launch(s *Stream, cfg LaunchConfig, args ...any) error {
	if err := k.mod.usable("gpu: launch"); err != nil {
		return err
	}
	if err := s.usable("gpu: launch"); err != nil {
		return err
	}
	if s.dev != k.mod.dev {
		return k.invalid("the kernel is loaded on %v, the stream is of %v", k.mod.dev, s.dev)
	}
	shape, err := k.shape(cfg)
	if err != nil {
		return err
	}
	if len(args) != len(k.params) {
		return k.invalid("%d arguments given, the kernel takes %d", len(args), len(k.params))
	}
	packed := k.packed.Get().(*[]byte)
	defer k.packed.Put(packed)
	for i, arg := range args {
		p := k.params[i]
		if err := pack((*packed)[p.Offset:p.Offset+p.Size], arg, k.mod.dev); err != nil {
			return k.invalid("argument %d of %d: %w", i+1, len(args), err)
		}
	}
	return s.b.Launch(k.b, shape, *packed)
}

// shape checks the extents against the device.
func (k *Kernel) shape(cfg LaunchConfig) (backend.LaunchConfig, error) {
	info := &k.mod.dev.info
	grid, block := cfg.Grid.each(), cfg.Block.each()
	shape := backend.LaunchConfig{Cooperative: cfg.Cooperative, Overlap: cfg.Overlap && info.LaunchOverlap}
	threads := 1
	gridLimit := [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	blockLimit := [3]int{info.MaxThreadsPerBlock, info.MaxThreadsPerBlock, 64}
	for i := range 3 {
		if grid[i] < 1 || block[i] < 1 {
			return shape, k.invalid("grid %v of blocks %v has a negative extent", grid, block)
		}
		if grid[i] > gridLimit[i] || block[i] > blockLimit[i] {
			return shape, k.invalid("grid %v of blocks %v is larger than the device allows: %v of %v", grid, block, gridLimit, blockLimit)
		}
		threads *= block[i]
		shape.Grid[i], shape.Block[i] = uint32(grid[i]), uint32(block[i])
	}
	if threads > info.MaxThreadsPerBlock {
		return shape, k.invalid("blocks of %d threads, %v runs at most %d", threads, k.mod.dev, info.MaxThreadsPerBlock)
	}
	if cfg.DynamicShared < 0 || cfg.DynamicShared > info.MaxSharedPerBlock {
		return shape, k.invalid("%d bytes of dynamic shared memory, a block of %v has at most %d", cfg.DynamicShared, k.mod.dev, info.MaxSharedPerBlock)
	}
	shape.DynamicShared = uint32(cfg.DynamicShared)
	return shape, nil
}

func (k *Kernel) invalid(format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("gpu: launch %s on %v", k.name, k.mod.dev), format, args...)
}
