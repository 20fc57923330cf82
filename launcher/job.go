package launcher

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/blame"
	"github.com/mscclgo/mscclgo/internal/deathwatch"
)

// job is the state of a run. Only the goroutine of Run uses it, except ends.
type job struct {
	ranks []*rank
	ended []end
	ends  chan end
	grace time.Duration
	guard *deathwatch.Watch // of the ranks' process groups
	meet  *bootstrap.Rendezvous

	stops   map[int]time.Time // of the ranks that are stopped, since when
	stopped *blame.Report     // of one because of which the group did not form

	cause     *end             // the rank that failed first
	cancelled bool             // the context ended first
	sent      syscall.Signal   // the last to end the ranks: 0, SIGTERM, SIGKILL
	expired   <-chan time.Time // the grace after SIGTERM
}

// start starts the ranks in order, up to the first that cannot be started.
func (j *job) start(o Options, id, reports string) error {
	output := new(sync.Mutex)
	for i := range o.Ranks {
		r, err := startRank(i, o, rankEnv(i, o.Ranks, id, reports), output, j.guard)
		if err != nil {
			return err
		}
		j.ranks = append(j.ranks, r)
		go func() { j.ends <- r.wait() }()
	}
	return nil
}

// watch returns when all ranks have ended.
func (j *job) watch(ctx context.Context, signals <-chan os.Signal) {
	done := ctx.Done()
	looking := time.NewTicker(lookInterval)
	defer looking.Stop()
	forming := j.meet.Over()
	for len(j.ended) < len(j.ranks) {
		select {
		case e := <-j.ends:
			j.ended = append(j.ended, e)
			j.meet.Ended(e.rank, e.how)
			if e.code != 0 && j.sent == 0 {
				j.cause = &e
				j.escalate()
			}
		case s := <-signals:
			j.signal(s.(syscall.Signal))
		case <-done:
			done = nil
			if j.sent == 0 {
				j.cancelled = true
				j.escalate()
			}
		case <-forming:
			forming = nil
			looking.Stop()
		case now := <-looking.C:
			j.look(now)
		case <-j.expired:
			j.escalate()
		}
	}
}

// lookInterval is how often the ranks of a group that forms are looked at.
const lookInterval = 250 * time.Millisecond

// look tells the ranks that wait for others to come of those that are stopped.
func (j *job) look(now time.Time) {
	for _, r := range j.ranks {
		process, stopped := r.stopped()
		since, known := j.stops[r.number]
		switch {
		case !stopped:
			delete(j.stops, r.number)
		case !known:
			j.stops[r.number] = now
		case j.meet.Stopped(r.number, process, since):
			j.stopped = &blame.Report{Rank: uint32(r.number), Text: fmt.Sprintf("it is stopped (process %d)", process)}
		}
	}
}

// signal sends s to all ranks that still run.
func (j *job) signal(s syscall.Signal) {
	for _, r := range j.ranks {
		r.signal(s)
	}
}

// escalate sends SIGTERM to the ranks, and SIGKILL the next time.
func (j *job) escalate() {
	if j.sent == 0 {
		j.sent = syscall.SIGTERM
		j.expired = time.After(j.grace)
	} else {
		j.sent = syscall.SIGKILL
	}
	j.signal(j.sent)
	j.signal(syscall.SIGCONT) // a stopped rank would not notice
}

// drain returns when the output of all ranks has been written, with the first error: that
// of one output is the same for all ranks.
func (j *job) drain() (err error) {
	for _, r := range j.ranks {
		if e := r.drain(); err == nil {
			err = e
		}
	}
	return err
}

// failure returns the error of a run in which a rank failed. The ranks blame the culprit
// for that, with a reason.
func (j *job) failure(op string, culprit int, reason string) error {
	text := j.cause.how
	if culprit != j.cause.rank {
		text = fmt.Sprintf("%s; rank %d then %s", reason, j.cause.rank, j.cause.how)
	}
	if others := j.others(); len(others) > 0 {
		text += "; of the others, " + listEnds(others)
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, op, "%s", text).At(culprit, mscclgo.NoRank)
}

func (j *job) others() []end {
	return slices.DeleteFunc(slices.Clone(j.ended), func(e end) bool { return e.rank == j.cause.rank })
}
