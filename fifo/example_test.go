package fifo_test

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
)

const ask = `
#include <mscclgo/fifo.cuh>

extern "C" __global__ void ask(mscclgo::FifoHandle fifo) {
  mscclgo::PushResult pushed = fifo.push(mscclgo::Trigger::user(200, 6, 7));
  if (pushed.result == mscclgo::WaitResult::Done) fifo.sync(pushed.position);
}`

// A kernel asks the host for something, and the host serves it.
func Example() {
	if err := example(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: kind 200 asks for 6 times 7
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
	module, err := devicecode.Load(ctx, dev, "ask.cu", []byte(ask), devicecode.Options{})
	if err != nil {
		return err
	}
	defer module.Close()
	kernel, err := module.Kernel("ask")
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := kernel.Launch(stream, gpu.LaunchConfig{}, ring.Handle()); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if t, ok := ring.Poll(); ok {
			fmt.Printf("kind %d asks for %d times %d\n", t.Kind, t.A, t.B)
			if err := ring.Pop(1); err != nil {
				return err
			}
			break
		}
		time.Sleep(time.Microsecond)
	}
	return stream.Synchronize(ctx)
}
