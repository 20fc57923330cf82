package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// Two ranks exchange their halves of a buffer, with no kernel.
func ExamplePortChannels_OnStream() {
	err := communicator.Local(context.Background(), 2, "emu", func(ctx context.Context, comm *communicator.Communicator) (err error) {
		rank, peer := comm.Rank(), 1-comm.Rank()
		values := make([]uint32, 2)
		values[rank] = uint32(10 + rank)
		buffer, err := gpu.Upload(comm.Device(), values)
		if err != nil {
			return err
		}
		defer buffer.Close()
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		defer stream.Close()
		service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, service.Close()) }()
		channels, err := comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{OnStream: true})
		if err != nil {
			return err
		}

		half := uint64(4 * rank)
		port := channels.OnStream(stream, 0, peer)
		if err := errors.Join(
			port.PutWithSignal(half, half, 4),
			port.Wait(),  // the stream goes on when the peer's half is here
			port.Flush(), // and this rank's has left
		); err != nil {
			return err
		}
		if err := stream.Synchronize(ctx); err != nil {
			return err // if the peer failed, or did not signal, it says so
		}
		if err := gpu.CopyOut(values, buffer); err != nil {
			return err
		}
		if rank == 1 {
			fmt.Println("rank 1 has", values)
		}
		return comm.Barrier(ctx)
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: rank 1 has [10 11]
}
