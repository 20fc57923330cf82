package explore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

const pipeSource = `
#include <mscclgo/pipe.cuh>
extern "C" __global__ void passOn(mscclgo::PipeSet pipes, uint32_t to, uint32_t from, uint32_t* values) {
  if (pipes.to(to).send(values, 4) == mscclgo::WaitResult::Done) pipes.from(from).recv(values + 1, 4);
}`

// openAll has each of three ranks open lazy pipes to and from both others, in an order of its own, and pass
// a number round the ring.
func openAll(ctx context.Context, comm *communicator.Communicator) (err error) {
	// First of all: a rank that compiles has the turn, and the others' calls would not wait that long.
	module, err := devicecode.Load(ctx, comm.Device(), "pipes.cu", []byte(pipeSource), devicecode.Options{})
	if err != nil {
		return err
	}
	defer module.Close()
	rank := comm.Rank()
	next, before := (rank+1)%3, (rank+2)%3
	pipes, err := comm.Pipes(ctx, communicator.PipeOptions{Lazy: true, To: []int{next, before}, From: []int{before, next}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pipes.Close()) }()
	if err := pipes.Open(ctx, next, before); err != nil {
		return err
	}
	kernel, err := module.Kernel("passOn")
	if err != nil {
		return err
	}
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	values := []uint32{uint32(10 + rank), 0}
	buffer, err := gpu.Upload(comm.Device(), values)
	if err != nil {
		return err
	}
	defer buffer.Close()
	if err := errors.Join(
		kernel.Launch(stream, gpu.Blocks(1, 4), pipes.Set(), uint32(0), uint32(0), buffer),
		stream.Synchronize(ctx), gpu.CopyOut(values, buffer), comm.Barrier(ctx),
	); err != nil {
		return err
	}
	if want := uint32(10 + before); values[1] != want {
		return fmt.Errorf("rank %d got %d, want %d", rank, values[1], want)
	}
	return nil
}

// TestLazyPipes opens pipes in each scheduler's order, which repeats.
func TestLazyPipes(t *testing.T) {
	for n := range 6 {
		first, err := run(t, schedule(n), 3, openAll)
		if err != nil {
			t.Fatalf("schedule %d: %v", n, err)
		}
		if again, err := run(t, schedule(n), 3, openAll); err != nil || again.Digest != first.Digest {
			t.Errorf("schedule %d: run again it is another, %x after %x (%v)", n, again.Digest, first.Digest, err)
		}
	}
}
