// Errors has a rank forget a signal, and shows what the others are told.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

//go:embed errors.cu
var source []byte

var forgetful = flag.Int("forgets", 2, "`rank` that does not signal; -1 for none")

func main() {
	flag.Parse()
	launcher.Self(4)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	comm := must(communicator.Join(ctx, communicator.Options{Timeout: 2 * time.Second}))
	defer comm.Close()
	err := run(ctx, comm)

	var failure *mscclgo.Error
	if errors.As(err, &failure) {
		fmt.Printf("rank %d blames rank %d, of kind %q: %v\n", comm.Rank(), failure.Peer, failure.Kind, err)
		return
	}
	fmt.Printf("rank %d: all is well\n", comm.Rank())
}

func run(ctx context.Context, comm *communicator.Communicator) error {
	rank, size := comm.Rank(), comm.Size()
	buffer := must(comm.Device().Alloc(64))
	module := must(devicecode.Load(ctx, comm.Device(), "errors.cu", source, devicecode.Options{}))
	pass := must(module.Kernel("pass"))
	stream := must(comm.NewStream())
	channels, err := comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{Name: "baton"})
	if err != nil {
		return err
	}
	before, behind := channels.HandleOf(0, (rank+size-1)%size), channels.HandleOf(0, (rank+1)%size)
	if err := pass.Launch(stream, gpu.Blocks(1, 1), before, behind, rank == 0, rank == *forgetful); err != nil {
		return err
	}
	return stream.Synchronize(ctx)
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
