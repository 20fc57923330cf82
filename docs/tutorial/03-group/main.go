// Group gathers a part of every rank's memory at all ranks, by a kernel that takes the
// group by value.
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

//go:embed group.cu
var source []byte

const (
	count   = 1 << 17 // int32 of each rank
	threads = 128
	tile    = 64 << 10 // bytes of shared memory of a block
)

func main() {
	launcher.Self(4)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := communicator.Run(ctx, communicator.Options{}, run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, comm *communicator.Communicator) error {
	values := make([]int32, count*comm.Size())
	for i := range count {
		values[comm.Rank()*count+i] = int32(comm.Rank()*count + i)
	}
	buffer := must(gpu.Upload(comm.Device(), values))
	module := must(devicecode.Load(ctx, comm.Device(), "group.cu", source, devicecode.Options{}))
	allGather := must(module.Kernel("allGather"))
	stream := must(comm.NewStream())
	group := must(comm.Group(ctx))
	buffers := must(must(comm.Share(ctx, buffer)).Handle()) // of all ranks
	// More than 48 KiB of shared memory a kernel has to be allowed.
	if err := allGather.SetMaxDynamicShared(tile); err != nil {
		return err
	}
	// Blocks that wait for each other must all run at once.
	config := gpu.Blocks(min(8, must(comm.MaxBlocks(ctx, allGather, threads, tile))), threads)
	config.DynamicShared = tile

	if err := allGather.Launch(stream, config, group, buffers, 4*count, tile); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	if err := gpu.CopyOut(values, buffer); err != nil {
		return err
	}
	for i, v := range values {
		if v != int32(i) {
			return fmt.Errorf("element %d is %d", i, v)
		}
	}
	fmt.Printf("rank %d has the parts of %d ranks\n", comm.Rank(), comm.Size())
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
