package communicator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/gpu"
)

// Run joins the group of the environment, as [Join] does, calls rank, and closes the
// communicator. An error of rank's ends the group: the other ranks get it too.
func Run(ctx context.Context, o Options, rank func(context.Context, *Communicator) error) error {
	comm, err := Join(ctx, o)
	if err != nil {
		return err
	}
	return runRank(ctx, comm, rank)
}

func runRank(ctx context.Context, comm *Communicator, rank func(context.Context, *Communicator) error) error {
	err := rank(ctx, comm)
	if err != nil {
		comm.Abort(err)
	}
	return errors.Join(err, comm.Close())
}

// RunTogether runs a group whose ranks are goroutines of this process, one for each
// device: it calls rank for each of them, and returns when all have returned. Ranks
// may share a device, where their kernels run at the same time. The devices stay the
// caller's. An error of one rank ends the group; the error returned names the ranks.
func RunTogether(ctx context.Context, devices []*gpu.Device, o Options, rank func(context.Context, *Communicator) error) error {
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
			config := bootstrap.Options{Rank: i, Size: len(devices), ID: rendezvous.ID(), Logger: o.Logger}
			boot, err := bootstrap.Connect(ctx, config)
			if err != nil {
				cancel() // the others do not hear of it through the group
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
				return
			}
			defer boot.Close()
			comm, err := New(ctx, boot, d, o)
			if err != nil {
				boot.Abort(err)
			} else {
				err = runRank(ctx, comm, rank)
			}
			if err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
