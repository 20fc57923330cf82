// Ports exchanges messages that the host moves, over any transport.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed ports.cu
var source []byte

const size = 1 << 20

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
	outbox := must(gpu.Upload(comm.Device(), bytes.Repeat([]byte{byte(comm.Rank() + 1)}, size)))
	inbox := must(comm.Device().Alloc(size))
	module := must(devicecode.Load(ctx, comm.Device(), "ports.cu", source, devicecode.Options{}))
	exchange := must(module.Kernel("exchange"))
	stream := must(comm.NewStream())

	// The service has a thread that takes requests out of a ring, and does them.
	service := must(comm.ProxyService(ctx, proxyservice.ServiceOptions{}))
	defer service.Close()
	channels := must(comm.PortChannels(ctx, service, outbox, communicator.PortChannelOptions{Inbox: inbox}))

	if err := exchange.Launch(stream, gpu.Blocks(1, 1), channels.HandleOf(0, peer), size); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	got := make([]byte, size)
	if err := gpu.CopyOut(got, inbox); err != nil {
		return err
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{byte(peer + 1)}, size)) {
		return fmt.Errorf("what came is not what rank %d sent", peer)
	}
	transport := must(comm.Transport(peer))
	fmt.Printf("rank %d has %d bytes from rank %d, by %v\n", comm.Rank(), size, peer, transport)
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
