// Packets exchanges small messages between two GPUs without signals.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

//go:embed packets.cu
var source []byte

const (
	count  = 64 // of float32
	rounds = 100
)

func main() {
	launcher.Self(2)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := communicator.Run(ctx, communicator.Options{}, run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, comm *communicator.Communicator) error {
	peer := 1 - comm.Rank()
	values := make([]float32, 2*count) // sent, and received
	for i := range count {
		values[i] = float32(1000*comm.Rank() + i)
	}
	buffer := must(gpu.Upload(comm.Device(), values))
	inbox := must(comm.Device().Alloc(2 * 2 * 4 * count)) // an LL8 packet has a flag for each 4 bytes of data
	module := must(devicecode.Load(ctx, comm.Device(), "packets.cu", source, devicecode.Options{}))
	exchange := must(module.Kernel("exchange"))
	stream := must(comm.NewStream())
	channels := must(comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{Inbox: inbox}))

	took, err := comm.Time(ctx, stream, func() error {
		return exchange.Launch(stream, gpu.Blocks(1, 32), channels.HandleOf(0, peer), 4*count, rounds)
	})
	if err != nil {
		return err
	}
	if err := gpu.CopyOut(values, buffer); err != nil {
		return err
	}
	for i, v := range values[count:] {
		if want := float32(1000*peer + i); v != want {
			return fmt.Errorf("element %d is %v, want %v", i, v, want)
		}
	}
	fmt.Printf("rank %d: %d rounds are right, in %v each\n", comm.Rank(), rounds, took/rounds)
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
