package collective_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestReform has ranks all-reduce, fail, and all-reduce with new runners in the group that
// follows: prepared calls and those on any buffer.
func TestReform(t *testing.T) {
	const n = 3
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	server := testerr.Must(bootstrap.NewElastic("127.0.0.1:0", bootstrap.ElasticOptions{Min: n, Max: n}))(t)
	defer server.Close()
	var ranks sync.WaitGroup
	for i := range n {
		device := testdev.Open(t, i)
		ranks.Go(func() {
			if err := reforms(ctx, server.ID(), device); err != nil {
				t.Errorf("rank on %v: %v", device, err)
				cancel()
			}
		})
	}
	ranks.Wait()
}

// reforms is one rank through two generations.
func reforms(ctx context.Context, id bootstrap.UniqueID, device *gpu.Device) error {
	member, err := bootstrap.NewMember(bootstrap.Options{ID: id})
	if err != nil {
		return err
	}
	defer member.Close()
	boot, err := member.Next(ctx)
	if err != nil {
		return err
	}
	defer boot.Close()
	comm, err := communicator.New(ctx, boot, device, communicator.Options{})
	if err != nil {
		return err
	}
	stream, err := device.NewStream()
	if err != nil {
		return err
	}
	data, err := device.Alloc(4 * 3000)
	if err != nil {
		return err
	}
	runner, err := sums(ctx, comm, stream, data)
	if err != nil {
		return err
	}
	// The others tell rank 1 that they are done; a call of all might fail with it.
	if comm.Rank() != 1 {
		err = boot.Send(ctx, 1, 1, nil)
	} else {
		for _, peer := range []int{0, 2} {
			_, failed := boot.Recv(ctx, peer, 1)
			err = errors.Join(err, failed)
		}
		comm.Abort(errors.New("the disk is full"))
	}
	if err != nil {
		return err
	}
	<-comm.Done()
	next, err := member.Next(ctx)
	if err != nil {
		return err
	}
	defer next.Close()
	if comm, err = comm.Reform(ctx, next, stream); err != nil {
		return err
	}
	if err := runner.Close(ctx); err != nil {
		return fmt.Errorf("close the old runner: %w", err)
	}
	if runner, err = sums(ctx, comm, stream, data); err != nil {
		return fmt.Errorf("after the failure: %w", err)
	}
	return errors.Join(runner.Close(ctx), comm.Close(), stream.Close(), data.Close())
}

// sums all-reduces with a new runner, and checks the sums.
func sums(ctx context.Context, comm *communicator.Communicator, stream *gpu.Stream, data *gpu.Buffer) (*collective.Runner, error) {
	runner, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return nil, err
	}
	memory, err := runner.Share(ctx, data)
	if err != nil {
		return nil, err
	}
	count := data.Size() / 4
	op, err := runner.Prepare(ctx, collective.Call{Kind: collective.AllReduce, Type: collective.I32, Count: count, Out: memory, InPlace: true})
	if err != nil {
		return nil, err
	}
	for _, queue := range []func() error{
		func() error { return op.Launch(stream) },
		func() error { return runner.AllReduce(stream, data, data, count, collective.I32, collective.Sum) },
	} {
		values := make([]int32, count)
		for i := range values {
			values[i] = int32(i + comm.Rank())
		}
		if err := errors.Join(gpu.CopyIn(data, values), comm.Barrier(ctx), queue(), comm.Synchronize(ctx, stream), gpu.CopyOut(values, data)); err != nil {
			return nil, err
		}
		for i, got := range values {
			if want := int32(comm.Size()*i + comm.Size()*(comm.Size()-1)/2); got != want {
				return nil, fmt.Errorf("element %d is %d, not %d", i, got, want)
			}
		}
		if err := comm.Barrier(ctx); err != nil {
			return nil, err
		}
	}
	return runner, nil
}
