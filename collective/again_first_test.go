package collective

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestFirstCallMadeAgain has rank 1 come to a first call when rank 0 has given it up. Neither has queued it, and both
// make it again.
func TestFirstCallMadeAgain(t *testing.T) {
	testdev.Parallel(t) // it mostly waits
	gaveUp := make(chan struct{})
	testgroup.Run(t, 2, communicator.Options{Timeout: 3 * time.Second}, func(ctx context.Context, c *communicator.Communicator) error {
		r, err := New(ctx, c, Options{})
		if err != nil {
			return err
		}
		s, err := c.Device().NewStream()
		if err != nil {
			return err
		}
		b, err := gpu.Upload(c.Device(), []byte{1, 0, 0, 0})
		if err != nil {
			return err
		}
		call := func() error { return r.AllReduce(s, b, b, 1, I32, Sum) }
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
