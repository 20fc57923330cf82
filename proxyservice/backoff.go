package proxyservice

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultSpin  = time.Millisecond
	defaultSleep = 200 * time.Microsecond
)

// A proxy that finds no work polls on without pause for a while (eager), then
// lets other goroutines and threads run between polls until Options.Spin is over,
// then sleeps, twice as long each time.
const (
	pollsBetweenLooks = 64 // at the clock, which costs as much as several polls
	eager             = 20 * time.Microsecond
	shortestSleep     = time.Microsecond
)

// backoff is how long a proxy has had no work.
type backoff struct {
	spin, longest time.Duration
	counts        *counters

	polls   int
	since   time.Time     // of the first look at the clock; zero before
	counted time.Duration // of the time since then
	sleep   time.Duration // the next
}

// work says that there was some.
func (b *backoff) work() {
	if !b.since.IsZero() {
		b.count(time.Now())
		b.since, b.counted = time.Time{}, 0
	}
	b.polls, b.sleep = 0, 0
}

// pause is called after each poll that found nothing. It does not sleep while
// the proxy has something under way.
func (b *backoff) pause(underWay bool) {
	b.polls++
	if b.polls%pollsBetweenLooks != 0 && b.sleep == 0 {
		return
	}
	now := time.Now()
	if b.since.IsZero() {
		b.since = now
	}
	switch idle := now.Sub(b.since); {
	case idle < min(eager, b.spin):
	case idle < b.spin || underWay:
		runtime.Gosched()
		yieldCore()
	default:
		b.count(now)
		b.sleep = min(max(2*b.sleep, shortestSleep), b.longest)
		sleepThread(b.sleep)
	}
}

// count adds to the idle time what was not counted yet.
func (b *backoff) count(now time.Time) {
	if b.counts != nil {
		idle := now.Sub(b.since)
		b.counts.idle.Add(uint64(idle - b.counted))
		b.counted = idle
	}
}

// yieldCore lets another thread have the core if one wants it.
func yieldCore() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// sleepThread sleeps on the thread itself: a goroutine that is locked to its
// thread would otherwise need two more switches to come back.
func sleepThread(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	unix.Nanosleep(&ts, nil) // woken early, it polls early
}

// setTimerSlack lets sleeps of the thread end when they should, not up to 50
// microseconds later (prctl(2), PR_SET_TIMERSLACK). Without it they are longer.
func setTimerSlack() { unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

// setAffinity binds the thread to CPUs; none leaves it free.
func setAffinity(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		if cpu < 0 || cpu >= len(set)*64 {
			return unix.EINVAL
		}
		set.Set(cpu)
	}
	return unix.SchedSetaffinity(0, &set)
}
