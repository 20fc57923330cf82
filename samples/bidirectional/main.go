// Bidirectional sends data between two ranks in both directions at once, over a
// PortChannel and over MemoryChannels, and prints both side by side.
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
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed bidirectional.cu
var source []byte

// config is what the flags set.
type config struct {
	min, max                uint64 // bytes
	rounds, blocks, threads int
}

func main() {
	var cfg config
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	timeout := flag.Duration("timeout", 10*time.Minute, "of the whole run")
	flag.Uint64Var(&cfg.min, "min", 1<<10, "smallest size in bytes, each way")
	flag.Uint64Var(&cfg.max, "max", 1<<20, "largest size in bytes; each is four times the one before")
	flag.IntVar(&cfg.rounds, "rounds", 10, "exchanges to time")
	flag.IntVar(&cfg.blocks, "blocks", 16, "blocks of the kernel that copies")
	flag.IntVar(&cfg.threads, "threads", 512, "threads of each of these blocks")
	flag.Parse()
	launcher.Self(2)

	sample.Main(*device, *timeout, func(ctx context.Context, comm *communicator.Communicator, out io.Writer) error {
		return run(ctx, comm, cfg, out)
	})
}

// run does all sizes in both ways and prints the table.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) (err error) {
	if comm.Size() != 2 {
		return fmt.Errorf("the exchange is for 2 ranks, the group has %d", comm.Size())
	}
	if cfg.min == 0 || cfg.max < cfg.min || cfg.rounds < 1 || cfg.blocks < 1 {
		return errors.New("flags: sizes, rounds and blocks start at 1, and -max is not below -min")
	}
	x, err := newExchange(ctx, comm, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.service.Close()) }()
	fmt.Fprintf(out, "# both ways at once; busbw counts both; rank 0 on %v (%s)\n", comm.Device(), comm.Device().Info().Model)
	table.Header(out)
	wrong := 0
	for x.size = cfg.min; x.size <= cfg.max; x.size *= 4 {
		for _, x.way = range []string{"port", "memory"} {
			took, bad, err := measure.Run(ctx, comm, x.stream, x, 1, 1)
			if err != nil {
				return err
			}
			wrong += bad
			table.Row{Bytes: x.size, Count: x.size, Type: "u8", Op: "-", Algo: x.way, Place: "out",
				Time: took / time.Duration(cfg.rounds), Bus: 2, Wrong: bad}.Print(out)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d bytes are wrong", wrong)
	}
	return nil
}

// exchange is one rank's side, a measure.Operation.
type exchange struct {
	comm    *communicator.Communicator
	cfg     config
	service *proxyservice.ProxyService
	module  *gpu.Module
	blocks  int // of the kernel that writes
	stream  *gpu.Stream
	buf     *gpu.Buffer // what goes out
	inbox   *gpu.Buffer // what comes in
	ports   *communicator.PortChannels
	direct  *communicator.MemoryChannels
	typ     elements.Type // to make and check data with
	way     string
	size    uint64
}

func newExchange(ctx context.Context, comm *communicator.Communicator, cfg config) (*exchange, error) {
	x := &exchange{comm: comm, cfg: cfg}
	dev := comm.Device()
	var err error
	if x.typ, err = elements.ParseType("u8"); err != nil {
		return nil, err
	}
	if x.buf, err = dev.Alloc(cfg.max); err != nil {
		return nil, err
	}
	if x.inbox, err = dev.Alloc(cfg.max); err != nil {
		return nil, err
	}
	if x.direct, err = comm.MemoryChannels(ctx, x.buf, communicator.MemoryChannelOptions{PerPeer: cfg.blocks, Inbox: x.inbox}); err != nil {
		return nil, err
	}
	if x.module, err = devicecode.Load(ctx, dev, "bidirectional.cu", source, devicecode.Options{}); err != nil {
		return nil, err
	}
	writes, err := x.module.Kernel("memory")
	if err != nil {
		return nil, err
	}
	fit, err := comm.MaxBlocks(ctx, writes, cfg.threads, 0)
	if err != nil {
		return nil, err
	}
	x.blocks = min(cfg.blocks, fit)
	if x.stream, err = dev.NewStream(); err != nil {
		return nil, err
	}
	if x.service, err = comm.ProxyService(ctx, proxyservice.ServiceOptions{}); err != nil {
		return nil, err
	}
	x.ports, err = comm.PortChannels(ctx, x.service, x.buf, communicator.PortChannelOptions{Inbox: x.inbox})
	if err != nil {
		return nil, errors.Join(err, x.service.Close())
	}
	return x, nil
}

// Prepare implements measure.Operation.
func (x *exchange) Prepare(seed uint64) error {
	if err := gpu.CopyIn(x.inbox, bytes.Repeat([]byte{0xff}, int(x.size))); err != nil {
		return err
	}
	data := make([]byte, x.size)
	x.typ.Fill(data, measure.Seeds(seed, 2)[x.comm.Rank()])
	return gpu.CopyIn(x.buf, data)
}

// Launch implements measure.Operation.
func (x *exchange) Launch(s *gpu.Stream) error {
	kernel, err := x.module.Kernel(x.way)
	if err != nil {
		return err
	}
	peer := 1 - x.comm.Rank()
	if x.way == "port" {
		return kernel.Launch(s, gpu.Blocks(1, 1), x.ports.HandleOf(0, peer), x.size, x.cfg.rounds)
	}
	return kernel.Launch(s, gpu.Blocks(x.blocks, x.cfg.threads), x.direct.Handles, peer, x.size, x.cfg.rounds)
}

// Wrong implements measure.Operation.
func (x *exchange) Wrong(seed uint64) (int, error) {
	data := make([]byte, x.size)
	if err := gpu.CopyOut(data, x.inbox); err != nil {
		return 0, err
	}
	return x.typ.Wrong(data, measure.Seeds(seed, 2)[1-x.comm.Rank()]), nil
}
