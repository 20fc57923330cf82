// Pipe adds up a buffer of each rank by a ring of pipes, which threads fill or, with -ports,
// the hosts.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed pipe.cu
var source []byte

// config is what the flags set.
type config struct {
	count, blocks, threads int
	size                   channel.PipeSize
	ports                  bool
}

func main() {
	var cfg config
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	device := flag.String("device", "auto", `"cuda", "emu", "auto", or one device such as "cuda:0"`)
	flag.IntVar(&cfg.count, "count", 100_000, "elements of each rank, at most 1<<30")
	flag.IntVar(&cfg.blocks, "blocks", 4, "blocks, each with a pipe to the next rank")
	flag.IntVar(&cfg.threads, "threads", 256, "threads of a block, at most 512")
	flag.IntVar(&cfg.size.Slots, "slots", 8, "slots of a pipe, a power of two")
	flag.Uint64Var(&cfg.size.SlotBytes, "slot", 16<<10, "bytes of a slot, a multiple of 128")
	flag.BoolVar(&cfg.ports, "ports", false, "have the hosts move the bytes")
	flag.Parse()
	if err := cfg.check(flag.NArg(), *ranks); err != nil {
		log.Fatal(err)
	}
	launcher.Self(*ranks)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	err := communicator.Run(ctx, communicator.Options{Device: *device}, func(ctx context.Context, comm *communicator.Communicator) error {
		return run(ctx, comm, cfg)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// check returns the error of flags and arguments that make no sense.
func (c *config) check(args, ranks int) error {
	switch {
	case args > 0:
		return errors.New("there are no arguments, only flags")
	case ranks < 2:
		return errors.New("-n is at least 2, since a ring has two ranks or more")
	case c.count < 1 || c.count > 1<<30:
		return errors.New("-count is from 1 to 1<<30")
	case c.blocks < 1 || c.threads < 1 || c.threads > 512:
		return errors.New("-blocks is at least 1, and -threads is from 1 to 512")
	case c.size.Slots < 2 || c.size.Slots&(c.size.Slots-1) != 0:
		return errors.New("-slots is a power of two from 2")
	case c.size.SlotBytes < 1 || c.size.SlotBytes%128 != 0:
		return errors.New("-slot is a multiple of 128, and not 0")
	}
	return nil
}

// value returns element i of a rank.
func value(i, rank, ranks int) float32 { return float32((rank + 1) * (i % modulus(ranks))) }

// sum returns the sum of element i of all ranks.
func sum(i, ranks int) float32 { return float32(ranks * (ranks + 1) / 2 * (i % modulus(ranks))) }

// modulus bounds the elements so that their sums are below 1<<24: up to there a float32 has each integer, and
// sums are the same in any order.
func modulus(ranks int) int {
	const exact = 1 << 24
	return min(1000, (exact-1)/(ranks*(ranks+1)/2)+1)
}

// run adds up one buffer of each rank and checks the sums.
func run(ctx context.Context, comm *communicator.Communicator, cfg config) (err error) {
	rank, ranks := comm.Rank(), comm.Size()
	if ranks < 2 {
		return errors.New("a ring has at least 2 ranks, and the group has 1")
	}
	values := make([]float32, cfg.count)
	for i := range values {
		values[i] = value(i, rank, ranks)
	}
	data, err := gpu.Upload(comm.Device(), values)
	if err != nil {
		return err
	}
	module, err := devicecode.Load(ctx, comm.Device(), "pipe.cu", source, devicecode.Options{})
	if err != nil {
		return err
	}
	kernel, err := module.Kernel("allReduce")
	if err != nil {
		return err
	}
	stream, err := comm.NewStream() // whose Synchronize tells of waits that failed
	if err != nil {
		return err
	}
	// A service moves what threads cannot: here, between hosts. Without -ports the pipes use
	// it only where a neighbour's memory is not mapped.
	service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	blocks, err := comm.MaxBlocks(ctx, kernel, cfg.threads, 0) // blocks wait for the peers', so all must run at once
	if err != nil {
		return err
	}
	blocks = min(blocks, cfg.blocks)
	pipes, err := comm.Pipes(ctx, communicator.PipeOptions{
		To: []int{(rank + 1) % ranks}, From: []int{(rank + ranks - 1) % ranks}, PerPeer: blocks,
		Size: cfg.size, Service: service, Ports: cfg.ports,
	})
	if err != nil {
		return err
	}
	err = kernel.Launch(stream, gpu.Blocks(blocks, cfg.threads), pipes.Set(), rank, ranks, data, cfg.count)
	if err := errors.Join(err, stream.Synchronize(ctx), gpu.CopyOut(values, data)); err != nil {
		return err
	}
	for i, got := range values {
		if want := sum(i, ranks); got != want {
			return fmt.Errorf("rank %d: element %d is %v, want %v", rank, i, got, want)
		}
	}
	fmt.Printf("rank %d on %v: the sums of %d elements are right\n", rank, comm.Device(), cfg.count)
	// In this order, as the services of other ranks may still have to do with the pipes.
	return errors.Join(service.Close(), comm.Barrier(ctx), pipes.Close())
}
