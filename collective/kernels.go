package collective

import (
	"context"
	"errors"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// source is a file of kernels.
type source struct {
	name string // for messages
	text []byte
}

// source gives where an algorithm's kernel is.
func (c *Collective) source(a algorithm) source {
	switch a.through {
	case byExchange:
		return source{"exchange.cu", exchangeSource}
	case byRing:
		return source{"ring.cu", ringSource}
	case byPush:
		return source{"pushed.cu", pushedSource}
	case byStages:
		return source{"staged.cu", stagedSource}
	case byHosts:
		return source{"hier.cu", hierSource}
	}
	return source{c.file, c.text}
}

// The kernels' names of element types and operations.
var (
	deviceTypes = map[string]string{"f32": "float", "f16": "__half", "bf16": "__nv_bfloat16", "i32": "int32_t"}
	deviceOps   = map[string]string{"sum": "Sum", "max": "Max", "min": "Min"}
)

// unit is what a call's algorithm is compiled from: its source, for a type and an
// operation if the collective reduces. name tells units apart.
func (c *Call) unit(a algorithm) (src source, o devicecode.Options, name string) {
	src = c.Collective.source(a)
	if !c.Collective.Reduces {
		return src, o, src.name
	}
	o.Defines = []string{"ELEMENT=" + deviceTypes[c.Type.Name], "OPERATION=" + deviceOps[c.Op.Name]}
	return src, o, src.name + " " + c.Type.Name + " " + c.Op.Name
}

// Compile compiles what some calls need and is not loaded, many at a time, so that
// [Runner.Prepare] finds it in the cache. It is no more than a matter of time.
//
// Errors: of an algorithm that is not the collective's, or a type that it does not
// take, and those of [devicecode.Compile].
func (r *Runner) Compile(ctx context.Context, calls []Call) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	begun := map[string]bool{}
	for _, c := range calls {
		a, err := c.Collective.algorithm(c.Algorithm)
		if err == nil {
			err = c.Collective.takes(c.Type)
		}
		if err != nil {
			wg.Wait()
			return err
		}
		src, options, unit := c.unit(a)
		if begun[unit] || r.modules[unit] != nil {
			continue
		}
		begun[unit] = true
		wg.Go(func() {
			if _, err := devicecode.Compile(ctx, r.comm.Device().Info().Arch, src.name, src.text, options); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// kernel loads an algorithm's kernel, once for each type and operation that it is
// compiled for. fit is how many blocks of the call's threads may wait for each
// other. Collective.
func (r *Runner) kernel(ctx context.Context, c *Call, a algorithm) (k *gpu.Kernel, fit int, err error) {
	src, options, unit := c.unit(a)
	module := r.modules[unit]
	if module == nil {
		if module, err = devicecode.Load(ctx, r.comm.Device(), src.name, src.text, options); err != nil {
			return nil, 0, err
		}
		r.modules[unit] = module
	}
	if k, err = module.Kernel(a.kernel); err != nil {
		return nil, 0, err
	}
	shape := fitKey{unit, a.kernel, c.Threads}
	fit, known := r.fits[shape]
	if !known {
		if fit, err = r.comm.MaxBlocks(ctx, k, c.Threads, 0); err != nil {
			return nil, 0, err
		}
		r.fits[shape] = fit
	}
	return k, fit, nil
}

// kernelOfTwo is kernel for one whose blocks have two tasks, so that there are two at
// least.
func (r *Runner) kernelOfTwo(ctx context.Context, c *Call, a algorithm) (k *gpu.Kernel, fit int, err error) {
	k, fit, err = r.kernel(ctx, c, a)
	if err == nil && fit < 2 {
		err = mscclgo.Errorf(mscclgo.ErrUnsupported, "collective: prepare "+a.name, "it needs two blocks, and %d of %d threads fits", fit, c.Threads)
	}
	return k, fit, err
}

// fitKey is what the number of blocks that fit depends on.
type fitKey struct {
	unit, kernel string
	threads      int
}
