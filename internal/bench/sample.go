package bench

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/launcher"
)

// Sample is the program of a collective's sample: it runs the collective over a
// range of sizes by plain launches, checks every element on every rank, and prints
// a table. Flags that the collective has no use for are left out.
func Sample(name string) {
	c, err := collective.ParseKind(name)
	if err != nil {
		log.Fatal(err)
	}
	tuning, err := collective.DefaultTuning()
	if err != nil {
		log.Fatal(err)
	}
	cfg := Config{
		Collectives: []collective.Kind{c}, Algorithms: make([]string, 1), Tuning: tuning,
		Op: "sum", Places: []string{"out"}, Replays: 1, Rounds: 1, Overlap: true, Check: true,
	}
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	flag.StringVar(&cfg.Algorithms[0], "algo", algoAuto, fmt.Sprintf("auto, all, or one of %v", c.Algorithms()))
	smallest := flag.Uint64("min", 1<<10, "smallest size in bytes")
	largest := flag.Uint64("max", 1<<20, "largest size in bytes; each is four times the one before")
	flag.Uint64Var(&cfg.Offset, "offset", 0, "bytes by which the buffers are off their alignment")
	flag.IntVar(&cfg.Warmup, "warmup", 2, "operations before those that are timed")
	flag.IntVar(&cfg.Iters, "iters", 10, "operations to time")
	flag.IntVar(&cfg.Blocks, "blocks", 0, "blocks of a kernel, at most; 0 leaves it to the tuning")
	flag.IntVar(&cfg.Threads, "threads", 0, "threads of a block; 0 leaves it to the tuning")
	if c.Reduces() {
		flag.StringVar(&cfg.Type, "type", "f32", "f32, f16, bf16 or i32")
		flag.StringVar(&cfg.Op, "op", "sum", "sum, max or min")
	} else {
		flag.StringVar(&cfg.Type, "type", "f32", "f32, f16, bf16, i32 or u8")
	}
	inPlace := new(bool)
	if c.InPlace() {
		flag.BoolVar(inPlace, "inplace", false, "work in place")
	}
	if c.Rooted() {
		flag.IntVar(&cfg.Root, "root", 0, "the rank that has the data")
	}
	flag.Parse()
	if *inPlace {
		cfg.Places = []string{"in"}
	}
	if cfg.Sizes, err = Sizes(*smallest, *largest, 4); err != nil {
		log.Fatal(err)
	}
	launcher.Self(*ranks)

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	err = communicator.Run(ctx, communicator.Options{Device: *device}, func(ctx context.Context, comm *communicator.Communicator) error {
		out := io.Discard
		if comm.Rank() == 0 {
			out = os.Stdout
		}
		_, err := Run(ctx, comm, cfg, Sinks{Table: out})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
