package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestCallsBehindOneThatFails has rank 0 not make a call for which the others have queued more behind it, of other
// counts: what these send once the first has failed is not taken for the first one's.
func TestCallsBehindOneThatFails(t *testing.T) {
	o := communicator.Options{Timeout: time.Second, Scratch: 256 << 10}
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("one host/late %v", late), func(t *testing.T) {
			testgroup.Run(t, 4, o, func(ctx context.Context, comm *communicator.Communicator) error {
				return callsBehind(ctx, comm, late)
			})
		})
		for _, hosts := range [][]int{{0, 1, 2, 3}, {0, 1, 2, 2}} {
			t.Run(fmt.Sprintf("hosts %v/late %v", hosts, late), func(t *testing.T) {
				each := testgroup.Network(hosts...)
				for rank := range each {
					each[rank].Timeout = o.Timeout
				}
				testgroup.RunEach(t, each, func(ctx context.Context, comm *communicator.Communicator) error {
					return callsBehind(ctx, comm, late)
				})
			})
		}
	}
}

// callsBehind is one rank's part. Late, ranks 2 and 3 come to the calls when rank 1 waits already.
func callsBehind(ctx context.Context, comm *communicator.Communicator, late bool) error {
	rank, ranks := comm.Rank(), comm.Size()
	runner, err := New(ctx, comm, Options{})
	if err != nil {
		return err
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return err
	}
	const most = 1000
	buffers := make([]*gpu.Buffer, 2)
	for i := range buffers {
		if buffers[i], err = comm.Device().Alloc(uint64(most * ranks * 4)); err != nil {
			return err
		}
	}
	// Rank 0 exchanges data with rank 1 alone, so that the others go on.
	call := func(count uint64) error {
		counts := slices.Repeat([]uint64{count}, ranks)
		if rank == 0 {
			counts = make([]uint64, ranks)
			counts[1] = count
		} else if rank > 1 {
			counts[0] = 0
		}
		return runner.AllToAllV(stream, buffers[0], buffers[1], counts, counts, F32)
	}
	if err := errors.Join(call(5), call(most), comm.Synchronize(ctx, stream), comm.Barrier(ctx)); err != nil {
		return err
	}
	if late && rank > 1 {
		time.Sleep(300 * time.Millisecond)
	}
	if rank > 0 {
		for _, count := range []uint64{5, 7, most, 0, 3} {
			if err := call(count); err != nil && comm.Err() == nil {
				return err
			}
		}
	}
	<-comm.Done()
	err = comm.Err()
	var e *mscclgo.Error
	errors.As(err, &e)
	if rank > 0 && e.Peer == 0 {
		err = nil
	}
	if rank == 0 && errors.Is(err, mscclgo.ErrTimeout) && e.Peer == mscclgo.NoRank {
		err = nil
	}
	stream.Synchronize(ctx)
	_ = runner.Close(ctx)
	return err
}
