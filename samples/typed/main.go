// Typed launches its kernels by Go functions that "mscclgo gen" wrote from the source: an
// argument of a wrong type does not compile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/launcher"
)

// With -arch emu,sm_90 the images are embedded, and the program needs no compiler.
//go:generate go run github.com/mscclgo/mscclgo/cmd/mscclgo gen -o kernels.go kernels.cu

const count = 1000

func main() {
	ranks := flag.Int("n", 4, "ranks to start, unless a launcher has")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatal("there are no arguments, only flags")
	}
	launcher.Self(*ranks)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	comm, err := communicator.Join(ctx, communicator.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer comm.Close()
	if err := scaledSum(ctx, comm); err != nil {
		log.Fatal(err)
	}
}

// scaledSum adds up one buffer of each rank, scales the sum, and checks it.
func scaledSum(ctx context.Context, comm *communicator.Communicator) error {
	device := comm.Device()
	kernels, err := LoadKernels(ctx, device)
	if err != nil {
		return err
	}
	input, err := device.Alloc(4 * count)
	if err != nil {
		return err
	}
	sum, err := device.Alloc(4 * count)
	if err != nil {
		return err
	}
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	channels, err := comm.MemoryChannels(ctx, input, communicator.MemoryChannelOptions{})
	if err != nil {
		return err
	}

	scaling := Scaling{Factor: 0.5, Bias: 3, First: 10}
	err = errors.Join(
		kernels.Fill(stream, gpu.Blocks(4, 128), input, count, float32(comm.Rank()+1)),
		kernels.Fill(stream, gpu.Blocks(4, 128), sum, count, -1),
		kernels.ScaledSum(stream, gpu.Blocks(1, 256), channels.Handles, uint32(comm.Size()), sum, count, scaling),
		comm.Synchronize(ctx, stream),
	)
	if err != nil {
		return err
	}
	values := make([]float32, count)
	if err := gpu.CopyOut(values, sum); err != nil {
		return err
	}
	for i, got := range values {
		want := 0.5*float32(comm.Size()*(comm.Size()+1)/2) + 3
		if i < 10 {
			want = -1
		}
		if got != want {
			return fmt.Errorf("rank %d: element %d is %v, want %v", comm.Rank(), i, got, want)
		}
	}
	fmt.Printf("rank %d on %v: the scaled sums of %d elements are right\n", comm.Rank(), device, count)
	return nil
}
