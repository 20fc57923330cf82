package channel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// TestLotOfFailedForward has a rank receive all of a message by a lot, and not be able to send the end of it on,
// as its host is busy. When the pipes are closed, the lot is back in the pool.
func TestLotOfFailedForward(t *testing.T) {
	const slotBytes = 256
	preload(t, "pipe_test.cu", pipeSource, "UNCHECKED") // checks push triggers of their own
	err := failing(t, func(ctx context.Context, comm *communicator.Communicator) error {
		if comm.Rank() == 0 {
			return sendAndEnd(ctx, comm, slotBytes)
		}
		kernel, result, err := loaded(ctx, comm, "pipe_test.cu", pipeSource, "forward", "UNCHECKED")
		if err != nil {
			return err
		}
		stream, err1 := comm.NewStream()
		memory, err2 := gpu.Upload(comm.Device(), make([]byte, 2*slotBytes))
		// The trigger that the host is busy with and the first chunk's fill the ring.
		service, err3 := comm.ProxyService(ctx, proxyservice.ServiceOptions{
			RingSize: fifo.MinSize, Direct: channel.HostOnly,
			Handler: func(ctx context.Context, _ fifo.Trigger) error {
				<-ctx.Done()
				return ctx.Err()
			},
		})
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		in, err := comm.Pipes(ctx, communicator.PipeOptions{From: []int{0}, Shared: true, Size: channel.PipeSize{Slots: 1, SlotBytes: slotBytes}})
		if err != nil {
			return err
		}
		out, err := comm.Pipes(ctx, communicator.PipeOptions{To: []int{0}, Ports: true, Service: service, Size: channel.PipeSize{Slots: 4, SlotBytes: slotBytes}})
		if err != nil {
			return err
		}
		failure := errors.Join(
			kernel.Launch(stream, gpu.Blocks(1, 32), in.Set(), out.Set(), 2*slotBytes, memory, result),
			stream.Synchronize(ctx))
		got, word := make([]byte, 2*slotBytes), make([]uint32, 1)
		if err := errors.Join(gpu.CopyOut(got, memory), gpu.CopyOut(word, result)); err != nil {
			return err
		}
		if n := bytes.Count(got, []byte{7}); devicecode.WaitResult(word[0]) == devicecode.WaitDone || n != len(got) {
			t.Errorf("the call ended as %v, with %d of %d bytes received", devicecode.WaitResult(word[0]), n, len(got))
		}
		before, err := comm.PipePool()
		if err != nil || before.Lent != 1 {
			t.Errorf("the pool says %+v (%v), and a lot is lent", before, err)
		}
		// The service fails with the group.
		_ = service.Close()
		if err := errors.Join(out.Close(), in.Close()); err != nil {
			t.Error(err)
		}
		if after, err := comm.PipePool(); err != nil || after.Lent != 0 {
			t.Errorf("with the pipes closed the pool says %+v (%v)", after, err)
		}
		return failure
	}, communicator.Options{Timeout: 2 * time.Second})
	testerr.Expect(t, err, mscclgo.ErrTimeout)
}

// sendAndEnd is the part of the rank that sends, and that the message would go on to.
func sendAndEnd(ctx context.Context, comm *communicator.Communicator, slotBytes uint64) error {
	kernel, _, err := loaded(ctx, comm, "pipe_test.cu", pipeSource, "one", "UNCHECKED")
	if err != nil {
		return err
	}
	stream, err1 := comm.NewStream()
	memory, err2 := gpu.Upload(comm.Device(), bytes.Repeat([]byte{7}, int(2*slotBytes)))
	service, err3 := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	defer service.Close()
	out, err := comm.Pipes(ctx, communicator.PipeOptions{To: []int{1}, Shared: true, Size: channel.PipeSize{Slots: 1, SlotBytes: slotBytes}})
	if err != nil {
		return err
	}
	in, err := comm.Pipes(ctx, communicator.PipeOptions{From: []int{1}, Ports: true, Service: service, Size: channel.PipeSize{Slots: 4, SlotBytes: slotBytes}})
	if err != nil {
		return err
	}
	if err := kernel.Launch(stream, gpu.Blocks(1, 32), out.Set(), opSend, 2*slotBytes, memory); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("the message was not sent: %w", err)
	}
	<-comm.Done()
	return errors.Join(comm.Err(), in.Close(), out.Close())
}
