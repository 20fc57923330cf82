package communicator_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// A program that a launcher starts calls Join. This one makes a group of one
// rank by hand, with channels to all ranks of the group over a buffer.
func Example() {
	ctx := context.Background()
	quiet := slog.New(slog.DiscardHandler)
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer rendezvous.Close()
	boot, err := bootstrap.Connect(ctx, bootstrap.Options{Rank: 0, Size: 1, ID: rendezvous.ID()})
	if err != nil {
		log.Fatal(err)
	}
	defer boot.Close()
	device, err := gpu.Open("emu:0")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()

	comm, err := communicator.New(ctx, boot, device, communicator.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer comm.Close()
	buffer, err := gpu.Upload(device, make([]float32, 1000))
	if err != nil {
		log.Fatal(err)
	}
	defer buffer.Close()
	channels, err := comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{PerPeer: 4})
	if err != nil {
		log.Fatal(err)
	}
	defer channels.Close()
	fmt.Printf("rank %d of %d on %v: %d bytes of handles\n", comm.Rank(), comm.Size(), comm.Device(), channels.Handles.Size())
	// Output: rank 0 of 1 on emu:0: 416 bytes of handles
}
