// Broadcast copies one rank's data to all ranks, by package collective, over a range of
// sizes. It checks every element on every rank, and prints a table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

func main() {
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	most := flag.Uint64("max", 1<<18, "most float32s to copy; each size is four times the one before")
	root := flag.Int("root", 0, "the rank that has the data")
	flag.Parse()
	if err := check(flag.NArg(), *most, *root, *ranks); err != nil {
		log.Fatal(err)
	}
	launcher.Self(*ranks)
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()

	err := communicator.Run(ctx, communicator.Options{Device: *device}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, *most, *root, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// check returns the error of flags and arguments that make no sense.
func check(args int, most uint64, root, ranks int) error {
	switch {
	case args > 0 || most < 1 || most > 1<<40:
		return errors.New("there are no arguments, and -max is from 1 to 1<<40")
	case root < 0 || root >= max(ranks, 1) && !bootstrap.InGroupEnv(os.LookupEnv): // which has other ranks
		return errors.New("-root is a rank, from 0 to one less than -n")
	}
	return nil
}

// run does all sizes; rank 0 prints the table.
func run(ctx context.Context, comm *communicator.Communicator, most uint64, root int, out io.Writer) (err error) {
	if root >= comm.Size() {
		return fmt.Errorf("-root %d is no rank: there are %d, from 0 on", root, comm.Size())
	}
	if comm.Rank() != 0 {
		out = io.Discard
	}
	device, ranks := comm.Device(), uint64(comm.Size())
	input, err := device.Alloc(4 * most)
	if err != nil {
		return err
	}
	output, err := device.Alloc(4 * most)
	if err != nil {
		return err
	}
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	runner, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			comm.Abort(err) // so that no rank waits for this one
		}
		err = errors.Join(err, runner.Close(ctx))
	}()
	call := collective.Call{Kind: collective.Broadcast, Type: collective.F32, Root: root}
	// Prepared calls are on memory that all ranks share.
	if call.In, err = runner.Share(ctx, input); err != nil {
		return err
	}
	if call.Out, err = runner.Share(ctx, output); err != nil {
		return err
	}

	fmt.Fprintf(out, "# %v, %d ranks, rank 0 on %v (%s)\n", call.Kind, ranks, device, device.Info().Model)
	fmt.Fprintf(out, "%12s %12s %14s %10s %14s\n", "size (B)", "algo", "prepared (us)", "bw (GB/s)", "any buffer (us)")
	for call.Count = 1; call.Count <= most; call.Count *= 4 {
		data := make([]float32, call.Count)
		for i := range data {
			data[i] = float32(comm.Rank()*1000 + i%1000)
		}
		if err := gpu.CopyIn(input, data); err != nil {
			return err
		}
		op, err := runner.Prepare(ctx, call)
		if err != nil {
			return err
		}
		prepared := func() error { return op.Launch(stream) }
		// Those on any buffer need no preparation.
		anyBuffer := func() error {
			return runner.Broadcast(stream, output, input, call.Count, collective.F32, root)
		}
		var took [2]time.Duration
		for k, queue := range []func() error{prepared, anyBuffer} {
			got := make([]float32, call.Count)
			if err := gpu.CopyIn(output, got); err != nil {
				return err
			}
			for range 2 { // the first warms up
				if took[k], err = comm.Time(ctx, stream, queue); err != nil {
					return err
				}
			}
			if err := gpu.CopyOut(got, output); err != nil {
				return err
			}
			for i, v := range got {
				if want := float32(root*1000 + i%1000); v != want {
					return fmt.Errorf("rank %d: element %d of %d is %v, want %v", comm.Rank(), i, len(got), v, want)
				}
			}
		}
		size := 4 * call.Count * uint64(call.Kind.Parts(comm.Size()))
		micros := func(t time.Duration) float64 { return float64(t.Nanoseconds()) / 1e3 }
		fmt.Fprintf(out, "%12d %12s %14.2f %10.2f %14.2f\n", size, op.Choice().Algorithm, micros(took[0]),
			float64(size)/float64(max(took[0], 1)), micros(took[1]))
	}
	return nil
}
