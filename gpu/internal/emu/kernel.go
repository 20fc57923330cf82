package emu

/*
#include <stdlib.h>
#include <string.h>
#include "launch.h"
#include "module.h"
#include "pool.h"

// launch_new sets the fields that cgo cannot: the atomics and the arguments.
static launch* launch_new(const mscclgo_emu_kernel* kernel, const module* m, const void* arguments, size_t bytes) {
	launch* l = aligned_alloc(64, (sizeof(launch) + 63) / 64 * 64);
	if (!l) return NULL;
	memset(l, 0, sizeof(*l));
	l->kernel = kernel;
	l->module = m->table;
	if (bytes) memcpy(l->arguments, arguments, bytes);
	return l;
}
*/
import "C"

import (
	"bytes"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/race"
)

// defaultShared is the shared memory that a kernel can use before SetMaxDynamicShared,
// as on a GPU.
const defaultShared = 48 << 10

// kernel is an entry of a module's table.
type kernel struct {
	mod        *module
	c          *C.mscclgo_emu_kernel // only while the module is in use
	name       string
	params     []backend.Param
	arguments  int // bytes
	maxThreads int // of a block
	static     int // bytes of static shared memory
	dynamic    int // limit of dynamic shared memory, in bytes; guarded by mod.mu
}

func addressOf(table *C.mscclgo_emu_module) uint64 { return uint64(uintptr(unsafe.Pointer(table))) }

func newKernel(m *module, c *C.mscclgo_emu_kernel) *kernel {
	k := &kernel{mod: m, c: c, name: C.GoString(c.name), arguments: int(c.argument_bytes), maxThreads: mostThreads}
	if n := int(c.max_threads); n > 0 {
		k.maxThreads = min(n, mostThreads)
	}
	for _, p := range unsafe.Slice(c.params, int(c.param_count)) {
		k.params = append(k.params, backend.Param{Offset: uint32(p.offset), Size: uint32(p.size)})
	}
	return k
}

func (k *kernel) Params() []backend.Param { return k.params }

// Attributes counts as static shared memory the variables of the kernel's own body and
// the names of all device functions and namespaces of its module, used or not.
func (k *kernel) Attributes() (backend.Attributes, error) {
	k.mod.mu.Lock()
	defer k.mod.mu.Unlock()
	return backend.Attributes{
		MaxThreadsPerBlock: k.maxThreads,
		StaticShared:       k.static,
		MaxDynamicShared:   k.dynamic,
		LocalBytes:         C.MSCCLGO_EMU_STACK_BYTES,
	}, nil
}

func (k *kernel) SetMaxDynamicShared(bytes int) error {
	if most := mostShared - k.static; bytes > most {
		return mscclgo.Errorf(mscclgo.ErrInvalid, k.mod.dev.op("allow %s %d bytes of dynamic shared memory", k.name, bytes),
			"a block has %d bytes, of which the variables of %s leave %d", mostShared, k.name, max(0, most))
	}
	k.mod.mu.Lock()
	defer k.mod.mu.Unlock()
	k.dynamic = bytes
	return nil
}

func (k *kernel) MaxResidentBlocks(threads, _ int) (int, error) {
	a, err := k.Attributes()
	if err != nil {
		return 0, err
	}
	if threads > a.MaxThreadsPerBlock {
		return 0, nil
	}
	return k.mod.dev.residentBlocks(), nil
}

