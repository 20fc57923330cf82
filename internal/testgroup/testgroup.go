// Package testgroup runs the ranks of a group as goroutines of a test, each
// with a communicator on a device of its own, or on one they share.
package testgroup

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/testdev"
)

// limit bounds a whole group, so that a deadlock is a failed test.
const limit = 3 * time.Minute

// Run calls rank in a goroutine for each of n ranks and waits for all. An error
// of one is an error of the test; the others then hear of it through the group.
func Run(t testing.TB, n int, o communicator.Options, rank func(ctx context.Context, c *communicator.Communicator) error) {
	t.Helper()
	devices := make([]*gpu.Device, n)
	for i := range devices {
		devices[i] = testdev.Open(t, i)
	}
	RunOn(t, devices, o, rank)
}

// RunOn is Run with a device for each rank.
func RunOn(t testing.TB, devices []*gpu.Device, o communicator.Options, rank func(ctx context.Context, c *communicator.Communicator) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer rendezvous.Close()
	var wg sync.WaitGroup
	for i := range devices {
		wg.Go(func() {
			boot, err := bootstrap.Connect(ctx, bootstrap.Config{Rank: i, Size: len(devices), ID: rendezvous.ID(), Log: quiet})
			if err != nil {
				t.Errorf("rank %d: %v", i, err)
				return
			}
			defer boot.Close()
			c, err := communicator.New(ctx, boot, devices[i], o)
			if err != nil {
				t.Errorf("rank %d: %v", i, err)
				return
			}
			if err := rank(ctx, c); err != nil {
				t.Errorf("rank %d: %v", i, err)
				c.Abort(err)
			}
			if err := c.Close(); err != nil {
				t.Errorf("rank %d: close: %v", i, err)
			}
		})
	}
	wg.Wait()
}
