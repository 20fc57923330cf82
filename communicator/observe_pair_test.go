package communicator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestWaitForRankInConnect has ranks wait for a rank that waits in Connect for another. The other does not come,
// and is to blame; the rank that waits in Connect is not.
func TestWaitForRankInConnect(t *testing.T) {
	connect := func(ctx context.Context, c *communicator.Communicator, peer int) error {
		conn, err := c.Connect(ctx, peer, 7)
		if err == nil {
			conn.Close()
		}
		return err
	}
	for name, test := range map[string]struct {
		timeouts [2]time.Duration // of ranks 0 and 1
		first    func(ctx context.Context, c *communicator.Communicator) error
	}{
		"in Connect": {[2]time.Duration{verdictTimeout, time.Minute}, func(ctx context.Context, c *communicator.Communicator) error {
			return connect(ctx, c, 1)
		}},
		"in a barrier": {[2]time.Duration{verdictTimeout, time.Minute}, func(ctx context.Context, c *communicator.Communicator) error {
			return c.Barrier(ctx)
		}},
		"longer than that one": {[2]time.Duration{verdictTimeout + time.Second, verdictTimeout}, func(ctx context.Context, c *communicator.Communicator) error {
			return connect(ctx, c, 1)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			testdev.Parallel(t)
			over := make(chan struct{})
			comms := groupWith(t, []communicator.Options{{Timeout: test.timeouts[0]}, {Timeout: test.timeouts[1]}, {Timeout: time.Minute}})
			errs := outcomes(t, 3, func(rank int) error {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				switch rank {
				case 0:
					defer close(over)
					return test.first(ctx, comms[rank])
				case 1:
					if test.timeouts[1] == time.Minute {
						go func() { <-over; cancel() }()
					}
					return connect(ctx, comms[rank], 2)
				}
				<-over
				return nil
			})
			failing(t, 0, errs[0], mscclgo.ErrTimeout, "rank 0, peer 2", "rank 2 did not come", "for rank 2 to come to ")
			if test.timeouts[1] != time.Minute {
				failing(t, 1, errs[1], mscclgo.ErrTimeout, "rank 1, peer 2", "rank 2 did not come")
			}
		})
	}
}

// TestBriefExchange has the context of a rank end in a call before another has come to it, which is not late: the
// errors blame the rank that left the call.
func TestBriefExchange(t *testing.T) {
	comms := groupWith(t, make([]communicator.Options, 3))
	errs := outcomes(t, 3, func(rank int) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		switch rank {
		case 1:
			ctx, cancel = context.WithDeadline(t.Context(), time.Now())
			defer cancel()
		case 2:
			time.Sleep(100 * time.Millisecond)
		}
		return comms[rank].Barrier(ctx)
	})
	for rank, err := range errs {
		peer := fmt.Sprintf("rank %d, peer 1", rank)
		if rank == 1 {
			peer = "rank 1"
		}
		failing(t, rank, err, mscclgo.ErrTimeout, "communicator: barrier", peer, "before it began")
		if strings.Contains(err.Error(), "rank 2 did not come") {
			t.Errorf("rank %d blames rank 2: %v", rank, err)
		}
	}
}
