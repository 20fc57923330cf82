// Trigger has a kernel ask the host for something that the library knows nothing of.
package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed trigger.cu
var source []byte

const (
	square = fifo.FirstUserKind // as in trigger.cu
	count  = 10
)

func main() {
	launcher.Self(1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := communicator.Run(ctx, communicator.Options{}, run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, comm *communicator.Communicator) error {
	answers := must(comm.Device().AllocHost(8 * count)) // host memory that kernels can read
	sum := must(gpu.Upload(comm.Device(), []uint64{0}))
	module := must(devicecode.Load(ctx, comm.Device(), "trigger.cu", source, devicecode.Options{}))
	ask := must(module.Kernel("ask"))
	stream := must(comm.NewStream())

	// The handler is called for one trigger after the other, in the order of the pushes. An
	// error of it fails the group.
	handler := func(_ context.Context, t fifo.Trigger) error {
		if t.Kind != square || t.A >= count {
			return fmt.Errorf("what is %+v?", t)
		}
		binary.LittleEndian.PutUint64(answers.Bytes()[8*t.A:], t.B*t.B)
		return nil
	}
	service := must(comm.ProxyService(ctx, proxyservice.ServiceOptions{Handler: handler}))
	defer service.Close()

	if err := ask.Launch(stream, gpu.Blocks(1, 1), service.Fifo(), answers, sum, count); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	total := make([]uint64, 1)
	if err := gpu.CopyOut(total, sum); err != nil {
		return err
	}
	if total[0] != 385 {
		return fmt.Errorf("the sum is %d", total[0])
	}
	fmt.Printf("the host squared %d numbers for the kernel, which added them up: %d\n", count, total[0])
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
