package emu_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/gpu/internal/emu"
)

// Example compiles a kernel, runs it on the emulated device and reads what it
// wrote.
func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: [0 1 4 9 16 25 36 49]
}

func example(ctx context.Context) error {
	device, err := emu.Driver().Open(0)
	if err != nil {
		return err
	}
	defer device.Close()
	image, err := devicecode.Compile(ctx, device.Info().Arch, "square.cu",
		[]byte(`extern "C" __global__ void square(int* out) { out[threadIdx.x] = threadIdx.x * threadIdx.x; }`), devicecode.Options{})
	if err != nil {
		return err
	}
	module, err := device.LoadModule(image)
	if err != nil {
		return err
	}
	defer module.Close()
	kernel, err := module.Kernel("square")
	if err != nil {
		return err
	}
	memory, err := device.Alloc(32)
	if err != nil {
		return err
	}
	defer memory.Free()
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	cfg := backend.LaunchConfig{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{8, 1, 1}}
	if err := stream.Launch(kernel, cfg, binary.LittleEndian.AppendUint64(nil, memory.Ptr())); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	var out [8]int32
	data := make([]byte, 32)
	if err := device.CopyToHost(data, memory.Ptr()); err != nil {
		return err
	}
	if _, err := binary.Decode(data, binary.LittleEndian, &out); err != nil {
		return err
	}
	fmt.Println(out)
	return nil
}
