package connection_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// send puts the whole of src into the peer's memory behind its first word, and
// then raises that word. It works over any transport.
func send(ctx context.Context, c *connection.Connection, dst, src *registeredmem.Memory, round uint64) error {
	if err := c.Write(dst, 8, src, 0, src.Size()); err != nil {
		return err
	}
	if err := c.UpdateAndSync(dst, 0, round-1, round); err != nil {
		return err
	}
	return c.Flush(ctx)
}

func ExampleConnection() {
	device, err := gpu.Open("auto")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	registry, err := registeredmem.NewRegistry(registeredmem.Options{Device: device})
	if err != nil {
		log.Fatal(err)
	}
	defer registry.Close()
	memory := func(values ...uint64) *registeredmem.Memory {
		buffer, err := gpu.Upload(device, values)
		if err != nil {
			log.Fatal(err)
		}
		m, err := registry.Register(buffer)
		if err != nil {
			log.Fatal(err)
		}
		return m
	}
	src, dst := memory(5, 6), memory(0, 0, 0)

	// A rank may connect to itself.
	endpoint, err := cudaipc.NewEndpoint(registry)
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

	if err := send(ctx, conn, dst, src, 1); err != nil {
		log.Fatal(err)
	}
	values := make([]uint64, 3)
	if err := gpu.CopyOut(values, dst.Buffer()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(values)
	// Output: [1 5 6]
}
