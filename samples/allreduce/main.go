// Allreduce runs the all-reduces of allreduce.cu over a range of sizes, checks
// every element on every rank against a float64 reference, and prints a table.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
	"github.com/mscclgo/mscclgo/internal/measure"
	"github.com/mscclgo/mscclgo/internal/sample"
	"github.com/mscclgo/mscclgo/internal/table"
	"github.com/mscclgo/mscclgo/launcher"
)

// config is what the flags set.
type config struct {
	algo, typ, op   string
	min, max        uint64 // bytes
	offset          uint64 // bytes by which buffers are off their alignment
	inPlace         bool
	warmup, iters   int
	blocks, threads int
}

func main() {
	var cfg config
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	flag.StringVar(&cfg.algo, "algo", "auto", "oneShot, twoShot, direct, ring or hier; auto takes one of the first three by size, and hier on several hosts")
	flag.StringVar(&cfg.typ, "type", "f32", "f32, f16, bf16 or i32")
	flag.StringVar(&cfg.op, "op", "sum", "sum, max or min")
	flag.Uint64Var(&cfg.min, "min", 1<<10, "smallest size in bytes")
	flag.Uint64Var(&cfg.max, "max", 1<<20, "largest size in bytes; each is four times the one before")
	flag.Uint64Var(&cfg.offset, "offset", 0, "bytes by which the buffers are off their alignment")
	flag.BoolVar(&cfg.inPlace, "inplace", false, "reduce in place")
	flag.IntVar(&cfg.warmup, "warmup", 2, "operations before those that are timed")
	flag.IntVar(&cfg.iters, "iters", 10, "operations to time")
	flag.IntVar(&cfg.blocks, "blocks", 32, "blocks of a kernel, at most")
	flag.IntVar(&cfg.threads, "threads", 256, "threads of a block")
	flag.Parse()
	launcher.Self(*ranks)

	sample.Main(*device, *timeout, func(ctx context.Context, comm *communicator.Communicator, out io.Writer) error {
		return run(ctx, comm, cfg, out)
	})
}

// run does all sizes and prints the table.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) (err error) {
	if cfg.min == 0 || cfg.max < cfg.min || cfg.iters < 1 || cfg.warmup < 0 || cfg.blocks < 1 {
		return errors.New("flags: sizes, operations and blocks start at 1, and -max is not below -min")
	}
	o, err := newOperation(ctx, comm, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close(ctx, err)) }()
	fmt.Fprintf(out, "# all-reduce, %d ranks, rank 0 on %v (%s)\n", comm.Size(), comm.Device(), comm.Device().Info().Model)
	table.Header(out)
	wrong := 0
	for size := cfg.min; size <= cfg.max; size *= 4 {
		row, err := o.measure(ctx, size)
		if err != nil {
			return err
		}
		row.Print(out)
		wrong += row.Wrong
	}
	if wrong > 0 {
		return fmt.Errorf("%d elements are wrong", wrong)
	}
	return nil
}

// operation is an all-reduce of one size, a measure.Operation.
type operation struct {
	cfg     config
	typ     elements.Type
	op      elements.Op
	comm    *communicator.Communicator
	reducer *allReducer  // nil for the two below
	ring    *ringReducer // for -algo ring
	hier    *hierReducer // for -algo hier
	stream  *gpu.Stream
	in, out buffer
	algo    string
	host    []byte // as many bytes as are reduced
}

func newOperation(ctx context.Context, comm *communicator.Communicator, cfg config) (*operation, error) {
	o := &operation{cfg: cfg, comm: comm}
	if cfg.algo == "auto" && len(comm.Hosts()) > 1 {
		o.cfg.algo = "hier"
	}
	var err error
	if o.typ, err = elements.ParseType(cfg.typ); err != nil {
		return nil, err
	}
	if o.op, err = elements.ParseOp(cfg.op); err != nil {
		return nil, err
	}
	if o.cfg.algo != "ring" && o.cfg.algo != "hier" {
		if o.reducer, err = newAllReducer(ctx, comm, cfg.blocks, cfg.threads); err != nil {
			return nil, err
		}
	}
	if o.in, err = o.allocate(ctx, comm); err != nil {
		return nil, err
	}
	o.out = o.in
	if !cfg.inPlace {
		if o.out, err = o.allocate(ctx, comm); err != nil {
			return nil, err
		}
	}
	switch o.cfg.algo {
	case "ring":
		o.ring, err = newRingReducer(ctx, comm, o.out.Buffer, min(cfg.blocks, portBlocks), cfg.threads)
	case "hier":
		o.hier, err = newHierReducer(ctx, comm, o.in, o.out, min(cfg.blocks, portBlocks), cfg.threads)
	}
	if err != nil {
		return nil, err
	}
	o.stream, err = comm.Device().NewStream()
	return o, err
}

