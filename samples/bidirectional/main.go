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
	flag.IntVar(&cfg.blocks, "blocks", 16, "blocks of the kernel that copies")
	flag.IntVar(&cfg.threads, "threads", 512, "threads of each of these blocks")
	flag.Parse()
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

// run exchanges all sizes in both ways; rank 0 prints the table.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) (err error) {
	if comm.Size() != 2 {
		return fmt.Errorf("the exchange is for 2 ranks, the group has %d", comm.Size())
	}
	if cfg.min == 0 || cfg.max < cfg.min || cfg.rounds < 1 || cfg.blocks < 1 {
		return errors.New("flags: sizes, rounds and blocks start at 1, and -max is not below -min")
	}
	if comm.Rank() != 0 {
		out = io.Discard
	}
	device, peer := comm.Device(), 1-comm.Rank()
	module, err := devicecode.Load(ctx, device, "bidirectional.cu", source, devicecode.Options{})
	if err != nil {
		return err
	}
	buf, err := device.Alloc(cfg.max) // what goes out
	if err != nil {
		return err
	}
	inbox, err := device.Alloc(cfg.max) // what comes in
	if err != nil {
		return err
	}
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()

	// Blocks wait for the peer's blocks, so they must all run at once.
	memory, err := module.Kernel("memory")
	if err != nil {
		return err
	}
	fit, err := comm.MaxBlocks(ctx, memory, cfg.threads, 0)
	if err != nil {
		return err
	}
	blocks := min(cfg.blocks, fit)
	direct, err := comm.MemoryChannels(ctx, buf, communicator.MemoryChannelOptions{PerPeer: blocks, Inbox: inbox})
	if err != nil {
		return err
	}
	// The service moves the data of port channels.
	port, err := module.Kernel("port")
	if err != nil {
		return err
	}
	service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	ports, err := comm.PortChannels(ctx, service, buf, communicator.PortChannelOptions{Inbox: inbox})
	if err != nil {
		return err
	}

	fmt.Fprintf(out, "# both ways at once; the bandwidth counts both; rank 0 on %v (%s)\n", device, device.Info().Model)
	fmt.Fprintf(out, "%12s %7s %12s %12s\n", "size (B)", "way", "time (us)", "bw (GB/s)")
	for size := cfg.min; size <= cfg.max; size *= 4 {
		for _, way := range []string{"port", "memory"} {
			if err := gpu.CopyIn(buf, message(comm.Rank(), size)); err != nil {
				return err
			}
			if err := gpu.CopyIn(inbox, make([]byte, size)); err != nil {
				return err
			}
			var took time.Duration
			for range 2 { // the first warms up
				took, err = comm.Time(ctx, stream, func() error {
					if way == "port" {
						return port.Launch(stream, gpu.Blocks(1, 1), ports.HandleOf(0, peer), size, cfg.rounds)
					}
					return memory.Launch(stream, gpu.Blocks(blocks, cfg.threads), direct.Handles, peer, size, cfg.rounds)
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
				return fmt.Errorf("rank %d: %s of %d bytes: what came is not what was sent", comm.Rank(), way, size)
			}
			one := took / time.Duration(cfg.rounds)
			fmt.Fprintf(out, "%12d %7s %12.2f %12.2f\n", size, way, float64(one.Nanoseconds())/1e3, 2*float64(size)/float64(max(one, 1)))
		}
	}
	return nil
}

// message returns what a rank sends.
func message(rank int, size uint64) []byte {
	text := fmt.Sprintf("from rank %d, ", rank)
	return bytes.Repeat([]byte(text), int(size)/len(text)+1)[:size]
}
