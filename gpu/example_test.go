package gpu_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// Example squares numbers on the first device of the machine, which is emulated if
// there is no GPU.
func Example() {
	const source = `
extern "C" __global__ void square(int* values, int n) {
  if (threadIdx.x < n) values[threadIdx.x] *= values[threadIdx.x];
}`
	if err := square(context.Background(), []byte(source), []int32{1, 2, 3, 4}); err != nil {
		log.Fatal(err)
	}
	// Output: [1 4 9 16]
}

func square(ctx context.Context, source []byte, values []int32) error {
	device, err := gpu.Open("auto")
	if err != nil {
		return err
	}
	defer device.Close()
	module, err := devicecode.Load(ctx, device, "square.cu", source, devicecode.Options{})
	if err != nil {
		return err
	}
	defer module.Close()
	kernel, err := module.Kernel("square")
	if err != nil {
		return err
	}
	buffer, err := gpu.Upload(device, values)
	if err != nil {
		return err
	}
	defer buffer.Close()
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := kernel.Launch(stream, gpu.Blocks(1, 32), buffer, len(values)); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	if err := gpu.CopyOut(values, buffer); err != nil {
		return err
	}
	fmt.Println(values)
	return nil
}

// Other code of the process captures one of its streams, on which this program then queues
// work: the work is done by each launch of the other code's graph.
func ExampleDevice_WrapStream() {
	if err := wrapStreamExample(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// captured: [0]
	// launched: [7]
}

func wrapStreamExample(ctx context.Context) error {
	theirs, err := gpu.Open("emu:0") // the other code's, such as a framework's
	if err != nil {
		return err
	}
	defer theirs.Close()
	theirStream, err := theirs.NewStream()
	if err != nil {
		return err
	}
	defer theirStream.Close()

	device, err := gpu.Open("emu:0")
	if err != nil {
		return err
	}
	defer device.Close()
	stream, err := device.WrapStream(theirStream.Handle())
	if err != nil {
		return err
	}
	defer stream.Close() // which leaves theirStream open
	buffer, err := gpu.Upload(device, []byte{0})
	if err != nil {
		return err
	}
	defer buffer.Close()

	if err := theirStream.BeginCapture(); err != nil {
		return err
	}
	if err := stream.Fill(buffer, 0, 7, 1); err != nil {
		return err
	}
	graph, err := theirStream.EndCapture()
	if err != nil {
		return err
	}
	defer graph.Close()
	value := make([]byte, 1)
	if err := gpu.CopyOut(value, buffer); err != nil {
		return err
	}
	fmt.Println("captured:", value)
	if err := graph.Launch(theirStream); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	if err := gpu.CopyOut(value, buffer); err != nil {
		return err
	}
	fmt.Println("launched:", value)
	return nil
}
