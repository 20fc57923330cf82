// Channel sends a message from one GPU's memory to another's.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

//go:embed channel.cu
var source []byte

func main() {
	launcher.Self(2) // start two copies of this program, unless a launcher has
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := communicator.Run(ctx, communicator.Options{}, run); err != nil {
		log.Fatal(err)
	}
}

// run is what each rank does.
func run(ctx context.Context, comm *communicator.Communicator) error {
	message := []byte(strings.Repeat(fmt.Sprintf("This is rank %d. ", comm.Rank()), 1000))
	buffer := must(gpu.Upload(comm.Device(), message))
	module := must(devicecode.Load(ctx, comm.Device(), "channel.cu", source, devicecode.Options{}))
	send, receive := must(module.Kernel("send")), must(module.Kernel("receive"))
	stream := must(comm.NewStream())

	// A channel to each rank, from this rank's buffer to that rank's. Collective: all
	// ranks call it.
	channels, err := comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{Name: "greeting"})
	if err != nil {
		return err
	}
	if comm.Rank() == 0 {
		err = send.Launch(stream, gpu.Blocks(1, 256), channels.HandleOf(0, 1), len(message))
	} else {
		err = receive.Launch(stream, gpu.Blocks(1, 1), channels.HandleOf(0, 0))
	}
	if err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil { // an error if a wait has failed
		return err
	}
	if err := gpu.CopyOut(message, buffer); err != nil {
		return err
	}
	fmt.Printf("rank %d on %v has: %s\n", comm.Rank(), comm.Device(), message[:15])
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
