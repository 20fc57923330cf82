package collective_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// BenchmarkUnprepared times calls on any buffer beside prepared ones, of two ranks. It
// reports the times of one, in microseconds, and their ratio. With
// MSCCLGO_TEST_DEVICE=cuda it goes to 256 MiB.
func BenchmarkUnprepared(b *testing.B) {
	sizes := []uint64{1 << 10, 64 << 10}
	if testdev.CUDA() {
		sizes = []uint64{1 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20}
	}
	for _, kind := range []collective.Kind{collective.AllReduce, collective.AllGather, collective.ReduceScatter, collective.AllToAll, collective.SendReceive, collective.Broadcast} {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("%v/%s", kind, bytesize.Format(size)), func(b *testing.B) {
				testgroup.Run(b, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
					prepared, unprepared, err := bothWays(ctx, comm, kind, size)
					if comm.Rank() == 0 {
						b.ReportMetric(prepared, "prepared-us")
						b.ReportMetric(unprepared, "unprepared-us")
						b.ReportMetric(unprepared/prepared, "ratio")
					}
					return err
				})
			})
		}
	}
}

// bothWays returns the microseconds that a call takes, prepared and not.
func bothWays(ctx context.Context, comm *communicator.Communicator, kind collective.Kind, size uint64) (prepared, unprepared float64, err error) {
	runner, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return 0, 0, err
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return 0, 0, err
	}
	var buffers [2]*gpu.Buffer
	call := collective.Call{Kind: kind, Type: collective.F16, Count: size / 2 / uint64(kind.Parts(comm.Size())), Overlap: true}
	for i, m := range []**collective.Memory{&call.In, &call.Out} {
		if buffers[i], err = comm.Device().Alloc(size); err != nil {
			return 0, 0, err
		}
		if *m, err = runner.Share(ctx, buffers[i]); err != nil {
			return 0, 0, err
		}
	}
	op, err := runner.Prepare(ctx, call)
	if err != nil {
		return 0, 0, err
	}
	m := &member{ctx, comm, runner, stream}
	iters := int(max(4, min(200, (1<<31)/size)))
	if !testdev.CUDA() {
		iters = 4
	}
	for _, way := range []struct {
		launch func() error
		took   *float64
	}{
		{func() error { return op.Launch(stream) }, &prepared},
		{func() error { return m.runner.Do(stream, buffers[1], buffers[0], call) }, &unprepared},
	} {
		for round := range 4 { // the first warms up; the fastest counts
			if err := comm.Barrier(ctx); err != nil {
				return 0, 0, err
			}
			start := time.Now()
			for range iters {
				if err := way.launch(); err != nil {
					return 0, 0, err
				}
			}
			if err := comm.Synchronize(ctx, stream); err != nil {
				return 0, 0, err
			}
			took := float64(time.Since(start).Nanoseconds()) / 1e3 / float64(iters)
			if round == 1 || round > 1 && took < *way.took {
				*way.took = took
			}
		}
	}
	return prepared, unprepared, errors.Join(stream.Close(), runner.Close(ctx), buffers[0].Close(), buffers[1].Close())
}
