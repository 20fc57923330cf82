package collective

import (
	"context"
	"embed"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// unit is a file of kernels, as it is compiled.
type unit struct {
	unitKey
	text    []byte // nil for a file of this package
	options devicecode.Options
}

// unitKey tells a runner's units apart.
type unitKey struct{ file, variant string }

//go:embed kernels/*.cu
var kernelFiles embed.FS

// file returns a file of this package.
func file(name string) unit { return unit{unitKey: unitKey{file: name}} }

// moves returns the kernels of a collective that reduces nothing.
func moves(move string) unit {
	return unit{unitKey: unitKey{"moves.cu", move}, options: devicecode.Options{Defines: []string{"MOVE=" + move}}}
}

// source returns the text of the file.
func (u *unit) source() []byte {
	if u.text != nil {
		return u.text
	}
	text, _ := kernelFiles.ReadFile("kernels/" + u.file) // which is there
	return text
}

// unit is what a call's algorithm is compiled from, for a type and an operation if the collective reduces.
func (c *Call) unit(t *traits) unit {
	u := t.unit
	if u.file == "" {
		u = c.Kind.spec().unit
	}
	if c.Kind.Reduces() {
		u.variant = c.Type.String() + " " + c.Op.String()
		u.options.Defines = []string{"ELEMENT=" + typeSpecs[c.Type].device, "OPERATION=" + opSpecs[c.Op].device}
	}
	return u
}

func (r runnerInside) Compile(ctx context.Context, calls []Call) error {
	if err := r.made("collective: compile"); err != nil {
		return err
	}
	// Another rank that compiles the same, and is awaited, may be stopped.
	ctx, cancel := r.comm.Internal().UntilFailure(ctx)
	defer cancel()
	var units []unit
	known := map[unitKey]bool{}
	for _, c := range calls {
		err := c.checkNames()
		var a algorithm
		if err == nil {
			a, err = c.Kind.algorithm(c.Algorithm)
		}
		if err != nil {
			return r.invalid(&c, "compile", err)
		}
		u := c.unit(a.about())
		if a == throughSlots {
			u = r.groups.unit(r.Runner)
		}
		if !known[u.unitKey] && !r.loaded(u.unitKey) {
			u.options = r.complete(u.options)
			units = append(units, u)
		}
		known[u.unitKey] = true
	}
	defer r.comm.Device().Internal().BeginBusy("compiles kernels of collectives", true)()
	return compileAll(ctx, r.comm.Device().Info().Arch, units, func() {})
}

// compileAll compiles units into the cache until one fails, as many at a time as there are processors: a
// compiler takes hundreds of megabytes. It calls done after each unit that is there.
func compileAll(ctx context.Context, arch string, units []unit, done func()) (first error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, u := range units {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			_, err := devicecode.Compile(ctx, arch, u.file, u.source(), u.options)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case first != nil: // which has ended this one
			case err != nil:
				first = err
				cancel()
			default:
				done()
			}
		})
	}
	wg.Wait()
	return first
}

func (r *Runner) loaded(unit unitKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.modules[unit] != nil
}

// kernel returns an algorithm's kernel, which is loaded once for each type and
// operation that it is compiled for, and how many blocks of the call's threads may
// wait for each other. The caller holds mu. Collective.
func (r *Runner) kernel(ctx context.Context, c *Call, t *traits) (launchable, error) {
	return r.kernelOf(ctx, c.unit(t), t.kernel, c.Threads, 0)
}

// kernelOf is kernel for any unit, and for so many bytes of dynamic shared memory.
func (r *Runner) kernelOf(ctx context.Context, u unit, name string, threads, shared int) (k launchable, err error) {
	m := r.modules[u.unitKey]
	if m == nil {
		if r.comm.Internal().Shared() {
			// The driver may wait for the kernels of all ranks of the process on that GPU, which end once all
			// have made the calls before.
			if _, err := r.exchange(ctx, "come to load "+u.file, "", nil); err != nil {
				return launchable{}, err
			}
		}
		loaded, err := r.load(ctx, u)
		if _, err := r.exchange(ctx, "load "+u.file, "", err); err != nil {
			return launchable{}, err
		}
		m = &agreed{loaded, map[fitKey]int{}}
		r.modules[u.unitKey] = m
		r.prepared.made(func() error { delete(r.modules, u.unitKey); return nil })
	}
	if k.kernel, err = m.kernel(name); err != nil {
		return launchable{}, err
	}
	shape, known := fitKey{name, threads}, false
	if k.fit, known = m.fits[shape]; !known {
		if shared > 0 {
			if _, err := r.exchange(ctx, "allow shared memory", "", k.kernel.SetMaxDynamicShared(shared)); err != nil {
				return launchable{}, err
			}
		}
		if k.fit, err = r.comm.MaxBlocks(ctx, k.kernel, threads, shared); err != nil {
			return launchable{}, err
		}
		k.fit = r.bounded(k.fit)
		m.fits[shape] = k.fit
		r.prepared.made(func() error { delete(m.fits, shape); return nil })
	}
	return k, nil
}

// load compiles and loads a unit, unless it did so for a group before. It ends when the group fails.
func (r *Runner) load(ctx context.Context, u unit) (*module, error) {
	o := r.complete(u.options)
	key := fmt.Sprintf("%s %q %v", u.file, o.Defines, o.Trace)
	if m := r.loads[key]; m != nil {
		return m, nil
	}
	ctx, cancel := r.comm.Internal().UntilFailure(ctx)
	defer cancel()
	loaded, err := devicecode.Load(ctx, r.comm.Device(), u.file, u.source(), o)
	if err != nil {
		return nil, err
	}
	m := &module{loaded, map[string]*gpu.Kernel{}}
	r.loads[key] = m
	return m, nil
}

// agreed is a module that all ranks have loaded, with the blocks that fit on all their devices.
type agreed struct {
	*module
	fits map[fitKey]int
}

// fitKey is what the number of blocks of a module's kernel that fit depends on.
type fitKey struct {
	kernel  string
	threads int
}

// module is a unit that is loaded. It has one value for each kernel, by which launches are compared.
type module struct {
	*gpu.Module
	kernels map[string]*gpu.Kernel
}

func (m *module) kernel(name string) (_ *gpu.Kernel, err error) {
	k := m.kernels[name]
	if k == nil {
		if k, err = m.Kernel(name); err == nil {
			m.kernels[name] = k
		}
	}
	return k, err
}

// complete adds to a unit's options the options of all units.
func (r *Runner) complete(o devicecode.Options) devicecode.Options {
	o = forRanks(o, r.comm.Size())
	o.Trace = r.comm.Internal().Traced()
	return o
}

// forRanks adds to a unit's options what it is for so many ranks, on all hosts: some kernels go by these.
func forRanks(o devicecode.Options, ranks int) devicecode.Options {
	o.Defines = slices.Clone(o.Defines)
	if ranks <= layout.RanksByValue {
		o.Defines = append(o.Defines, "MSCCLGO_FEW_RANKS")
	}
	if ranks <= 4 {
		o.Defines = append(o.Defines, "MSCCLGO_FOUR_RANKS")
	}
	return o
}

// enough returns the error of a kernel of which fewer blocks fit than the algorithm needs.
func (r *Runner) enough(c *Call, t *traits, k launchable) error {
	if k.fit >= t.blocks || t.free {
		return nil
	}
	return mscclgo.Errorf(mscclgo.ErrUnsupported, fmt.Sprintf("collective: prepare %v by %s", c.Kind, t.name), "it needs two blocks, and %d of %d threads fits", k.fit, c.Threads).At(r.comm.Rank(), mscclgo.NoRank)
}
