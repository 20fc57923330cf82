package communicator

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestFailureToldOnce has a rank's part of a call fail because of what has failed the group: the error has it once.
func TestFailureToldOnce(t *testing.T) {
	failed := errors.New("no descriptor is left")
	err := RunTogether(t.Context(), []*gpu.Device{testdev.Open(t, 0)}, Options{}, func(ctx context.Context, c *Communicator) error {
		c.Abort(failed)
		return c.begin("test", "communicator: test").agree(ctx, failed)
	})
	if !errors.Is(err, failed) || strings.Count(err.Error(), failed.Error()) != 1 {
		t.Errorf("the error does not tell once of %q: %v", failed, err)
	}
}
