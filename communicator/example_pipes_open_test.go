package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// Four ranks have pipes to and from all others, and only two of them have something to say to each
// other: they open theirs, and no other pipe costs more than its handle.
func ExamplePipes_Open() {
	const source = `
#include <mscclgo/pipe.cuh>
extern "C" __global__ void swap(mscclgo::PipeSet pipes, uint32_t to, uint32_t from, uint32_t* values) {
  if (pipes.to(to).send(values, 4) == mscclgo::WaitResult::Done) pipes.from(from).recv(values + 1, 4);
}`
	err := communicator.Local(context.Background(), 4, "emu", func(ctx context.Context, comm *communicator.Communicator) (err error) {
		rank, ranks := comm.Rank(), comm.Size()
		options := communicator.PipeOptions{Lazy: true}
		for i := 1; i < ranks; i++ {
			options.To = append(options.To, (rank+i)%ranks)
			options.From = append(options.From, (rank+i)%ranks)
		}
		pipes, err := comm.Pipes(ctx, options)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, comm.Barrier(ctx), pipes.Close()) }()
		if rank%3 != 0 {
			return nil
		}

		peer := 3 - rank
		if err := pipes.Open(ctx, peer); err != nil { // the other of the two does so too
			return err
		}
		module, err := devicecode.Load(ctx, comm.Device(), "swap.cu", []byte(source), devicecode.Options{})
		if err != nil {
			return err
		}
		defer module.Close()
		swap, err := module.Kernel("swap")
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
		at := uint32((peer+ranks-rank)%ranks - 1) // where the options name the peer
		err = errors.Join(swap.Launch(stream, gpu.Blocks(1, 32), pipes.Set(), at, at, buffer), stream.Synchronize(ctx), gpu.CopyOut(values, buffer))
		if rank == 0 {
			fmt.Println("rank 0 has", values)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: rank 0 has [10 13]
}
