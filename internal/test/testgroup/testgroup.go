// Package testgroup runs the ranks of a group as goroutines of a test, each
// with a communicator on a device of its own, or on one they share.
package testgroup

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// limit and limitOfRank bound a whole group, so that a deadlock is a failed test. Options without a time-out get
// defaultTimeout: on a busy machine kernels of many threads wait for longer than users' kernels do.
const (
	limit          = 3 * time.Minute
	limitOfRank    = 2 * time.Second
	defaultTimeout = 2 * time.Minute
)

// Run calls rank in a goroutine for each of n ranks and waits for all. An error
// of one is an error of the test, and reaches the others through the group.
func Run(t testing.TB, n int, o communicator.Options, rank func(ctx context.Context, c *communicator.Communicator) error) {
	t.Helper()
	RunOn(t, Devices(t, n), o, rank)
}

// Devices opens the devices of n ranks.
func Devices(t testing.TB, n int) []*gpu.Device {
	t.Helper()
	devices := make([]*gpu.Device, n)
	for i := range devices {
		devices[i] = testdev.Open(t, i)
	}
	return devices
}

// RunOn is Run with a device for each rank.
func RunOn(t testing.TB, devices []*gpu.Device, o communicator.Options, rank func(ctx context.Context, c *communicator.Communicator) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Duration(len(devices))*limitOfRank)
	defer cancel()
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if err := communicator.RunTogether(ctx, devices, o, rank); err != nil {
		t.Errorf("%v", err)
	}
}

// RunEach runs ranks, each with its options, such as transports. Ranks import memory as ranks of
// several processes do.
func RunEach(t testing.TB, o []communicator.Options, rank func(ctx context.Context, c *communicator.Communicator) error) {
	t.Helper()
	for i, err := range Errors(t, o, rank) {
		if err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// Errors is RunEach for ranks of which some are to fail: it returns each one's error.
func Errors(t testing.TB, o []communicator.Options, rank func(ctx context.Context, c *communicator.Communicator) error) []error {
	t.Helper()
	return errorsOver(t, o, nil, rank)
}

// errorsOver is Errors over what wrap makes of each rank's bootstrap, if it is not nil.
func errorsOver(t testing.TB, o []communicator.Options, wrap func(*bootstrap.Bootstrap) communicator.Bootstrap, rank func(ctx context.Context, c *communicator.Communicator) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Duration(len(o))*limitOfRank)
	defer cancel()
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rendezvous.Close()
	var all sync.WaitGroup
	errs := make([]error, len(o))
	for i, d := range Devices(t, len(o)) {
		all.Go(func() {
			errs[i] = runOne(ctx, cancel, bootstrap.Options{Rank: i, Size: len(o), ID: rendezvous.ID(), HeartbeatTimeout: -1}, d, o[i], wrap, rank)
		})
	}
	all.Wait()
	return errs
}

// runOne runs a rank. cancel ends the others if it does not reach them.
func runOne(ctx context.Context, cancel func(), config bootstrap.Options, d *gpu.Device, o communicator.Options, wrap func(*bootstrap.Bootstrap) communicator.Bootstrap, rank func(context.Context, *communicator.Communicator) error) error {
	boot, err := bootstrap.Connect(ctx, config)
	if err != nil {
		cancel()
		return err
	}
	defer boot.Close()
	o.HeartbeatTimeout = -1 // ranks of one process are stopped together
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	var over communicator.Bootstrap = boot
	if wrap != nil {
		over = wrap(boot)
	}
	comm, err := communicator.New(ctx, over, d, o)
	if err != nil {
		boot.Abort(err)
		return err
	}
	if err = rank(ctx, comm); err != nil {
		comm.Abort(err)
	}
	return errors.Join(err, comm.Close())
}
