// Pingpong sends data between two ranks and back, as the kernels of pingpong.cu
// do it, and prints the time of one way.
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

//go:embed pingpong.cu
var source []byte

// config is what the flags set.
type config struct {
	min, max        uint64 // bytes
	rounds, threads int
}

func main() {
	var cfg config
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	flag.Uint64Var(&cfg.min, "min", 8, "smallest size in bytes")
	flag.Uint64Var(&cfg.max, "max", 32<<10, "largest size in bytes; each is four times the one before")
	flag.IntVar(&cfg.rounds, "rounds", 50, "round trips to time")
	flag.IntVar(&cfg.threads, "threads", 256, "threads of the one block")
	flag.Parse()
	launcher.Self(2)

	sample.Main(*device, *timeout, func(ctx context.Context, comm *communicator.Communicator, out io.Writer) error {
		return run(ctx, comm, cfg, out)
	})
}

// run does all sizes in the three ways and prints the table.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) error {
	if comm.Size() != 2 {
		return fmt.Errorf("ping-pong is for 2 ranks, the group has %d", comm.Size())
	}
	if cfg.min == 0 || cfg.max < cfg.min || cfg.rounds < 1 {
		return errors.New("flags: sizes and rounds start at 1, and -max is not below -min")
	}
	g, err := newGame(ctx, comm, cfg)
	if err != nil {
		return err
	}
	defer g.stream.Close()
	fmt.Fprintf(out, "# ping-pong, one way, rank 0 on %v (%s)\n", comm.Device(), comm.Device().Info().Model)
	table.Header(out)
	wrong := 0
	for _, g.algo = range []string{"put", "ll8", "ll16"} {
		for g.size = cfg.min; g.size <= cfg.max; g.size *= 4 {
			took, bad, err := measure.Run(ctx, comm, g.stream, g, 1, 1)
			if err != nil {
				return err
			}
			wrong += bad
			table.Row{Bytes: g.size, Count: g.size, Type: "u8", Op: "-", Algo: g.algo, Place: "out",
				Time: took / time.Duration(2*cfg.rounds), Bus: 1, Wrong: bad}.Print(out)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d bytes are wrong", wrong)
	}
	return nil
}

// game is one rank's side, a measure.Operation.
type game struct {
	comm     *communicator.Communicator
	cfg      config
	module   *gpu.Module
	stream   *gpu.Stream
	buf      *gpu.Buffer   // what goes out, then what comes in
	direct   gpu.Ptr       // the channel to the peer's buf
	inbox    gpu.Ptr       // the channel to the peer's packets
	typ      elements.Type // to make and check data with
	algo     string
	size     uint64
	nextFlag uint32
}

func newGame(ctx context.Context, comm *communicator.Communicator, cfg config) (*game, error) {
	g := &game{comm: comm, cfg: cfg, nextFlag: 1}
	dev := comm.Device()
	var err error
	if g.typ, err = elements.ParseType("u8"); err != nil {
		return nil, err
	}
	if g.buf, err = dev.Alloc(2 * cfg.max); err != nil {
		return nil, err
	}
	packets, err := gpu.Upload(dev, make([]byte, 2*(cfg.max+8))) // zeroed: packets are twice their data
	if err != nil {
		return nil, err
	}
	peer := 1 - comm.Rank()
	if g.direct, err = connect(ctx, comm, peer, g.buf, nil); err != nil {
		return nil, err
	}
	if g.inbox, err = connect(ctx, comm, peer, g.buf, packets); err != nil {
		return nil, err
	}
	if g.module, err = devicecode.Load(ctx, dev, "pingpong.cu", source, devicecode.Options{}); err != nil {
		return nil, err
	}
	g.stream, err = dev.NewStream()
	return g, err
}

// connect gives the handle of a channel to the peer, in device memory.
func connect(ctx context.Context, comm *communicator.Communicator, peer int, local, inbox *gpu.Buffer) (gpu.Ptr, error) {
	channels, err := comm.MemoryChannels(ctx, local, communicator.MemoryChannelOptions{Inbox: inbox})
	if err != nil {
		return 0, err
	}
	return channels.HandleOf(0, peer), nil
}

// Prepare implements measure.Operation: rank 0 has data to send.
func (g *game) Prepare(seed uint64) error {
	if err := gpu.CopyIn(g.buf, bytes.Repeat([]byte{0xff}, int(2*g.cfg.max))); err != nil || g.comm.Rank() == 1 {
		return err
	}
	data := make([]byte, g.size)
	g.typ.Fill(data, seed)
	return gpu.CopyIn(g.buf, data)
}

// Launch implements measure.Operation.
func (g *game) Launch(s *gpu.Stream) error {
	kernel, err := g.module.Kernel(g.algo)
	if err != nil {
		return err
	}
	shape := gpu.Blocks(1, g.cfg.threads)
	if g.algo == "put" {
		return kernel.Launch(s, shape, g.direct, g.comm.Rank(), g.size, g.cfg.rounds)
	}
	flag := g.nextFlag
	g.nextFlag += uint32(g.cfg.rounds)
	return kernel.Launch(s, shape, g.inbox, g.comm.Rank(), g.size, g.cfg.rounds, flag)
}

// Wrong implements measure.Operation: what came in is what rank 0 sent.
func (g *game) Wrong(seed uint64) (int, error) {
	arrived, err := g.buf.Slice(g.size, g.size)
	if err != nil {
		return 0, err
	}
	data := make([]byte, g.size)
	if err := gpu.CopyOut(data, arrived); err != nil {
		return 0, err
	}
	return g.typ.Wrong(data, seed), nil
}
