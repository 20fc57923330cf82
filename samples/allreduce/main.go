// Allreduce runs one of the all-reduces of allreduce.cu, or package collective's, over
// a range of sizes, checks every element on every rank, and prints a table.
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

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

// config is what the flags set.
type config struct {
	algo                           string
	typ                            collective.Type
	op                             collective.Op
	min, max                       uint64 // bytes
	warmup, iters, blocks, threads int
	inPlace                        bool
}

func main() {
	var cfg config
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	flag.StringVar(&cfg.algo, "algo", "auto", "oneshot, twoshot, ring, hier, or auto: package collective's choice")
	typ := flag.String("type", "f32", fmt.Sprintf("of the elements: one of %v", collective.Types()))
	op := flag.String("op", "sum", fmt.Sprintf("one of %v", collective.Ops()))
	flag.Uint64Var(&cfg.min, "min", 1<<10, "smallest size in bytes")
	flag.Uint64Var(&cfg.max, "max", 1<<20, "largest size in bytes; each is four times the one before")
	flag.IntVar(&cfg.warmup, "warmup", 2, "operations before the timed ones")
	flag.IntVar(&cfg.iters, "iters", 10, "operations to time")
	flag.IntVar(&cfg.blocks, "blocks", 0, "blocks of a kernel, at most, but that ring has one, and auto may add some where it needs them (collective.Choice);\n0 is 16, and leaves auto its choice")
	flag.IntVar(&cfg.threads, "threads", 0, "threads of a block; 0 is 256, and leaves auto its choice")
	flag.BoolVar(&cfg.inPlace, "inplace", false, "work in place")
	flag.Parse()
	var errs [3]error
	cfg.typ, errs[0] = collective.ParseType(*typ)
	cfg.op, errs[1] = collective.ParseOp(*op)
	errs[2] = cfg.check(flag.NArg())
	if err := errors.Join(errs[:]...); err != nil {
		log.Fatal(err)
	}
	launcher.Self(*ranks)
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()

	err := communicator.Run(ctx, communicator.Options{Device: *device}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, cfg, os.Stdout)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// check returns the error of flags and arguments that make no sense.
func (c *config) check(args int) error {
	switch {
	case args > 0:
		return errors.New("there are no arguments, only flags")
	case algorithms[c.algo] == nil:
		return fmt.Errorf("-algo %s is none of oneshot, twoshot, ring, hier and auto", c.algo)
	case c.min < 1 || c.max < c.min || c.max > 1<<40:
		return errors.New("-min and -max are from 1 to 1<<40, and -max is not below -min")
	case c.iters < 1 || c.warmup < 0 || c.blocks < 0 || c.threads < 0:
		return errors.New("-iters is at least 1, and -warmup, -blocks and -threads are at least 0")
	case max(c.iters, c.warmup) > maxIters:
		return fmt.Errorf("-iters and -warmup are at most %d", maxIters)
	}
	return nil
}

// maxIters keeps the numbers of calls, which all sizes of a run share, below 1<<32. They are flags
// of oneshot's packets: beyond that they would repeat flags of packets that are still there.
const maxIters = 100_000_000

// sample is one rank's.
type sample struct {
	config
	comm    *communicator.Communicator
	in, out *gpu.Buffer
	closers []func() error
}

const wordBytes = 16 // of the kernels

func divideUp(a, b uint64) uint64 { return (a + b - 1) / b }

// run does all sizes; rank 0 prints the table.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) (err error) {
	s := &sample{config: cfg, comm: comm}
	defer func() {
		if err != nil {
			comm.Abort(err) // so that no rank waits for this one
		}
		for _, c := range s.closers {
			err = errors.Join(err, c())
		}
	}()
	if s.in, err = comm.Device().Alloc(divideUp(max(cfg.max, 8), wordBytes) * wordBytes); err != nil {
		return err
	}
	if s.out = s.in; !cfg.inPlace {
		if s.out, err = comm.Device().Alloc(s.in.Size()); err != nil {
			return err
		}
	}
	prepare, err := algorithms[cfg.algo](s, ctx)
	if err != nil {
		return err
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	if comm.Rank() != 0 {
		out = io.Discard
	}
	wrong := uint64(0)
	for size := cfg.min; size <= cfg.max; size *= 4 {
		count := max(1, size/uint64(cfg.typ.Size()))
		queue, err := prepare(ctx, count)
		if err != nil {
			return err
		}
		bad, err := s.check(ctx, stream, queue, count)
		if err != nil {
			return err
		}
		if size == cfg.min {
			fmt.Fprintf(out, "# all-reduce, %d ranks, rank 0 on %v (%s)\n", comm.Size(), comm.Device(), comm.Device().Info().Model)
			fmt.Fprintf(out, "%12s %12s %6s %5s %8s %10s %9s %9s %7s\n", "size (B)", "count", "type", "op", "algo", "time (us)", "algbw", "busbw", "#wrong")
		}
		if _, err := comm.Time(ctx, stream, s.times(cfg.warmup, queue, stream)); err != nil {
			return err
		}
		took, err := comm.Time(ctx, stream, s.times(cfg.iters, queue, stream))
		if err != nil {
			return err
		}
		wrong += bad
		one := float64(took.Nanoseconds()) / float64(cfg.iters)
		algbw := float64(size) / max(one, 1) // GB/s
		fmt.Fprintf(out, "%12d %12d %6v %5v %8s %10.2f %9.2f %9.2f %7d\n", size, count, cfg.typ, cfg.op, cfg.algo,
			one/1e3, algbw, algbw*collective.AllReduce.Bus(comm.Size()), bad)
	}
	if wrong > 0 {
		return fmt.Errorf("%d elements are wrong", wrong)
	}
	return nil
}
