package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
)

// A filling is what a process is told that compiles a part of what runs need.
type filling struct {
	Device      string
	Short       bool
	Part, Parts int
}

// fill has all that the runs need compiled, into the cache: their ranks only load it. On GPUs
// there are several processes: nothing says that NVIDIA's runtime compiler works for more than
// one thread of a process at a time.
func (c *config) fill(ctx context.Context) error {
	f := filling{Device: c.device, Short: c.short, Parts: 1}
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

// fill is such a process: a group of one rank, whose images are those of other small groups.
func fill(ctx context.Context, text string) error {
	var f filling
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return err
	}
	return communicator.Local(ctx, 1, f.Device, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := collective.New(ctx, comm, collective.Options{})
		if err != nil {
			return err
		}
		defer runner.Close(ctx)
		var all []collective.Call
		for i, c := range callsOf(f.Short) {
			if i%f.Parts != f.Part {
				continue
			}
			for _, name := range c.kind.Algorithms() {
				one := collective.Call{Kind: c.kind, Type: c.typ, Op: c.op, Count: 1, Choice: collective.Choice{Algorithm: name}}
				if runner.Fits(one) == nil { // not all reduce all elements
					all = append(all, one)
				}
			}
		}
		if f.Part < f.Parts-1 {
			return runner.Compile(ctx, all)
		}
		ours := make(chan error, 1)
		go func() {
			_, err := devicecode.Compile(ctx, comm.Device().Info().Arch, "soak.cu", source, devicecode.Options{})
			ours <- err
		}()
		err = runner.Compile(ctx, all)
		return errors.Join(err, <-ours, runner.LoadGroups(ctx))
	})
}
