package channel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// TestStalePost has a rank send, without checks, a long message which the other receives by calls of fewer
// bytes, so that these borrow nothing and post nothing. The lot that was posted for the message before is
// another's by then, whose bytes stay as they were.
func TestStalePost(t *testing.T) {
	for _, ports := range []bool{false, true} {
		t.Run(fmt.Sprintf("ports=%v", ports), func(t *testing.T) {
			pipeConfig{slots: 2, slotBytes: 128, shared: true, common: 2 << 20, ports: ports}.stale(t)
		})
	}
}

// stale has a message borrow the receiver's only lot, another have it next, and the same message sent again.
func (c pipeConfig) stale(t *testing.T) {
	t.Helper()
	preload(t, "pipe_test.cu", pipeSource, "UNCHECKED")
	c.run(t, 2, func(ctx context.Context, comm *communicator.Communicator) error {
		module, err := devicecode.Load(ctx, comm.Device(), "pipe_test.cu", pipeSource, devicecode.Options{Defines: []string{"UNCHECKED"}})
		if err != nil {
			return err
		}
		one, err1 := module.Kernel("one")
		lend, err2 := module.Kernel("lend")
		stream, err3 := comm.NewStream()
		memory, err4 := gpu.Upload(comm.Device(), make([]byte, 5*c.slotBytes))
		lots, err5 := gpu.Upload(comm.Device(), make([]uint64, 2))
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return err
		}
		o, kind, chunks := communicator.PipeOptions{To: []int{1}}, opSend, []int{5}
		if comm.Rank() == 1 {
			o, kind, chunks = communicator.PipeOptions{From: []int{0}}, opRecv, []int{2, 2, 1}
		}
		p, end, err := c.pipes(ctx, comm, o)
		if err != nil {
			return err
		}
		pass := func(chunks int) error {
			return one.Launch(stream, gpu.Blocks(1, 32), p.Set(), kind, chunks*c.slotBytes, memory)
		}
		another := func(begins int) error {
			if comm.Rank() == 0 {
				return nil
			}
			return lend.Launch(stream, gpu.Blocks(1, 1), p.Set(), begins, lots)
		}
		if err := errors.Join(pass(5), another(1), stream.Synchronize(ctx), comm.Barrier(ctx)); err != nil {
			return err
		}
		for _, n := range chunks {
			if err := pass(n); err != nil {
				return err
			}
		}
		if err := errors.Join(stream.Synchronize(ctx), comm.Barrier(ctx), another(0), stream.Synchronize(ctx)); err != nil {
			return err
		}
		words := make([]uint64, 2)
		if err := gpu.CopyOut(words, lots); err != nil {
			return err
		}
		if words[1] != 0 || (words[0] == 0) != (comm.Rank() == 0) {
			return fmt.Errorf("%d words of another message's lot, at %#x, were overwritten", words[1], words[0])
		}
		return end()
	})
}