// portBlocks is how many blocks there are at most of a kernel with port channels:
// each has connections of its own.
const portBlocks = 4

// close releases what other ranks do not use, and the port channels, which they
// do. failed is why this rank gives up, if it does; then the others end too, and
// are not awaited.
func (o *operation) close(ctx context.Context, failed error) error {
	err := o.stream.Close()
	if o.reducer != nil {
		return errors.Join(err, o.reducer.module.Close())
	}
	if failed != nil {
		o.comm.Abort(failed)
	} else {
		err = errors.Join(err, o.comm.Barrier(ctx))
	}
	if o.hier != nil {
		return errors.Join(err, o.hier.close())
	}
	return errors.Join(err, o.ring.close())
}

// allocate gives a buffer of the largest size, off its alignment as asked.
func (o *operation) allocate(ctx context.Context, comm *communicator.Communicator) (buffer, error) {
	size := max(o.cfg.max, uint64(o.typ.Size))
	whole, err := comm.Device().Alloc(size + o.cfg.offset)
	if err != nil {
		return buffer{}, err
	}
	b, err := whole.Slice(o.cfg.offset, size)
	if err != nil {
		return buffer{}, err
	}
	return share(ctx, comm, b)
}

// measure checks and times one size.
func (o *operation) measure(ctx context.Context, size uint64) (table.Row, error) {
	n := float64(o.comm.Size())
	count := max(size/uint64(o.typ.Size), 1)
	o.host = make([]byte, count*uint64(o.typ.Size))
	row := table.Row{Bytes: uint64(len(o.host)), Count: count, Type: o.typ.Name, Op: o.op.Name, Place: "out", Bus: 2 * (n - 1) / n}
	if o.cfg.inPlace {
		row.Place = "in"
	}
	if o.algo = o.cfg.algo; o.algo == "auto" {
		o.algo = o.reducer.choose(row.Bytes)
	}
	row.Algo = o.algo
	var err error
	row.Time, row.Wrong, err = measure.Run(ctx, o.comm, o.stream, o, o.cfg.warmup, o.cfg.iters)
	return row, err
}

// Prepare implements measure.Operation.
func (o *operation) Prepare(seed uint64) error {
	if o.out.Buffer != o.in.Buffer {
		if err := gpu.CopyIn(o.out.Buffer, bytes.Repeat([]byte{0xff}, len(o.host))); err != nil {
			return err
		}
	}
	o.typ.Fill(o.host, measure.Seeds(seed, o.comm.Size())[o.comm.Rank()])
	return gpu.CopyIn(o.in.Buffer, o.host)
}

// Launch implements measure.Operation.
func (o *operation) Launch(s *gpu.Stream) error {
	count := uint64(len(o.host) / o.typ.Size)
	switch o.algo {
	case "ring":
		return o.ring.launch(s, o.typ.Name, o.op.Name, o.in.Buffer, count)
	case "hier":
		return o.hier.launch(s, o.typ.Name, o.op.Name, count)
	}
	return o.reducer.launch(s, o.algo, o.typ.Name, o.op.Name, o.in, o.out, count, uint64(len(o.host)))
}

// Wrong implements measure.Operation.
func (o *operation) Wrong(seed uint64) (int, error) {
	if err := gpu.CopyOut(o.host, o.out.Buffer); err != nil {
		return 0, err
	}
	roundings := 1
	switch o.algo {
	case "ring":
		roundings = max(1, o.comm.Size()-1) // a partial result is rounded at each rank that it passes
	case "hier":
		roundings = 2 // each host's sum, and theirs
	}
	return o.typ.WrongReduced(o.host, o.op, measure.Seeds(seed, o.comm.Size()), roundings), nil
}
