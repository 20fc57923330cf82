package sample

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// RunTogether is Run with ranks that are goroutines of this process, one for each
// device named. Those that share a GPU run on it at the same time; processes would
// take turns. MSCCLGO_TRANSPORTS overrides o.Transports, as it does for processes.
func RunTogether(devices []string, o communicator.Options, timeout time.Duration, run func(ctx context.Context, comm *communicator.Communicator) error) (err error) {
	if o.Transports, err = registeredmem.TransportsFromEnv(o.Transports); err != nil {
		return err
	}
	ctx, end := interruptible(context.Background())
	defer end()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var open []*gpu.Device
	defer func() {
		for _, d := range open {
			err = errors.Join(err, d.Close())
		}
	}()
	for _, name := range devices {
		d, err := gpu.Open(name)
		if err != nil {
			return err
		}
		open = append(open, d)
	}
	return Group(ctx, open, o, run)
}

// Group calls rank in a goroutine for each device, with a communicator that is
// closed behind it, and waits for all. What fails on one rank ends the others; the
// error names the ranks.
func Group(ctx context.Context, devices []*gpu.Device, o communicator.Options, rank func(ctx context.Context, comm *communicator.Communicator) error) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", o.Logger)
	if err != nil {
		return err
	}
	defer rendezvous.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(devices))
	var all sync.WaitGroup
	for i, d := range devices {
		all.Go(func() {
			options := bootstrap.Options{Rank: i, Size: len(devices), ID: rendezvous.ID(), Logger: o.Logger}
			boot, err := bootstrap.Connect(ctx, options)
			if err != nil {
				cancel() // nobody hears of it through the group
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
				return
			}
			defer boot.Close()
			comm, err := communicator.New(ctx, boot, d, o)
			if err != nil {
				boot.Abort(err)
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
				return
			}
			if err = rank(ctx, comm); err != nil {
				comm.Abort(err)
			}
			if err = errors.Join(err, comm.Close()); err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
