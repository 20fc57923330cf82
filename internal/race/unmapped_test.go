package race_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// TestUnmapped runs the collectives that there are where ranks do not map each other's memory: over
// InfiniBand where there are devices to test with, and else over Ethernet.
func TestUnmapped(t *testing.T) {
	transports := portTransports()
	for _, r := range runOver(t, transports[len(transports)-1], unmapped) {
		t.Errorf("%v", r)
	}
}

// unmapped makes all calls one behind the other, on one stream, each of what the one before it left, and
// checks an all-reduce.
func unmapped(ctx context.Context, comm *communicator.Communicator) error {
	const count = 1000
	n := comm.Size()
	values := make([]int32, count*n)
	for i := range values {
		values[i] = int32(i)
	}
	in, err := gpu.Upload(comm.Device(), values)
	if err != nil {
		return err
	}
	out, err := comm.Device().Alloc(in.Size())
	if err != nil {
		return err
	}
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	runner, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return err
	}
	const i32, sum = collective.I32, collective.Sum
	err = errors.Join(
		runner.AllGather(stream, out, in, count, i32),
		runner.AllToAll(stream, in, out, count, i32),
		runner.SendReceive(stream, out, in, count, i32),
		runner.Broadcast(stream, in, out, count, i32, 1),
		runner.ReduceScatter(stream, out, in, count, i32, sum),
		runner.Reduce(stream, in, out, count, i32, sum, 1),
		runner.Gather(stream, out, in, count, i32, 0),
		runner.Scatter(stream, in, out, count, i32, 0),
		runner.AllToAllV(stream, out, in, []uint64{count, count}, []uint64{count, count}, i32),
	)
	if err = errors.Join(err, comm.Synchronize(ctx, stream), gpu.CopyIn(in, values)); err != nil {
		return err
	}
	err = errors.Join(runner.AllReduce(stream, out, in, uint64(len(values)), i32, sum), comm.Synchronize(ctx, stream), gpu.CopyOut(values, out))
	for i, v := range values {
		if err == nil && v != int32(i*n) {
			err = fmt.Errorf("word %d of the sum is %d", i, v)
		}
	}
	return err
}
