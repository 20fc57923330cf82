package registeredmem_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Two ranks, here of one process: rank 0 shares a buffer, rank 1 reads it.
func Example() {
	group, secret := [16]byte{1}, [32]byte{2}
	rank := func(number int) *registeredmem.Registry {
		device, err := gpu.Open("auto")
		if err != nil {
			log.Fatal(err)
		}
		r, err := registeredmem.NewRegistry(registeredmem.Options{Rank: number, Group: group, Secret: secret, Device: device})
		if err != nil {
			log.Fatal(err)
		}
		return r
	}
	rank0, rank1 := rank(0), rank(1)
	defer rank0.Device().Close()
	defer rank1.Device().Close()
	defer rank0.Close()
	defer rank1.Close()

	buffer, err := gpu.Upload(rank0.Device(), []int32{7, 8, 9})
	if err != nil {
		log.Fatal(err)
	}
	defer buffer.Close()
	memory, err := rank0.Register(buffer)
	if err != nil {
		log.Fatal(err)
	}
	data, err := memory.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}

	// The bytes reach rank 1 by any means.
	remote, err := rank1.Import(context.Background(), data)
	if err != nil {
		log.Fatal(err)
	}
	defer remote.Close()
	values := make([]int32, 3)
	if err := gpu.CopyOut(values, remote.Buffer()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(remote, remote.Transports(), values)
	// Output: memory 0 of rank 0 (12 bytes) CudaIPC [7 8 9]
}
