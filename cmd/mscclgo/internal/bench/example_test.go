package bench_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/bench"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

func ExampleRun() {
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

	results, err := bench.Run(ctx, comm, bench.Config{
		Collectives: []collective.Kind{collective.AllGather}, Algorithms: []string{"LL128", "direct"},
		Type: "u8", Op: "sum", Places: []string{"out"}, Sizes: must(bench.Sizes(100, 10000, 10)),
		Iters: 2, Replays: 3, Rounds: 2, Graph: true, Check: true,
	}, bench.Sinks{})
	for _, r := range results {
		fmt.Println(r.Collective, r.Bytes, r.Algorithm, r.Wrong, r.Time.Median > 0)
	}
	fmt.Println(err)
	// Output:
	// all-gather 100 LL128 0 true
	// all-gather 100 direct 0 true
	// all-gather 1000 LL128 0 true
	// all-gather 1000 direct 0 true
	// all-gather 10000 LL128 0 true
	// all-gather 10000 direct 0 true
	// <nil>
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
