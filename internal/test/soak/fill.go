package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
)

// A filling is what a process is told that compiles all that runs need.
type filling struct {
	Device string
	Short  bool
}

// fill has a process compile all that the runs need, into the cache: their ranks only load it.
func (c *config) fill(ctx context.Context) error {
	text, err := json.Marshal(filling{c.device, c.short})
	if err != nil {
		return err
	}
	r := &run{mark: markEnv + "=fill", cache: c.cache}
	cmd, err := r.command(nil, fillEnv+"="+string(text))
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile what the runs need: %w\n%s", err, out)
	}
	return nil
}

// fill is that process: a group of one rank, whose images are those of other small groups.
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
		for _, c := range callsOf(f.Short) {
			for _, name := range c.kind.Algorithms() {
				one := collective.Call{Kind: c.kind, Type: c.typ, Op: c.op, Count: 1, Choice: collective.Choice{Algorithm: name}}
				if runner.Fits(one) == nil { // not all reduce all elements
					all = append(all, one)
				}
			}
		}
		ours := make(chan error, 1)
		go func() {
			_, err := devicecode.Compile(ctx, comm.Device().Info().Arch, "soak.cu", source, devicecode.Options{})
			ours <- err
		}()
		if err := runner.Compile(ctx, all); err != nil {
			return err
		}
		if err := <-ours; err != nil {
			return err
		}
		return runner.LoadGroups(ctx)
	})
}
