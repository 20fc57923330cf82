package dlpack_test

import (
	"fmt"
	"log"

	"github.com/mscclgo/mscclgo/dlpack"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/dlpacktest"
)

// A tensor of a framework becomes a buffer, without a copy.
func ExampleTake() {
	device, err := gpu.Open("emu:0")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	array, err := device.AllocHost(64) // a framework's array, in the host's memory
	if err != nil {
		log.Fatal(err)
	}
	defer array.Close()
	exported := dlpacktest.Make(dlpacktest.Tensor{Data: uintptr(array.Ptr()), Code: 2, Bits: 32, Shape: []int64{4, 4}})
	defer exported.Free()

	tensor, err := dlpack.Take(device, exported.Pointer(), dlpack.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer tensor.Close() // calls the framework's deleter
	fmt.Println(tensor.Type, tensor.Shape, tensor.Buffer.Size())
	// Output: f32 [4 4] 64
}
