package communicator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// A wait for a peer that may be stopped ends when the group fails, long before its time-out.
func TestWaitForPeerEndsWithGroup(t *testing.T) {
	dev := testerr.Must(gpu.Open("emu:0"))(t)
	defer dev.Close()
	RunTogether(t.Context(), []*gpu.Device{dev}, Options{Timeout: time.Hour}, func(ctx context.Context, c *Communicator) error {
		bounded, cancel := c.bounded(ctx)
		defer cancel()
		if bounded.Err() != nil {
			t.Error("the wait has ended before it began")
		}
		c.Abort(errors.New("the test ends the group"))
		select {
		case <-bounded.Done():
		case <-time.After(time.Minute):
			t.Error("the group has failed, and the wait goes on")
		}
		return nil
	})
}
