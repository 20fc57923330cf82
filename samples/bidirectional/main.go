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
	"log"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
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
	flag.IntVar(&cfg.blocks, "blocks", 16, "blocks of the kernel that copies, at most")
	flag.IntVar(&cfg.threads, "threads", 512, "threads of each of these blocks")
	flag.Parse()
	if err := cfg.check(flag.NArg()); err != nil {
		log.Fatal(err)
	}
	launcher.Self(2)
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
	if args > 0 || c.min < 1 || c.max < c.min || c.max > 1<<40 || min(c.rounds, c.blocks, c.threads) < 1 {
		return errors.New("there are no arguments; numbers are at least 1, -max is at most 1<<40 and not below -min")
	}
	return nil
}

// run exchanges all sizes in both ways; rank 0 prints the table.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) (err error) {
	if comm.Size() != 2 {
		return fmt.Errorf("the exchange is for 2 ranks, the group has %d", comm.Size())
	}
	if comm.Rank() != 0 {
		out = io.Discard
	}
	device, peer := comm.Device(), 1-comm.Rank()
	outbox, err := device.Alloc(cfg.max)
	if err != nil {
		return err
	}
	inbox, err := device.Alloc(cfg.max)
	if err != nil {
		return err
	}
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	module, err := devicecode.Load(ctx, device, "bidirectional.cu", source, devicecode.Options{})
	if err != nil {
		return err
	}

	// A port channel needs a service, which moves its data.
	port, err := module.Kernel("port")
	if err != nil {
		return err
	}
	service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	ports, err := comm.PortChannels(ctx, service, outbox, communicator.PortChannelOptions{Inbox: inbox})
	if err != nil {
		return err
	}
	// Each block has a memory channel. Blocks wait for the peer's, so all must run at once.
	memory, err := module.Kernel("memory")
	if err != nil {
		return err
	}
	fit, err := comm.MaxBlocks(ctx, memory, cfg.threads, 0)
	if err != nil {
		return err
	}
	blocks := min(cfg.blocks, fit)
	channels, err := comm.MemoryChannels(ctx, outbox, communicator.MemoryChannelOptions{PerPeer: blocks, Inbox: inbox})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "# both directions at once; the bandwidth counts both; rank 0 on %v (%s)\n", device, device.Info().Model)
	fmt.Fprintf(out, "%12s %7s %12s %12s\n", "size (B)", "channel", "time (us)", "bw (GB/s)")
	for size := cfg.min; size <= cfg.max; size *= 4 {
		for _, kind := range []string{"port", "memory"} {
			err := errors.Join(gpu.CopyIn(outbox, message(comm.Rank(), size)), gpu.CopyIn(inbox, make([]byte, size)))
			if err != nil {
				return err
			}
			var took time.Duration
			for range 2 { // the first warms up
				took, err = comm.Time(ctx, stream, func() error {
					if kind == "port" {
						return port.Launch(stream, gpu.Blocks(1, 1), ports.HandleOf(0, peer), size, cfg.rounds)
					}
					return memory.Launch(stream, gpu.Blocks(blocks, cfg.threads), channels.Handles, peer, size, cfg.rounds)
				})
				if err != nil {
					return err
				}
			}
			got := make([]byte, size)
			if err := gpu.CopyOut(got, inbox); err != nil {
				return err
			}
			if !bytes.Equal(got, message(peer, size)) {
				return fmt.Errorf("rank %d, %s channel, %d bytes: what came is not what was sent", comm.Rank(), kind, size)
			}
			one := took / time.Duration(cfg.rounds)
			fmt.Fprintf(out, "%12d %7s %12.2f %12.2f\n", size, kind, float64(one.Nanoseconds())/1e3, 2*float64(size)/float64(max(one, 1)))
		}
	}
	return nil
}

// message returns what a rank sends.
func message(rank int, size uint64) []byte {
	text := fmt.Sprintf("from rank %d, ", rank)
	return bytes.Repeat([]byte(text), int(size)/len(text)+1)[:size]
}
