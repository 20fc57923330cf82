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

// lotSlot is the size of the slots, in bytes. A message has two.
const lotSlot = 256

// lotRank is one of two ranks: rank 0 sends a message by a pipe with one slot, and rank 1 sends it on by a port.
type lotRank struct {
	kernel         *gpu.Kernel
	stream         *gpu.Stream
	memory, result *gpu.Buffer // memory has the message
	service        *proxyservice.ProxyService
	first, onward  *communicator.Pipes
}

// newLotRank makes what a rank needs. Collective.
func newLotRank(ctx context.Context, comm *communicator.Communicator, kernel string, content byte, o proxyservice.ServiceOptions) (r *lotRank, err error) {
	r = &lotRank{}
	if r.kernel, r.result, err = loaded(ctx, comm, "pipe_test.cu", pipeSource, kernel, "UNCHECKED"); err != nil {
		return nil, err
	}
	if r.stream, err = comm.NewStream(); err != nil {
		return nil, err
	}
	if r.memory, err = gpu.Upload(comm.Device(), bytes.Repeat([]byte{content}, 2*lotSlot)); err != nil {
		return nil, err
	}
	if r.service, err = comm.ProxyService(ctx, o); err != nil {
		return nil, err
	}
	first := communicator.PipeOptions{Shared: true, Size: channel.PipeSize{Slots: 1, SlotBytes: lotSlot}}
	onward := communicator.PipeOptions{Ports: true, Service: r.service, Size: channel.PipeSize{Slots: 4, SlotBytes: lotSlot}}
	first.To, onward.From = []int{1}, []int{1}
	if comm.Rank() == 1 {
		first.To, first.From, onward.To, onward.From = nil, []int{0}, []int{0}, nil
	}
	if r.first, err = comm.Pipes(ctx, first); err != nil {
		return nil, err
	}
	r.onward, err = comm.Pipes(ctx, onward)
	return r, err
}

// close closes the service, which fails with the group, and the pipes.
func (r *lotRank) close() error {
	_ = r.service.Close()
	return errors.Join(r.onward.Close(), r.first.Close())
}

// TestLotOfFailedForward has a rank receive all of a message by a lot, and not be able to send the end of it on,
// as its host is busy. When the pipes are closed, the lot is back in the pool.
func TestLotOfFailedForward(t *testing.T) {
	preload(t, "pipe_test.cu", pipeSource, "UNCHECKED") // checks push triggers of their own
	err := failing(t, func(ctx context.Context, comm *communicator.Communicator) error {
		if comm.Rank() == 0 {
			return sendAndEnd(ctx, comm)
		}
		// The trigger that the host is busy with and the first chunk's fill the ring.
		r, err := newLotRank(ctx, comm, "forward", 0, proxyservice.ServiceOptions{
			RingSize: 2, Direct: channel.HostOnly,
			Handler: func(ctx context.Context, _ fifo.Trigger) error {
				<-ctx.Done()
				return ctx.Err()
			},
		})
		if err != nil {
			return err
		}
		failure := errors.Join(
			r.kernel.Launch(r.stream, gpu.Blocks(1, 32), r.first.Set(), r.onward.Set(), 2*lotSlot, r.memory, r.result),
			r.stream.Synchronize(ctx))
		got, word := make([]byte, 2*lotSlot), make([]uint32, 1)
		if err := errors.Join(gpu.CopyOut(got, r.memory), gpu.CopyOut(word, r.result)); err != nil {
			return err
		}
		if n := bytes.Count(got, []byte{7}); devicecode.WaitResult(word[0]) == devicecode.WaitDone || n != len(got) {
			t.Errorf("the call ended as %v, with %d of %d bytes received", devicecode.WaitResult(word[0]), n, len(got))
		}
		before, err := comm.PipePool()
		if err != nil || before.Lent != 1 {
			t.Errorf("the pool says %+v (%v), and a lot is lent", before, err)
		}
		testerr.Report(t, r.close())
		if after, err := comm.PipePool(); err != nil || after.Lent != 0 {
			t.Errorf("with the pipes closed the pool says %+v (%v)", after, err)
		}
		return failure
	}, communicator.Options{Timeout: 2 * time.Second})
	testerr.Expect(t, err, mscclgo.ErrTimeout)
}

// sendAndEnd is the part of the rank that sends, and that the message would go on to.
func sendAndEnd(ctx context.Context, comm *communicator.Communicator) error {
	r, err := newLotRank(ctx, comm, "one", 7, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	if err := r.kernel.Launch(r.stream, gpu.Blocks(1, 32), r.first.Set(), opSend, 2*lotSlot, r.memory); err != nil {
		return err
	}
	if err := r.stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("the message was not sent: %w", err)
	}
	<-comm.Done()
	return errors.Join(comm.Err(), r.close())
}
