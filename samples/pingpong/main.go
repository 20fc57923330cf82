// Pingpong sends data to a peer and back, by each kernel of pingpong.cu, and prints
// the time of one direction.
package main

import (
	"bytes"
	"context"
	_ "embed"
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

// maxRounds keeps the flags of packets, which all sizes and kernels of a run share, below
// 1<<32: beyond that they would repeat flags of packets in the inbox.
const maxRounds = 1 << 24

// check returns the error of flags and arguments that make no sense.
func (c *config) check(args int) error {
	if args > 0 || c.min < 1 || c.max < c.min || c.max > 1<<40 || c.rounds < 1 || c.rounds > maxRounds || c.threads < 1 {
		return fmt.Errorf("there are no arguments; numbers are at least 1, -max is at most 1<<40 and not below -min, -rounds is at most %d", maxRounds)
	}
	return nil
}

// run sends all sizes by all kernels; rank 0 prints the table.
func run(ctx context.Context, comm *communicator.Communicator, cfg config, out io.Writer) error {
	if comm.Size() != 2 {
		return fmt.Errorf("ping-pong is for 2 ranks, the group has %d", comm.Size())
	}
	if comm.Rank() != 0 {
		out = io.Discard
	}
	device, peer := comm.Device(), 1-comm.Rank()
	module, err := devicecode.Load(ctx, device, "pingpong.cu", source, devicecode.Options{})
	if err != nil {
		return err
	}
	buf, err := device.Alloc(2 * cfg.max) // what goes out, then what comes in
	if err != nil {
		return err
	}
	inbox, err := gpu.Upload(device, make([]byte, 2*(cfg.max+8))) // zeroed: packets are twice their data
	if err != nil {
		return err
	}
	toBuf, err := comm.MemoryChannels(ctx, buf, communicator.MemoryChannelOptions{})
	if err != nil {
		return err
	}
	toInbox, err := comm.MemoryChannels(ctx, buf, communicator.MemoryChannelOptions{Inbox: inbox})
	if err != nil {
		return err
	}
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()

	fmt.Fprintf(out, "# ping-pong, one way, rank 0 on %v (%s)\n", device, device.Info().Model)
	fmt.Fprintf(out, "%12s %6s %12s %12s\n", "size (B)", "algo", "time (us)", "bw (GB/s)")
	flag := uint32(1) // of the next packets
	for _, algo := range []string{"put", "ll8", "ll16"} {
		kernel, err := module.Kernel(algo)
		if err != nil {
			return err
		}
		for size := cfg.min; size <= cfg.max; size *= 4 {
			sent := bytes.Repeat([]byte("ping-pong, "), int(size)/11+1)[:size]
			mine := append(bytes.Clone(sent), make([]byte, size)...)
			if comm.Rank() == 1 {
				clear(mine)
			}
			if err := gpu.CopyIn(buf, mine); err != nil {
				return err
			}
			var took time.Duration
			for range 2 { // the first warms up
				took, err = comm.Time(ctx, stream, func() error {
					first := flag
					flag += uint32(cfg.rounds)
					if algo == "put" {
						return kernel.Launch(stream, gpu.Blocks(1, cfg.threads), toBuf.HandleOf(0, peer), comm.Rank(), size, cfg.rounds)
					}
					return kernel.Launch(stream, gpu.Blocks(1, cfg.threads), toInbox.HandleOf(0, peer), comm.Rank(), size, cfg.rounds, first)
				})
				if err != nil {
					return err
				}
			}
			if err := gpu.CopyOut(mine, buf); err != nil {
				return err
			}
			if !bytes.Equal(mine[size:], sent) {
				return fmt.Errorf("rank %d: %s of %d bytes: what came is not what was sent", comm.Rank(), algo, size)
			}
			oneWay := took / time.Duration(2*cfg.rounds)
			fmt.Fprintf(out, "%12d %6s %12.2f %12.2f\n", size, algo, float64(oneWay.Nanoseconds())/1e3, float64(size)/float64(max(oneWay, 1)))
		}
	}
	return nil
}
