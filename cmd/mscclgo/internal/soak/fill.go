package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// A filling is what a process is told that compiles a part of what runs need.
type filling struct {
	Device      string
	Short       bool
	Most        int // ranks of a group
	Part, Parts int
}

// fill has all that the runs need compiled, into the cache: their ranks only load it. On GPUs
// there are several processes: nothing says that NVIDIA's runtime compiler works for more than
// one thread of a process at a time. A cache that this program has filled for the kind of device is
// left alone: to open GPUs in so many processes takes more than a minute.
func (c *config) fill(ctx context.Context) error {
	mark, err := c.filled()
	if err != nil {
		return err
	}
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	if err := c.fillAll(ctx); err != nil {
		return err
	}
	return os.WriteFile(mark, nil, 0o600)
}

// filled returns the file that is in a cache which this program has filled.
func (c *config) filled() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return filepath.Join(c.cache, fmt.Sprintf("filled-%s-%d-%t-%x", c.device, c.largest(), c.short, sha256.Sum256(program))), nil
}

// fillAll fills a cache.
func (c *config) fillAll(ctx context.Context) error {
	f := filling{Device: c.device, Short: c.short, Most: c.largest(), Parts: 1}
	if c.device != "emu" {
		f.Parts = min(max(runtime.NumCPU()/2, 1), len(callsOf(c.short))+1)
	}
	failed := make(chan error)
	for f.Part = range f.Parts {
		text, err := json.Marshal(f)
		if err != nil {
			panic(err)
		}
		go func() {
			r := &run{mark: markEnv + "=fill", cache: c.cache}
			cmd, err := r.command(nil, fillEnv+"="+string(text))
			if err == nil {
				var out []byte
				if out, err = cmd.CombinedOutput(); err != nil {
					err = fmt.Errorf("compile what the runs need: %w\n%s", err, out)
				}
			}
			failed <- err
		}()
	}
	var errs error
	for range f.Parts {
		errs = errors.Join(errs, <-failed)
	}
	return errors.Join(errs, ctx.Err())
}

// fill is such a process. What a group's kernels are compiled for depends on whether it has more
// than fourRanks, and whether they are on one host.
func fill(ctx context.Context, text string) error {
	var f filling
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return err
	}
	sizes := []int{1}
	if f.Most > fourRanks {
		sizes = append(sizes, fourRanks+1)
	}
	for _, ranks := range sizes {
		err := communicator.Local(ctx, ranks, f.Device, func(ctx context.Context, comm *communicator.Communicator) error {
			runner, err := collective.New(ctx, comm, collective.Options{})
			if err != nil {
				return err
			}
			defer runner.Close(ctx)
			if comm.Rank() == 0 {
				if err := f.compile(ctx, runner, comm.Device().Info().Arch); err != nil {
					return err
				}
			}
			if f.Part < f.Parts-1 {
				return comm.Barrier(ctx)
			}
			return runner.LoadGroups(ctx)
		})
		if err != nil {
			return err
		}
		if f.Device == "emu" {
			if err := fillHosts(ctx, max(2, ranks)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fourRanks is the most ranks of which kernels know that they are few; MSCCLGO_FOUR_RANKS of
// config.cuh.
const fourRanks = 4

// compile compiles the process's part of what a group of the runner's size needs.
func (f *filling) compile(ctx context.Context, runner *collective.Runner, arch string) error {
	var all []collective.Call
	for i, c := range callsOf(f.Short) {
		if i%f.Parts != f.Part {
			continue
		}
		for _, name := range c.kind.Algorithms() {
			one := collective.Call{Kind: c.kind, Type: c.typ, Op: c.op, Count: 1, Choice: collective.Choice{Algorithm: name}}
			if runner.Internal().Fits(one) == nil { // not all reduce all elements
				all = append(all, one)
			}
		}
	}
	ours := make(chan error, 1)
	go func() {
		var err error
		if f.Part == f.Parts-1 {
			_, err = devicecode.Compile(ctx, arch, "soak.cu", source, devicecode.Options{})
		}
		ours <- err
	}()
	return errors.Join(runner.Internal().Compile(ctx, all), <-ours)
}

// fillHosts compiles what groups on several hosts have of their own.
func fillHosts(ctx context.Context, ranks int) (err error) {
	devices := make([]*gpu.Device, ranks)
	defer func() {
		for _, d := range devices {
			err = errors.Join(err, d.Close())
		}
	}()
	for i := range devices {
		if err := os.Setenv(hostid.Env, fmt.Sprintf("host %d", i%2)); err != nil {
			return err
		}
		if devices[i], err = gpu.Open(fmt.Sprintf("emu:%d", i)); err != nil {
			return err
		}
	}
	if err := os.Unsetenv(hostid.Env); err != nil {
		return err
	}
	o := communicator.Options{Transports: registeredmem.CudaIPC | registeredmem.Ethernet}
	return communicator.RunTogether(ctx, devices, o, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := collective.New(ctx, comm, collective.Options{})
		if err != nil {
			return err
		}
		return errors.Join(runner.LoadGroups(ctx), runner.Close(ctx))
	})
}
