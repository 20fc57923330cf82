package devicecode_test

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// Example compiles a kernel for a device and finds it by name.
func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: found scale
}

const scaleSource = `
extern "C" __global__ void scale(float* v, float by) { v[threadIdx.x] *= by; }
`

func example(ctx context.Context) error {
	device, err := gpu.Open("emu:0")
	if err != nil {
		return err
	}
	defer device.Close()
	module, err := devicecode.Load(ctx, device, "scale.cu", []byte(scaleSource), devicecode.Options{})
	if err != nil {
		return err
	}
	defer module.Close()
	kernel, err := module.Kernel("scale")
	if err != nil {
		return err
	}
	fmt.Println("found", kernel.Name())
	return nil
}

// ExampleHeaders lists what a kernel can include.
func ExampleHeaders() {
	names, err := fs.Glob(devicecode.Headers(), "mscclgo/copy.cuh")
	fmt.Println(names, err)
	// Output: [mscclgo/copy.cuh] <nil>
}
