package proxyservice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/proxyservice"
)

const count = `
#include <mscclgo/fifo.cuh>

extern "C" __global__ void count(mscclgo::FifoHandle fifo) {
  fifo.push(mscclgo::Trigger::user(200, threadIdx.x));
}`

// A proxy with a handler of the user's own: each thread of a kernel sends it a
// number.
func ExampleProxy() {
	if err := example(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: 8 threads, the sum of their numbers is 28
}

func example(ctx context.Context) (err error) {
	dev, err := gpu.Open("emu:0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	status, err := dev.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{})))
	if err != nil {
		return err
	}
	defer status.Close()
	ring, err := fifo.New(dev, fifo.Options{Watch: devicecode.Watch{Status: status.Ptr(), Timeout: uint64(10 * time.Second)}})
	if err != nil {
		return err
	}
	defer ring.Close()
	var threads, sum uint64 // the handler's, until Stop
	proxy, err := proxyservice.NewProxy(ring, func(_ context.Context, t fifo.Trigger) error {
		threads++
		sum += t.A
		return nil
	}, proxyservice.Options{})
	if err != nil {
		return err
	}
	if err := proxy.Start(ctx); err != nil {
		return err
	}
	module, err := devicecode.Load(ctx, dev, "count.cu", []byte(count), devicecode.Options{})
	if err != nil {
		return err
	}
	defer module.Close()
	kernel, err := module.Kernel("count")
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	err = kernel.Launch(stream, gpu.LaunchConfig{Block: gpu.Dim3{X: 8}}, ring.Handle())
	if err := errors.Join(err, stream.Synchronize(ctx), proxy.Stop(ctx)); err != nil {
		return err
	}
	fmt.Printf("%d threads, the sum of their numbers is %d\n", threads, sum)
	return nil
}
