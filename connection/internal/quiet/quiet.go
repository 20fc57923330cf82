// Package quiet tells when a connection that has failed copies no more.
package quiet

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// Point is reached once nothing is copied any more.
type Point struct{ reached chan struct{} }

// New returns a point that is not reached.
func New() Point { return Point{make(chan struct{})} }

// Reach waits for streams, to which nothing is given any more, and reaches the point. It does not
// if drain ends first: a device that is stuck may copy yet. It is called once.
func (p Point) Reach(drain context.Context, streams ...*gpu.Stream) {
	for _, s := range streams {
		if err := s.Synchronize(drain); errors.Is(err, mscclgo.ErrAborted) {
			return
		}
	}
	close(p.reached)
}

// Wait waits until the point is reached.
//
// Errors: ErrTimeout and ErrAborted when ctx ends first.
func (p Point) Wait(ctx context.Context, op string) error {
	select {
	case <-p.reached:
		return nil
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, op, "the device still copies what was queued before the connection failed")
	}
}
