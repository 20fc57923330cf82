package shm_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/connection/shm"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// A rank connects to itself through shared memory, writes and signals. Between two ranks of
// a host the bytes of endpoint and memory travel to the peer first, by any means.
func Example() {
	device, err := gpu.Open("auto")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	registry, err := registeredmem.NewRegistry(registeredmem.Options{Device: device})
	if err != nil {
		log.Fatal(err)
	}
	transport, err := shm.New(registry, shm.Options{Secret: [32]byte{1, 2, 3}})
	if err != nil {
		log.Fatal(err)
	}
	defer transport.Close()
	defer registry.Close()
	buffer, err := gpu.Upload(device, []uint64{0, 0, 42})
	if err != nil {
		log.Fatal(err)
	}
	defer buffer.Close()
	memory, err := registry.Register(buffer)
	if err != nil {
		log.Fatal(err)
	}

	endpoint, err := transport.NewEndpoint()
	if err != nil {
		log.Fatal(err)
	}
	data, err := endpoint.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := endpoint.Connect(ctx, data)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Write(memory, 8, memory, 16, 8); err != nil {
		log.Fatal(err)
	}
	if err := conn.UpdateAndSync(memory, 0, 0, 1); err != nil {
		log.Fatal(err)
	}
	if err := conn.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	values := make([]uint64, 3)
	if err := gpu.CopyOut(values, buffer); err != nil {
		log.Fatal(err)
	}
	fmt.Println(conn.Transport(), values)
	// Output: SHM [1 42 42]
}
