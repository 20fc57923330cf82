package gpu

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Attributes are the resources that a kernel uses, as compiled.
type Attributes struct {
	// MaxThreadsPerBlock is the most threads that the kernel's blocks can have.
	MaxThreadsPerBlock int
	// StaticShared is the bytes of __shared__ variables of a block.
	StaticShared int
	// MaxDynamicShared is the limit of [LaunchConfig].DynamicShared in bytes, as
	// [Kernel.SetMaxDynamicShared] has set it.
	MaxDynamicShared int
	// Registers is the number of registers of a thread, 0 on an emulated device.
	Registers int
	// LocalBytes is the bytes of local memory of a thread.
	LocalBytes int
}

// Dim3 is the extent of a grid or block. The zero Dim3 is an extent of 1. In any other,
// a Y or Z of 0 counts as 1, and an X of 0 is an error, since it is what a computation
// that went wrong leaves; see [Blocks].
type Dim3 struct{ X, Y, Z int }

func (d Dim3) each() [3]int {
	if d == (Dim3{}) {
		return [3]int{1, 1, 1}
	}
	return [3]int{d.X, cmp.Or(d.Y, 1), cmp.Or(d.Z, 1)}
}

// LaunchConfig is the configuration of a launch.
type LaunchConfig struct {
	Grid  Dim3 // blocks
	Block Dim3 // threads of each block
	// DynamicShared is the bytes of extern __shared__ memory of a block.
	DynamicShared int
	// Cooperative makes the launch fail unless all blocks fit on the device at
	// once. Kernels whose blocks wait for each other, here or on a peer, need it.
	Cooperative bool
	// Overlap lets the kernel begin before the kernel before it in the stream has
	// ended, if [Info].LaunchOverlap is true and the kernel was compiled for sm_90 or
	// later; otherwise it has no effect, since older code does not wait. On emulated
	// devices it has one where schedules are explored or races are looked for. All threads
	// must call mscclgo::awaitPrevious() (launch.cuh) before they access memory.
	// Blocks that wait there occupy the device.
	Overlap bool
}

// Blocks returns the configuration of most launches: one-dimensional blocks in a
// one-dimensional grid. A launch with 0 blocks or 0 threads is an error.
func Blocks(blocks, threads int) LaunchConfig {
	return LaunchConfig{Grid: Dim3{blocks, 1, 1}, Block: Dim3{threads, 1, 1}}
}

// Kernel is an entry point of a module. It is valid as long as the module is open.
type Kernel struct {
	mod    *Module
	name   string
	b      backend.Kernel
	params []param
	bytes  int       // of all arguments
	packed sync.Pool // of *[]byte: arguments of the launches being made
}

func newKernel(m *Module, name string, b backend.Kernel) *Kernel {
	k := &Kernel{mod: m, name: name, b: b, params: newParams(b.Params(), m.kernels[name])}
	for _, p := range k.params {
		k.bytes = max(k.bytes, int(p.place.Offset+p.place.Size))
	}
	k.packed.New = func() any {
		packed := make([]byte, k.bytes)
		return &packed
	}
	return k
}

// Name returns the kernel's name.
func (k *Kernel) Name() string { return k.name }

// Attributes returns the resources that the kernel uses.
func (k *Kernel) Attributes() (Attributes, error) {
	if err := k.usable("attributes of"); err != nil {
		return Attributes{}, err
	}
	a, err := k.b.Attributes()
	return Attributes(a), err
}

// SetMaxDynamicShared sets the limit of [LaunchConfig].DynamicShared, which is 48 KiB
// at first. On a GPU it is never lowered: ranks of a process may share the code.
//
// Errors: ErrInvalid if the limit is more than a block of the device can have.
func (k *Kernel) SetMaxDynamicShared(bytes int) error {
	if err := k.usable("set the dynamic shared memory of"); err != nil {
		return err
	}
	if limit := k.mod.dev.info.MaxSharedPerBlock; bytes < 0 || bytes > limit {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: set the dynamic shared memory of "+k.name, "the limit is %d bytes, and a block of %v can have at most %d", bytes, k.mod.dev, limit)
	}
	return k.b.SetMaxDynamicShared(bytes)
}

// MaxResidentBlocks returns how many blocks of the given threads and bytes of dynamic
// shared memory the device can hold at once, or 0 if it can hold no such block, also for more
// shared memory than [Kernel.SetMaxDynamicShared] allows. A grid
// whose blocks wait for each other must not be larger, counting the grids of all ranks
// that share the device.
func (k *Kernel) MaxResidentBlocks(threads, dynamicShared int) (int, error) {
	if err := k.usable("resident blocks of"); err != nil {
		return 0, err
	}
	if threads < 1 || threads > k.mod.dev.info.MaxThreadsPerBlock || dynamicShared < 0 || dynamicShared > k.mod.dev.info.MaxSharedPerBlock {
		return 0, nil
	}
	if a, err := k.b.Attributes(); err != nil || dynamicShared > a.MaxDynamicShared {
		return 0, err
	}
	return k.b.MaxResidentBlocks(threads, dynamicShared)
}

