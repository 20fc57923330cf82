// Allgather runs the all-gathers of allgather.cu over a range of sizes, checks
// every element on every rank, and prints a table.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
	"github.com/mscclgo/mscclgo/internal/measure"
	"github.com/mscclgo/mscclgo/internal/sample"
	"github.com/mscclgo/mscclgo/internal/table"
	"github.com/mscclgo/mscclgo/launcher"
)

//go:embed allgather.cu
var source []byte

// config is what the flags set.
type config struct {
	algo, typ       string
	min, max        uint64 // bytes, gathered
	inPlace         bool
	warmup, iters   int
	blocks, threads int
}

func main() {
	var cfg config
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	flag.StringVar(&cfg.algo, "algo", "auto", "packets, direct, or auto: by size")
	flag.StringVar(&cfg.typ, "type", "f32", "f32, f16, bf16, i32 or u8")
	flag.Uint64Var(&cfg.min, "min", 1<<10, "smallest size in bytes, all ranks' together")
	flag.Uint64Var(&cfg.max, "max", 1<<20, "largest size in bytes; each is four times the one before")
	flag.BoolVar(&cfg.inPlace, "inplace", false, "a rank's data is already in its place of the result")
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
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) error {
	if cfg.min == 0 || cfg.max < cfg.min || cfg.iters < 1 || cfg.warmup < 0 || cfg.blocks < 1 {
		return errors.New("flags: sizes, operations and blocks start at 1, and -max is not below -min")
	}
	g, err := newGatherer(ctx, comm, cfg)
	if err != nil {
		return err
	}
	defer g.stream.Close()
	fmt.Fprintf(out, "# all-gather, %d ranks, rank 0 on %v (%s)\n", comm.Size(), comm.Device(), comm.Device().Info().Model)
	table.Header(out)
	wrong := 0
	for size := cfg.min; size <= cfg.max; size *= 4 {
		row, err := g.measure(ctx, size)
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

// gatherer is an all-gather of one size, a measure.Operation.
type gatherer struct {
	comm   *communicator.Communicator
	cfg    config
	typ    elements.Type
	group  devicecode.Group
	module *gpu.Module
	stream *gpu.Stream
	in     *gpu.Buffer
	out    *gpu.Buffer
	outs   devicecode.PeerMemory // all ranks' out
	algo   string
	part   []byte // as many bytes as a rank contributes
}

func newGatherer(ctx context.Context, comm *communicator.Communicator, cfg config) (*gatherer, error) {
	g := &gatherer{comm: comm, cfg: cfg}
	var err error
	if g.typ, err = elements.ParseType(cfg.typ); err != nil {
		return nil, err
	}
	if g.group, err = comm.Group(ctx); err != nil {
		return nil, err
	}
	dev, most := comm.Device(), max(cfg.max, uint64(comm.Size()*g.typ.Size))
	if g.in, err = dev.Alloc(most); err != nil {
		return nil, err
	}
	if g.out, err = dev.Alloc(most); err != nil {
		return nil, err
	}
	shared, err := comm.Share(ctx, g.out)
	if err != nil {
		return nil, err
	}
	if g.outs, err = shared.Handle(); err != nil {
		return nil, err
	}
	if g.module, err = devicecode.Load(ctx, dev, "allgather.cu", source, devicecode.Options{}); err != nil {
		return nil, err
	}
	g.stream, err = dev.NewStream()
	return g, err
}

// packetsBelow is the size, of a rank's part, from which direct is faster.
const packetsBelow = 64 << 10

// measure checks and times one size.
func (g *gatherer) measure(ctx context.Context, size uint64) (table.Row, error) {
	ranks := uint64(g.comm.Size())
	count := max(size/ranks/uint64(g.typ.Size), 1)
	g.part = make([]byte, count*uint64(g.typ.Size))
	row := table.Row{Bytes: ranks * uint64(len(g.part)), Count: ranks * count, Type: g.typ.Name, Op: "-", Place: "out", Bus: float64(ranks-1) / float64(ranks)}
	if g.cfg.inPlace {
		row.Place = "in"
	}
	fits := uint64(len(g.part)+7)/8 <= g.group.ScratchSize/2/ranks/16 // see the inbox of allgather.cu
	if g.algo = g.cfg.algo; g.algo == "auto" {
		g.algo = "direct"
		if fits && len(g.part) < packetsBelow {
			g.algo = "packets"
		}
	}
	if g.algo == "packets" && !fits {
		return row, fmt.Errorf("packets of %d bytes do not fit into a scratch of %d bytes", len(g.part), g.group.ScratchSize)
	}
	row.Algo = g.algo
	var err error
	row.Time, row.Wrong, err = measure.Run(ctx, g.comm, g.stream, g, g.cfg.warmup, g.cfg.iters)
	return row, err
}

// input is where this rank's data is.
func (g *gatherer) input() (*gpu.Buffer, error) {
	if !g.cfg.inPlace {
		return g.in, nil
	}
	return g.out.Slice(uint64(g.comm.Rank()*len(g.part)), uint64(len(g.part)))
}

// Prepare implements measure.Operation.
func (g *gatherer) Prepare(seed uint64) error {
	if err := gpu.CopyIn(g.out, bytes.Repeat([]byte{0xff}, len(g.part)*g.comm.Size())); err != nil {
		return err
	}
	in, err := g.input()
	if err != nil {
		return err
	}
	g.typ.Fill(g.part, measure.Seeds(seed, g.comm.Size())[g.comm.Rank()])
	return gpu.CopyIn(in, g.part)
}

// Launch implements measure.Operation.
func (g *gatherer) Launch(s *gpu.Stream) error {
	kernel, err := g.module.Kernel(g.algo)
	if err != nil {
		return err
	}
	fit, err := g.comm.MaxBlocks(kernel, g.cfg.threads, 0)
	if err != nil {
		return err
	}
	in, err := g.input()
	if err != nil {
		return err
	}
	perBlock := 16 * g.cfg.threads
	blocks := min((len(g.part)+perBlock-1)/perBlock, g.cfg.blocks, fit)
	return kernel.Launch(s, gpu.Blocks(blocks, g.cfg.threads), g.group, in, g.outs, len(g.part))
}

// Wrong implements measure.Operation.
func (g *gatherer) Wrong(seed uint64) (int, error) {
	wrong := 0
	for rank, rankSeed := range measure.Seeds(seed, g.comm.Size()) {
		part, err := g.out.Slice(uint64(rank*len(g.part)), uint64(len(g.part)))
		if err != nil {
			return 0, err
		}
		if err := gpu.CopyOut(g.part, part); err != nil {
			return 0, err
		}
		wrong += g.typ.Wrong(g.part, rankSeed)
	}
	return wrong, nil
}
