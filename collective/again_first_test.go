package collective

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestFirstCallMadeAgain has rank 1 come to a first call when rank 0 has given it up. Neither has queued it, and both
// make it again.
func TestFirstCallMadeAgain(t *testing.T) {
	testdev.Parallel(t) // it mostly waits
	firstCallAgain(t, func(r *Runner, s *gpu.Stream, b *gpu.Buffer) error { return r.AllReduce(s, b, b, 1, I32, Sum) })
}

// TestFirstCallContext is TestFirstCallMadeAgain where a context ends the first calls.
func TestFirstCallContext(t *testing.T) {
	first := make([]atomic.Bool, 2)
	firstCallAgain(t, func(r *Runner, s *gpu.Stream, b *gpu.Buffer) error {
		ctx := t.Context()
		if !first[r.comm.Rank()].Swap(true) {
			ended, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			ctx = ended
		}
		return r.DoContext(ctx, s, b, b, Call{Kind: AllReduce, Type: I32, Op: Sum, Count: 1})
	})
}

func firstCallAgain(t *testing.T, do func(*Runner, *gpu.Stream, *gpu.Buffer) error) {
	gaveUp := make(chan struct{})
	testgroup.Run(t, 2, communicator.Options{Timeout: 3 * time.Second}, func(ctx context.Context, c *communicator.Communicator) error {
		r, err := New(ctx, c, Options{})
		testerr.Check(t, err)
		s := testerr.Must(c.Device().NewStream())(t)
		b := testerr.Must(gpu.Upload(c.Device(), []byte{1, 0, 0, 0}))(t)
		call := func() error { return do(r, s, b) }
		if c.Rank() == 1 {
			<-gaveUp
		}
		err = call()
		if c.Rank() == 0 {
			close(gaveUp)
		}
		if !errors.Is(err, mscclgo.ErrTimeout) {
			return fmt.Errorf("the first of two ranks' calls ended with %v", err)
		}
		var got [4]byte
		if err := errors.Join(call(), c.Synchronize(ctx, s), gpu.CopyOut(got[:], b)); err != nil || got[0] != 2 {
			return fmt.Errorf("the second call: %v, %w", got, err)
		}
		return errors.Join(r.Close(ctx), b.Close(), s.Close())
	})
}