// Launch queues the kernel on a stream. The arguments are values in the order of the
// kernel's parameters: integers, floats and bools; [Ptr] or *[Buffer] for pointers;
// structs and arrays, in which pointers are Ptr, for parameters passed by value. A Go
// int or uint is converted to the size of the parameter if its value fits. All other
// arguments must have the size of the parameter. If the module's image gives the types
// of parameters, as images of package devicecode do, each argument must be of its
// parameter's kind: an integer that the parameter can hold, a float of its size, a
// pointer, a bool, or a struct or array of its size. Otherwise only sizes are checked.
// The arguments can be changed when Launch returns.
//
// Errors: ErrInvalid if the arguments have the wrong number, kind, size or device, the
// device cannot run a grid of this configuration, or a group whose handle is an argument
// has too few barriers for it. Faults of the kernel are returned by
// [Stream.Synchronize].
func (k *Kernel) Launch(s *Stream, cfg LaunchConfig, args ...any) error {
	shape, capture, err := k.launchable(s, cfg)
	if err != nil {
		return err
	}
	if len(args) != len(k.params) {
		return k.invalid("%d arguments given, and the kernel takes %d", len(args), len(k.params))
	}
	packed := k.packed.Get().(*[]byte)
	defer k.packed.Put(packed)
	for i, arg := range args {
		p := &k.params[i]
		err := pack((*packed)[p.place.Offset:p.place.Offset+p.place.Size], arg, k.mod.dev)
		if err == nil {
			err = p.accept(arg)
		}
		if err != nil {
			return k.invalid("argument %d of %d%v: %w", i+1, len(args), p, err)
		}
	}
	return k.queue(s, capture, shape, *packed)
}

// launchable checks all of a launch but the arguments, and returns the capture that it becomes part of,
// or nil.
func (k *Kernel) launchable(s *Stream, cfg LaunchConfig) (shape backend.LaunchConfig, c *capture, err error) {
	if err := k.usable("launch"); err != nil {
		return shape, nil, err
	}
	if c, err = s.enter("gpu: launch"); err != nil {
		return shape, nil, err
	}
	if s.dev != k.mod.dev {
		return shape, nil, k.invalid("the kernel is loaded on %v, the stream is of %v%s", k.mod.dev, s.dev, native.Twice(k.mod.dev, s.dev))
	}
	shape, err = k.shape(cfg)
	return shape, c, err
}

// queue queues a launch that has been checked, in a capture unless that is nil.
func (k *Kernel) queue(s *Stream, capture *capture, shape backend.LaunchConfig, packed []byte) error {
	if most := s.dev.groups.limit(shape.Grid, packed); most > 0 {
		return k.invalid("a grid of %v blocks with the handle of a group, whose barriers and epochs are for one-dimensional grids of "+
			"at most %d blocks: launch fewer blocks that do more each", shape.Grid, most)
	}
	trace := s.dev.trace.Load()
	site := trace.begin(s, k.name, &shape, capture != nil)
	if err := s.b.Launch(k.b, shape, packed); err != nil {
		return err
	}
	trace.end(s, site)
	of := s.dev.groups.find(packed)
	if capture != nil {
		capture.adds(inside.Launch{Name: k.name, Grid: shape.Grid, Block: shape.Block}, of, &s.dev.groups)
	} else {
		s.launched(inside.Launch{Name: k.name, Grid: shape.Grid, Block: shape.Block, Hash: crc32.Checksum(packed, castagnoli)}, of)
	}
	return nil
}

// usable returns an error if the kernel is nil or its module is closed.
func (k *Kernel) usable(what string) error {
	if k == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: "+what+" a kernel", "the kernel is nil")
	}
	if k.mod.usable("") == nil {
		return nil // without the allocation of a text
	}
	return k.mod.usable("gpu: " + what + " " + k.name)
}

// shape checks the configuration against the device.
func (k *Kernel) shape(cfg LaunchConfig) (backend.LaunchConfig, error) {
	info := &k.mod.dev.info
	grid, block := cfg.Grid.each(), cfg.Block.each()
	shape := backend.LaunchConfig{Cooperative: cfg.Cooperative, Overlap: cfg.Overlap && info.LaunchOverlap}
	threads := 1
	gridLimit := [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	blockLimit := [3]int{info.MaxThreadsPerBlock, info.MaxThreadsPerBlock, 64}
	for i := range 3 {
		if grid[i] < 1 || block[i] < 1 {
			return shape, k.invalid("grid %v of blocks %v has an extent of less than 1", grid, block)
		}
		if grid[i] > gridLimit[i] || block[i] > blockLimit[i] {
			return shape, k.invalid("grid %v of blocks %v is larger than the device allows: %v of %v", grid, block, gridLimit, blockLimit)
		}
		threads *= block[i]
		shape.Grid[i], shape.Block[i] = uint32(grid[i]), uint32(block[i])
	}
	if threads > info.MaxThreadsPerBlock {
		return shape, k.invalid("blocks have %d threads, and %v allows at most %d", threads, k.mod.dev, info.MaxThreadsPerBlock)
	}
	if cfg.DynamicShared < 0 || cfg.DynamicShared > info.MaxSharedPerBlock {
		return shape, k.invalid("%d bytes of dynamic shared memory asked for, and a block of %v can have at most %d", cfg.DynamicShared, k.mod.dev, info.MaxSharedPerBlock)
	}
	shape.DynamicShared = uint32(cfg.DynamicShared)
	return shape, nil
}

func (k *Kernel) invalid(format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("gpu: launch %s on %v", k.name, k.mod.dev), format, args...)
}