// check returns an error if the kernel cannot be launched so.
func (k *kernel) check(op string, cfg backend.LaunchConfig, args []byte) error {
	a, err := k.Attributes()
	if err != nil {
		return err
	}
	invalid := func(format string, values ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, values...)
	}
	if threads := uint64(cfg.Block[0]) * uint64(cfg.Block[1]) * uint64(cfg.Block[2]); threads > uint64(a.MaxThreadsPerBlock) {
		return invalid("a block has %d threads, and the kernel allows %d", threads, a.MaxThreadsPerBlock)
	}
	if int64(cfg.DynamicShared) > int64(a.MaxDynamicShared) {
		return invalid("%d bytes of dynamic shared memory, and the kernel allows %d; call Kernel.SetMaxDynamicShared first", cfg.DynamicShared, a.MaxDynamicShared)
	}
	if blocks := blocksOf(cfg); cfg.Cooperative && blocks > uint64(k.mod.dev.residentBlocks()) {
		return invalid("a cooperative launch of %d blocks, and the device holds %d at once", blocks, k.mod.dev.residentBlocks())
	}
	if len(args) != k.arguments {
		return invalid("%d bytes of arguments, and the kernel takes %d", len(args), k.arguments)
	}
	return nil
}

func blocksOf(cfg backend.LaunchConfig) uint64 {
	return uint64(cfg.Grid[0]) * uint64(cfg.Grid[1]) * uint64(cfg.Grid[2])
}

func (s *stream) Launch(b backend.Kernel, cfg backend.LaunchConfig, args []byte) error {
	k, ok := b.(*kernel)
	if !ok || k.mod.dev != s.dev {
		return mscclgo.Errorf(mscclgo.ErrInvalid, s.dev.op("launch a kernel"), "the kernel's module is loaded on another device")
	}
	op := s.dev.op("launch %s", k.name)
	if err := k.check(op, cfg, args); err != nil {
		return err
	}
	args = bytes.Clone(args)
	return s.do(op, func(by *workQueue) (step, error) {
		if err := k.mod.use(op); err != nil {
			return step{}, err
		}
		st := step{
			run:  func() error { return k.run(by, cfg, args) },
			done: func(error) { k.mod.unuse() },
		}
		if s.dev.overlaps() {
			st.launch = func(beside *flight, after race.Clock) (*flight, error) {
				return k.begin(by, cfg, args, beside, after)
			}
			st.overlap = cfg.Overlap
		}
		return st, nil
	})
}

// run runs the kernel to its end, for a work queue.
func (k *kernel) run(by *workQueue, cfg backend.LaunchConfig, args []byte) error {
	f, err := k.begin(by, cfg, args, nil, 0)
	if err != nil {
		return err
	}
	return f.end()
}

// begin begins a launch, for a work queue, after what the host knew. If beside is not nil the
// one before it goes on.
func (k *kernel) begin(by *workQueue, cfg backend.LaunchConfig, args []byte, beside *flight, after race.Clock) (*flight, error) {
	d := k.mod.dev
	op := d.op("run %s", k.name)
	var first unsafe.Pointer
	if len(args) > 0 {
		first = unsafe.Pointer(&args[0])
	}
	l := C.launch_new(k.c, &k.mod.c, first, C.size_t(len(args)))
	if l == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "out of host memory")
	}
	layout := k.mod.object.shared
	l.shared = C.shared_layout{
		anchor: C.uint64_t(layout.anchor), begin: C.uint64_t(layout.begin), end: C.uint64_t(layout.end),
	}
	l.grid = dim(cfg.Grid)
	l.block = dim(cfg.Block)
	l.dynamic_shared = C.uint32_t(cfg.DynamicShared)
	l.blocks = C.uint64_t(blocksOf(cfg))

	if by.race != nil {
		raced := by.race.Kernel(k.name, d.info.Name, d.ordinal, k.mod.raced, k.mod.base)
		if cfg.Overlap && by.lead != nil {
			raced.Beside(*by.lead, after)
		}
		base := raced.Base()
		by.lead = &base
		l.raced = *(*C.race_launch)(raced.Pointer())
		if k.mod.watched() {
			l.race = (*C.race_engine)(d.race.Engine())
		}
	}
	by.explored(l, k.mod)
	return k.fly(by, l, beside), nil
}

func dim(d [3]uint32) C.mscclgo_emu_dim {
	return C.mscclgo_emu_dim{x: C.uint32_t(d[0]), y: C.uint32_t(d[1]), z: C.uint32_t(d[2])}
}
