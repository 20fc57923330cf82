// Experts sends tokens to the ranks whose experts they are for, and what these make of them
// back: the exchange of a mixture of experts, of which some get far more than others, by groups
// of sends and receives. It checks every element on every rank, and prints a table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

func main() {
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has; each has an expert")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	most := flag.Uint64("max", 1<<10, "most tokens of a rank; each number is four times the one before")
	flag.Parse()
	if flag.NArg() > 0 || *most < 1 || *most > 1<<20 {
		log.Fatal("there are no arguments, and -max is from 1 to 1<<20")
	}
	launcher.Self(*ranks)
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()

	err := communicator.Run(ctx, communicator.Options{Device: *device}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, *most, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// width is the float32s of a token.
const width = 256

// run does all numbers of tokens; rank 0 prints the table.
func run(ctx context.Context, comm *communicator.Communicator, most uint64, out io.Writer) (err error) {
	if comm.Rank() != 0 {
		out = io.Discard
	}
	device, rank, ranks := comm.Device(), comm.Rank(), comm.Size()
	// Of this rank: its tokens, by expert; the tokens that its expert gets, by rank, which may be
	// all; and its tokens when they have come back. Then how many go to each rank, and come.
	var buffers [5]*gpu.Buffer
	for i, size := range []uint64{4 * width * most, 4 * width * most * uint64(ranks), 4 * width * most, 8 * uint64(ranks), 8 * uint64(ranks)} {
		if buffers[i], err = device.Alloc(size); err != nil {
			return err
		}
		defer buffers[i].Close()
	}
	home, guests, back, going, coming := buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]
	stream, err := comm.NewStream()
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
	group := runner.Group() // which is empty again when it was launched

	fmt.Fprintf(out, "# experts, %d ranks, rank 0 on %v (%s)\n", ranks, device, device.Info().Model)
	fmt.Fprintf(out, "%12s %14s %12s %12s %12s %12s\n", "tokens", "for expert 0", "size (B)", "there (us)", "back (us)", "bw (GB/s)")
	random := rand.New(rand.NewPCG(1, uint64(rank)))
	for tokens := uint64(1); tokens <= most; tokens *= 4 {
		leave, come := make([]uint64, ranks), make([]uint64, ranks)
		for range tokens { // the first experts are for more than the last
			leave[random.IntN(1+random.IntN(ranks))]++
		}
		// A rank that receives knows how much.
		err := errors.Join(gpu.CopyIn(going, leave), runner.AllToAll(stream, coming, going, 1, collective.I64),
			stream.Synchronize(ctx), gpu.CopyOut(come, coming))
		if err != nil {
			return err
		}
		mine := func(expert int) (int, int) { return rank, expert }
		guest := func(from int) (int, int) { return from, rank }
		if err := errors.Join(gpu.CopyIn(home, rows(leave, mine)), gpu.CopyIn(back, make([]float32, width*tokens))); err != nil {
			return err
		}
		var took [2]time.Duration
		for k, queue := range []func() error{
			func() error { return exchange(group, stream, guests, come, home, leave) },
			func() error { return exchange(group, stream, back, leave, guests, come) },
		} {
			for range 2 { // the first warms up
				if took[k], err = comm.Time(ctx, stream, queue); err != nil {
					return err
				}
			}
		}
		if err := check(guests, come, guest); err != nil {
			return fmt.Errorf("expert %d: %w", rank, err)
		}
		if err := check(back, leave, mine); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		got := sum(come)
		micros := func(t time.Duration) float64 { return float64(t.Nanoseconds()) / 1e3 }
		fmt.Fprintf(out, "%12d %14d %12d %12.2f %12.2f %12.2f\n", tokens, got, 4*width*got, micros(took[0]), micros(took[1]),
			float64(4*width*got)/float64(max(took[0], 1)))
	}
	return nil
}

// exchange sends as many tokens of a buffer to each rank as leave says, and receives as come says.
func exchange(g *collective.Group, s *gpu.Stream, to *gpu.Buffer, come []uint64, from *gpu.Buffer, leave []uint64) error {
	for p := range leave {
		out, outErr := from.Slice(4*width*sum(leave[:p]), 4*width*leave[p])
		in, inErr := to.Slice(4*width*sum(come[:p]), 4*width*come[p])
		if err := errors.Join(outErr, inErr); err != nil {
			return err
		}
		g.Send(s, out, width*leave[p], collective.F32, p)
		g.Recv(s, in, width*come[p], collective.F32, p)
	}
	return g.Launch()
}

func sum(counts []uint64) (all uint64) {
	for _, n := range counts {
		all += n
	}
	return all
}

// rows returns the elements of tokens, as many as counts say of each rank for each expert.
func rows(counts []uint64, of func(p int) (rank, expert int)) []float32 {
	all := make([]float32, 0, width*sum(counts))
	for p, n := range counts {
		rank, expert := of(p)
		for i := range n * width {
			all = append(all, float32(1000*(rank*len(counts)+expert))+float32(i%977))
		}
	}
	return all
}

// check compares each element of the tokens in a buffer.
func check(b *gpu.Buffer, counts []uint64, of func(p int) (rank, expert int)) error {
	got := make([]float32, width*sum(counts))
	if err := gpu.CopyOut(got, b); err != nil {
		return err
	}
	for i, want := range rows(counts, of) {
		if got[i] != want {
			return fmt.Errorf("element %d of token %d is %v, want %v", i%width, i/width, got[i], want)
		}
	}
	return nil
}
