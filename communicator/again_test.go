package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestCallMadeAgain has contexts end in each exchange of a call, on one rank, another and all, before and after their
// parts are sent. All ranks make the call again, and it works.
func TestCallMadeAgain(t *testing.T) {
	for ranks := 2; ranks <= 3; ranks++ {
		testgroup.RunLeaving(t, make([]communicator.Options, ranks), func(ctx context.Context, c *communicator.Communicator, l *testgroup.Leaver) error {
			b, err := c.Device().Alloc(64)
			if err != nil {
				return err
			}
			calls := []func() error{
				func() error { _, err := c.Share(ctx, b); return err },
				func() error { _, err := c.MemoryChannels(ctx, b, communicator.MemoryChannelOptions{}); return err },
				func() error { _, err := c.Pipes(ctx, communicator.PipeOptions{}); return err },
			}
			for who := range ranks + 1 {
				for _, sent := range []bool{false, true} {
					for call, do := range calls {
						for exchange, left := 1, true; left; exchange++ {
							leaves := 0
							if who == c.Rank() || who == ranks {
								leaves = exchange
							}
							if err := l.Again(leaves, sent, do); err != nil {
								return fmt.Errorf("contexts of %d end in exchange %d of call %d, sent %v: %w", who, exchange, call, sent, err)
							}
							told, err := c.AllGather(ctx, fmt.Append(nil, l.Left))
							if err != nil {
								return err
							}
							left = false
							for _, theirs := range told {
								left = left || string(theirs) == "true"
							}
						}
					}
				}
			}
			return b.Close()
		})
	}
}

// TestSplitAgain is TestCallMadeAgain for Split, whose ranks wait for each other at their new group's rendezvous.
func TestSplitAgain(t *testing.T) {
	for exchange := 1; exchange <= 2; exchange++ {
		for _, sent := range []bool{false, true} {
			testgroup.RunLeaving(t, []communicator.Options{{Timeout: time.Second}, {Timeout: time.Second}}, func(ctx context.Context, c *communicator.Communicator, l *testgroup.Leaver) error {
				leaves := 0
				if c.Rank() == 1 {
					leaves = exchange
				}
				var child *communicator.Communicator
				if err := l.Again(leaves, sent, func() error {
					made, err := c.Split(ctx, 0, 0)
					if err == nil {
						child = made
					}
					return err
				}); err != nil {
					return fmt.Errorf("the context of rank 1 ends in exchange %d, sent %v: %w", exchange, sent, err)
				}
				return errors.Join(child.Barrier(ctx), child.Close())
			})
		}
	}
}

// TestGroupAgain is TestCallMadeAgain for Group and HostGroup, which are made once: the last exchange goes on for a
// while when the context has ended, so that they work on all ranks or on none.
func TestGroupAgain(t *testing.T) {
	for _, sent := range []bool{false, true} {
		for exchange, left := 1, true; left && !t.Failed(); exchange++ {
			testgroup.RunLeaving(t, make([]communicator.Options, 2), func(ctx context.Context, c *communicator.Communicator, l *testgroup.Leaver) error {
				for _, do := range []func(context.Context) (devicecode.Group, error){c.Group, c.HostGroup} {
					leaves := 0
					if c.Rank() == 1 {
						leaves = exchange
					}
					if err := l.Again(leaves, sent, func() error {
						ctx, cancel := context.WithCancel(ctx)
						defer cancel()
						l.Ends = cancel
						_, err := do(ctx)
						return err
					}); err != nil {
						return fmt.Errorf("the context of rank 1 ends in exchange %d, sent %v: %w", exchange, sent, err)
					}
				}
				if c.Rank() == 1 {
					left = l.Left
				}
				return c.Barrier(ctx)
			})
		}
	}
}
