package communicator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Run joins the group of the environment as [Join] does, calls rank, and closes the
// communicator. If rank returns an error, Run aborts the group with it, and also if it panics or calls
// [runtime.Goexit], as FailNow of a test does. Under mscclgo explore it runs all ranks, as goroutines.
func Run(ctx context.Context, o Options, rank func(context.Context, *Communicator) error) error {
	if x, err := explore.FromEnv(); err != nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, "communicator: run a rank", "%w", err)
	} else if x.Ranks() > 0 {
		return runLocal(ctx, x.Ranks(), "emu", o, rank)
	}
	comm, err := Join(ctx, o)
	if err != nil {
		return err
	}
	return runRank(ctx, comm, rank)
}

// errExited is of a function that [runtime.Goexit] ended.
var errExited = errors.New("its function was ended by runtime.Goexit, which FailNow of a test calls too")

func runRank(ctx context.Context, comm *Communicator, rank func(context.Context, *Communicator) error) error {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil { // what held locks may hold them still: nothing is closed
			comm.Abort(fmt.Errorf("its function panicked: %v", p))
			panic(p)
		}
		comm.Abort(errExited)
		comm.Close()
	}()
	err := rank(ctx, comm)
	returned = true
	if err != nil {
		comm.Abort(err)
	}
	return errors.Join(err, comm.Close())
}

// Local runs a group of n ranks that are goroutines of this process, on devices that it
// opens and closes: "emu" or "cuda" takes the devices of the kind in turn, "auto" the GPUs
// if there are any, and a name such as "cuda:0" is one device that all ranks share; see
// [gpu.Assign]. Otherwise it is like [RunTogether].
//
// Errors: ErrInvalid for fewer than one rank; as for [gpu.Assign], [gpu.Open] and
// [RunTogether].
func Local(ctx context.Context, n int, device string, rank func(context.Context, *Communicator) error) error {
	return runLocal(ctx, n, device, Options{}, rank)
}

func runLocal(ctx context.Context, n int, device string, o Options, rank func(context.Context, *Communicator) error) (err error) {
	if n < 1 {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: run ranks", "%d ranks are asked for, and a group has one at least", n)
	}
	devices := make([]*gpu.Device, n)
	defer func() {
		for _, d := range devices {
			err = errors.Join(err, d.Close())
		}
	}()
	for i := range devices {
		name, err := gpu.Assign(device, i)
		if err != nil {
			return err
		}
		if devices[i], err = gpu.Open(name); err != nil {
			return err
		}
	}
	return RunTogether(ctx, devices, o, rank)
}

// fewRanks of a process each have a thread for a proxy service, and need not ask
// whether the process may open enough files.
const fewRanks = 16

// RunTogether runs a group whose ranks are goroutines of this process, one for each
// device. It calls rank for each of them, and returns when all have returned. Ranks
// may share a device, on which their kernels then run concurrently. The devices remain
// the caller's. If rank returns an error, RunTogether aborts the group; the errors
// that it returns name the ranks. Options.HeartbeatTimeout has no effect, and more than 16 ranks share
// the threads of their proxy services as if Options.Threads were set.
func RunTogether(ctx context.Context, devices []*gpu.Device, o Options, rank func(context.Context, *Communicator) error) error {
	if err := errors.Join(enoughFiles(len(devices)), traceFromEnv(&o), deadlocksFromEnv(&o)); err != nil {
		return err
	}
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", o.Logger)
	if err != nil {
		return err
	}
	defer rendezvous.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Ranks of one process are stopped together, so none is silent to another. If hundreds have
	// few cores, some may have none for seconds.
	o.HeartbeatTimeout = -1
	o.process = new(inside.Process[*registeredmem.Registry])
	if o.Threads == nil && len(devices) > fewRanks {
		o.Threads = new(proxyservice.Threads)
	}
	errs := make([]error, len(devices))
	for i := range errs {
		errs[i] = fmt.Errorf("rank %d: %w", i, errExited) // unless it returns
	}
	turns := explore.Current().Group(len(devices))
	defer turns.End()
	var all sync.WaitGroup
	for i, d := range devices {
		all.Go(func() {
			config := bootstrap.Options{Rank: i, Size: len(devices), ID: rendezvous.ID(), HeartbeatTimeout: o.HeartbeatTimeout, Logger: o.Logger}
			boot, err := bootstrap.Connect(ctx, config)
			if err != nil {
				cancel() // there is no group yet that could notify the others
				turns.Missing(i, err)
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
				return
			}
			defer boot.Close()
			comm, err := New(ctx, boot, d, o)
			if err != nil {
				boot.Abort(err)
				turns.Missing(i, err)
			} else {
				err = runRank(ctx, comm, func(ctx context.Context, comm *Communicator) (err error) {
					turns.Enter(i)
					defer func() { turns.Leave(i, err) }()
					return rank(ctx, comm)
				})
			}
			if errs[i] = err; err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
