// Hosts broadcasts from rank 0: through mapped memory to the ranks of its host, and over
// the network to the ranks of others.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed hosts.cu
var source []byte

const size = 64 << 10

func main() {
	pretend := flag.Bool("pretend", false, "take the odd ranks for ranks of another host")
	flag.Parse()
	launcher.Self(4)
	if *pretend {
		rank := must(bootstrap.FromEnv(os.LookupEnv)).Options.Rank
		os.Setenv("MSCCLGO_HOST_ID", "host"+strconv.Itoa(rank%2))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := communicator.Run(ctx, communicator.Options{}, run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, comm *communicator.Communicator) error {
	content := make([]byte, size)
	if comm.Rank() == 0 {
		for i := range content {
			content[i] = byte(i * 7)
		}
	}
	buffer := must(gpu.Upload(comm.Device(), content))
	module := must(devicecode.Load(ctx, comm.Device(), "hosts.cu", source, devicecode.Options{}))
	stream := must(comm.NewStream())
	service := must(comm.ProxyService(ctx, proxyservice.ServiceOptions{}))
	defer service.Close()
	mapped := must(comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{SameHost: true}))
	ports := must(comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{}))

	// kernel launches one by the channel that leads to a rank.
	kernel := func(name string, peer int, more ...any) error {
		handle := ports.HandleOf(0, peer)
		if slices.Contains(comm.HostRanks(), peer) {
			name, handle = name+"Mapped", mapped.HandleOf(0, peer)
		} else {
			name += "Port"
		}
		return must(module.Kernel(name)).Launch(stream, gpu.Blocks(1, 128), append([]any{handle}, more...)...)
	}
	if comm.Rank() == 0 {
		for peer := 1; peer < comm.Size(); peer++ {
			if err := kernel("send", peer, size); err != nil {
				return err
			}
		}
	} else if err := kernel("receive", 0); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	if err := gpu.CopyOut(content, buffer); err != nil {
		return err
	}
	for i, c := range content {
		if c != byte(i*7) {
			return fmt.Errorf("byte %d is %d", i, c)
		}
	}
	if comm.Rank() > 0 {
		fmt.Printf("rank %d of host %v has it, by %v\n", comm.Rank(), comm.HostRanks(), must(comm.Transport(0)))
	}
	return comm.Barrier(ctx) // a rank that leaves takes its proxy along
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
