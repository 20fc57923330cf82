// Hello is the smallest whole program: ranks add up their buffers by an all-reduce of our own.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

//go:embed hello.cu
var source []byte

const count = 1000

func main() {
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	if flag.Parse(); flag.NArg() > 0 {
		log.Fatal("there are no arguments, only flags")
	}
	launcher.Self(*ranks)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := communicator.Run(ctx, communicator.Options{}, allReduce); err != nil {
		log.Fatal(err)
	}
}

// allReduce adds up one buffer of each rank and checks the sum.
func allReduce(ctx context.Context, comm *communicator.Communicator) error {
	values := make([]float32, count)
	for i := range values {
		values[i] = float32((comm.Rank() + 1) * i)
	}
	// Allocate and load before any kernel waits: a GPU may not do so meanwhile.
	input := must(gpu.Upload(comm.Device(), values))
	sum := must(comm.Device().Alloc(input.Size()))
	module := must(devicecode.Load(ctx, comm.Device(), "hello.cu", source, devicecode.Options{}))
	kernel := must(module.Kernel("allReduce"))
	stream := must(comm.NewStream()) // whose Synchronize tells of waits that failed
	peers := must(comm.MemoryChannels(ctx, input, communicator.MemoryChannelOptions{}))
	launched := kernel.Launch(stream, gpu.Blocks(1, 256), peers.Set(), sum, count)
	if err := errors.Join(launched, stream.Synchronize(ctx), gpu.CopyOut(values, sum)); err != nil {
		return err
	}
	for i, got := range values {
		if want := float32(comm.Size() * (comm.Size() + 1) / 2 * i); got != want {
			return fmt.Errorf("rank %d: element %d is %v, want %v", comm.Rank(), i, got, want)
		}
	}
	fmt.Printf("rank %d on %v: the sums of %d elements are right\n", comm.Rank(), comm.Device(), count)
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
