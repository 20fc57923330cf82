package collective

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// BenchmarkBulk times collectives by bulk copies with few blocks and with several rings, beside
// direct. It reports the size over the time, in GB/s. With MSCCLGO_TEST_DEVICE=cuda it is for
// two GPUs.
func BenchmarkBulk(b *testing.B) {
	size, iters, blocks := uint64(64<<10), 1, []int{4}
	rings := []bulkRing{{}, defaultBulkRing}
	if testdev.CUDA() {
		size, iters, blocks = 256<<20, 20, []int{1, 2, 4, 8, 12, 16, 32}
		rings = []bulkRing{{}, {3, 32 << 10}, {4, 8 << 10}, {4, 16 << 10}, {4, 32 << 10}, {6, 8 << 10}, {6, 16 << 10}, {6, 32 << 10}, {8, 8 << 10}, {12, 16 << 10}}
	}
	for _, kind := range []Kind{SendReceive, AllGather, AllToAll, Broadcast} {
		for _, ring := range rings {
			name := "direct"
			if ring.stages > 0 {
				name = fmt.Sprintf("%dx%dK", ring.stages, ring.stage>>10)
			}
			for _, blocks := range blocks {
				b.Run(fmt.Sprintf("%v/%s/%d", kind, name, blocks), func(b *testing.B) {
					testgroup.Run(b, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
						took, err := timeBulk(ctx, comm, kind, ring, blocks, size, iters)
						if comm.Rank() == 0 && err == nil {
							b.ReportMetric(float64(size)/float64(took.Nanoseconds()), "GB/s")
							b.ReportMetric(0, "ns/op")
						}
						return err
					})
				})
			}
		}
	}
}

// timeBulk returns the least time of a collective, by direct if the ring has no stages.
func timeBulk(ctx context.Context, comm *communicator.Communicator, kind Kind, ring bulkRing, blocks int, size uint64, iters int) (least time.Duration, err error) {
	runner, err := New(ctx, comm, Options{})
	if err != nil {
		return 0, err
	}
	c := Call{Kind: kind, Type: F16, Count: size / 2 / uint64(kind.Parts(comm.Size())), Overlap: true, Choice: Choice{"direct", blocks, 512}}
	if ring.stages > 0 {
		runner.rings, c.Choice = ring, Choice{"bulk", blocks, 128}
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return 0, err
	}
	var buffers [2]*gpu.Buffer
	for i, m := range []**Memory{&c.In, &c.Out} {
		if buffers[i], err = comm.Device().Alloc(size); err != nil {
			return 0, err
		}
		if *m, err = runner.Share(ctx, buffers[i]); err != nil {
			return 0, err
		}
	}
	op, err := runner.Prepare(ctx, c)
	if err != nil {
		return 0, err
	}
	for round := range 4 { // the first warms up
		if err := comm.Barrier(ctx); err != nil {
			return 0, err
		}
		start := time.Now()
		for range iters {
			if err := op.Launch(stream); err != nil {
				return 0, err
			}
		}
		if err := comm.Synchronize(ctx, stream); err != nil {
			return 0, err
		}
		if took := time.Since(start) / time.Duration(iters); round == 1 || round > 1 && took < least {
			least = took
		}
	}
	return least, errors.Join(stream.Close(), runner.Close(ctx), buffers[0].Close(), buffers[1].Close())
}
