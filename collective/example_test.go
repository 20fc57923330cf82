package collective_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// One rank all-reduces with itself.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rendezvous := must(bootstrap.NewRendezvous("127.0.0.1:0", nil))
	defer rendezvous.Close()
	boot := must(bootstrap.Connect(ctx, bootstrap.Options{Size: 1, ID: rendezvous.ID()}))
	defer boot.Close()
	device := must(gpu.Open("emu:0"))
	defer device.Close()
	comm := must(communicator.New(ctx, boot, device, communicator.Options{}))
	defer comm.Close()

	runner := must(collective.New(ctx, comm, collective.Options{}))
	in := must(gpu.Upload(device, []float32{1, 2, 3}))
	out := must(device.Alloc(in.Size()))
	op := must(runner.Prepare(ctx, collective.Call{
		Kind:  collective.AllReduce,
		Type:  collective.F32,
		Op:    collective.Sum,
		Count: 3,
		In:    must(runner.Share(ctx, in)),
		Out:   must(runner.Share(ctx, out)),
	}))
	stream := must(device.NewStream())
	if err := op.Launch(stream); err != nil {
		log.Fatal(err)
	}
	if err := comm.Synchronize(ctx, stream); err != nil {
		log.Fatal(err)
	}
	sums := make([]float32, 3)
	fmt.Println(gpu.CopyOut(sums, out), sums)
	fmt.Println(stream.Close(), runner.Close(ctx))
	// Output:
	// <nil> [1 2 3]
	// <nil> <nil>
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
