package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/deathwatch"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// Exit codes for when no rank returns one, as shells use them.
const (
	exitFailed    = 1
	exitUsage     = 2
	exitCannotRun = 126
	exitNotFound  = 127
)

// Run starts o.Ranks processes as the ranks of a new group and returns when all
// of them have ended and their output is written.
//
// Until then it forwards SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 from
// this process, which they do not affect, to all ranks. The first four are to end ranks,
// and so they continue ranks that are stopped. Options.Signals replaces these signals. When a
// rank fails, that is, ends by a signal or with a code other than 0, or when ctx ends, the
// ranks that still run get SIGTERM, and SIGKILL after Options.Grace. If a rank is
// stopped when all others have ended well, Run waits for it, and Options.Logger gets a
// record of it after [bootstrap.DefaultHeartbeatTimeout].
//
// The code is the one to exit with: 0 if all ranks ended with 0, the code of
// the rank that failed first (128+n if signal n ended it), 126 or 127 if the
// program cannot be run or found, 2 for invalid options, otherwise 1. The error is
// nil exactly if the code is 0. For a rank that failed it is an ErrRemote whose text
// includes how all ranks ended. Its Rank is the rank that the ranks blame for the failure
// of their group, such as a stopped rank that the others wait for until they exit. If their
// group did not fail, it is the rank that failed first. If a rank is stopped before it has
// joined, the ranks that wait for it are told so after their heartbeat time-out.
func Run(ctx context.Context, o Options) (code int, err error) {
	if err := o.check(); err != nil {
		return exitUsage, err
	}
	op := fmt.Sprintf("launcher: run %d ranks of %s", o.Ranks, o.Program)
	if _, err := exec.LookPath(o.Program); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return exitCannotRun, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
		}
		return exitNotFound, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
	}
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", o.Logger)
	if err != nil {
		return exitFailed, mscclgo.Errorf(mscclgo.ErrSystem, op, "listen for the ranks: %w", err)
	}
	defer rendezvous.Close()

	signals := o.Signals
	if signals == nil {
		caught, stop := catchSignals()
		defer stop()
		signals = caught
	}
	// The ranks die with the thread that starts them, so it must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	reports, err := watch.Listen(rendezvous.ID().Group())
	if err != nil {
		return exitFailed, mscclgo.Errorf(mscclgo.ErrSystem, op, "listen for the ranks' reports: %w", err)
	}
	defer reports.Close()
	guard, err := deathwatch.Start()
	if err != nil { // PR_SET_PDEATHSIG ends the ranks still, if not what they started
		o.Logger.Debug("launcher: no shell watches over the ranks", "why", err)
	}
	defer guard.Close()
	j := job{ends: make(chan end, o.Ranks), grace: o.Grace, guard: guard, meet: rendezvous, told: reports, log: o.Logger, stops: map[int]*halt{}}
	startErr := j.start(o, rendezvous.ID().String(), reports.Name())
	if startErr != nil {
		j.escalate()
	}
	j.watch(ctx, signals)
	outputErr := j.drain()

	switch {
	case startErr != nil:
		return exitCannotRun, mscclgo.Errorf(mscclgo.ErrSystem, op, "start the process: %w", startErr).
			At(len(j.ranks), mscclgo.NoRank)
	case outputErr != nil:
		return exitFailed, mscclgo.Errorf(mscclgo.ErrSystem, op, "write the ranks' output: %w", outputErr)
	case j.cause != nil:
		return j.cause.code, j.failure(op)
	case j.cancelled:
		return exitFailed, mscclgo.FromContext(ctx, op, "all ranks were ended: "+listEnds(j.ended))
	}
	return 0, nil
}
