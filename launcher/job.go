package launcher

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/deathwatch"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// job is the state of a run. Only the goroutine of Run uses it, except ends.
type job struct {
	ranks []*rank
	ended []end
	ends  chan end
	grace time.Duration
	guard *deathwatch.Watch // of the ranks' process groups
	meet  *bootstrap.Rendezvous
	told  *watch.Listener // of why the group failed

	log     *slog.Logger
	looked  time.Time     // when the ranks were looked at last
	stops   map[int]*halt // the ranks that are stopped
	stopped *watch.Report // of one because of which the group did not form

	cause     *end             // the rank that failed first
	report    *watch.Report    // why the group had failed by then, if it had
	cancelled bool             // the context ended first
	sent      syscall.Signal   // the last to end the ranks: 0, SIGTERM, SIGKILL
	expired   <-chan time.Time // the grace after SIGTERM
}

// halt is what was seen of a rank that is stopped.
type halt struct {
	process  int
	lasted   time.Duration // while this process ran
	reported bool          // to the user
}

// start starts the ranks in order, up to the first that cannot be started.
func (j *job) start(o Options, id, reports string) error {
	output, master := new(sync.Mutex), masterEnv()
	for i := range o.Ranks {
		r, err := startRank(i, o, master, rankEnv(i, o.Ranks, id, reports), output, j.guard)
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
	forming := j.meet.Internal().Over()
	for len(j.ended) < len(j.ranks) {
		select {
		case e := <-j.ends:
			j.ended = append(j.ended, e)
			j.meet.Internal().Ended(e.rank, e.how)
			if e.code != 0 && j.sent == 0 {
				j.cause = &e
				if r, ok := j.told.First(); ok { // later ones may blame a rank that is about to be ended
					j.report = &r
				}
				j.escalate()
			}
			looking.Reset(lookInterval)
		case s, open := <-signals:
			if !open {
				signals = nil
			}
			if number, ok := s.(syscall.Signal); ok {
				j.forward(number)
			}
		case <-done:
			done = nil
			if j.sent == 0 {
				j.cancelled = true
				j.escalate()
			}
		case <-forming:
			forming = nil
			if len(j.ended) == 0 {
				looking.Stop()
			}
		case now := <-looking.C:
			j.look(now)
		case <-j.expired:
			j.escalate()
		}
	}
}

// lookInterval is how often the ranks are looked at while the group forms, and once one has ended.
const lookInterval = 250 * time.Millisecond

// look tells the ranks that wait for others to come of the stopped ones, and the user where no
// other runs any more.
func (j *job) look(now time.Time) {
	// Where this process was stopped too, so may be the whole job, whose ranks go on in a moment.
	passed := min(now.Sub(j.looked), 2*lookInterval)
	j.looked = now
	long := 0
	for _, r := range j.ranks {
		process, stopped := r.stopped()
		s := j.stops[r.number]
		switch {
		case !stopped:
			delete(j.stops, r.number)
			continue
		case s == nil:
			s = &halt{process: process}
			j.stops[r.number] = s
		default:
			s.process, s.lasted = process, s.lasted+passed
			if j.meet.Internal().Stopped(r.number, process, time.Now().Add(-s.lasted)) {
				j.stopped = &watch.Report{Rank: uint32(r.number), Text: fmt.Sprintf("it is stopped (process %d)", process)}
			}
		}
		if s.lasted >= bootstrap.DefaultHeartbeatTimeout {
			long++
		}
	}
	if len(j.ended) == 0 || j.sent != 0 || long < len(j.ranks)-len(j.ended) {
		return
	}
	for _, r := range j.ranks {
		if s := j.stops[r.number]; s != nil && !s.reported {
			s.reported = true
			j.log.Warn("launcher: a rank is stopped, and no other runs: kill -CONT continues its process", "rank", r.number, "process", s.process)
		}
	}
}

// forward sends a signal that this process got to all ranks that still run.
func (j *job) forward(s syscall.Signal) {
	j.signal(s)
	if s != syscall.SIGUSR1 && s != syscall.SIGUSR2 {
		j.signal(syscall.SIGCONT) // a stopped rank would not notice
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

// failure returns the error of a run in which a rank failed. It names the rank that the others blame for that.
func (j *job) failure(op string) error {
	report := j.report
	if j.stopped != nil && (report == nil || report.Rank == j.stopped.Rank) {
		report = j.stopped
	}
	culprit, text := j.cause.rank, j.cause.how
	if report != nil && int(report.Rank) < len(j.ranks) && int(report.Rank) != culprit {
		culprit, text = int(report.Rank), fmt.Sprintf("%s; rank %d then %s", report.Text, j.cause.rank, j.cause.how)
	}
	if others := j.others(); len(others) > 0 {
		text += "; of the others, " + listEnds(others)
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, op, "%s", text).At(culprit, mscclgo.NoRank)
}

func (j *job) others() []end {
	return slices.DeleteFunc(slices.Clone(j.ended), func(e end) bool { return e.rank == j.cause.rank })
}
