// Package testgroup runs the ranks of a group as goroutines of a test, each
// with a communicator on a device of its own, or on one they share.
package testgroup

import (
	"context"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// limit and limitOfRank bound a whole group, so that a deadlock is a failed test.
const (
	limit       = 3 * time.Minute
	limitOfRank = 2 * time.Second
)

// Run calls rank in a goroutine for each of n ranks and waits for all. An error
// of one is an error of the test, and reaches the others through the group.
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
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Duration(len(devices))*limitOfRank)
	defer cancel()
	if err := communicator.RunTogether(ctx, devices, o, rank); err != nil {
		t.Errorf("%v", err)
	}
}
