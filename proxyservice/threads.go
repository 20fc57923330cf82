package proxyservice

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
)

// Threads are threads that proxies share, of any ranks and devices of a process. Proxies that
// are bound to the same CPUs have one thread. A communicator binds them by the NUMA node of
// their device. The thread serves their rings in turn, 16 triggers at most in each turn, so that
// a ring that is never empty holds up none. A thread begins with the first
// proxy that is started on it and ends with the last. Shared threads leave cores to others;
// with many triggers at a time, a thread for each proxy serves more of them.
//
// The zero value is ready. All proxies that share must have the same [Options.Threads].
type Threads struct {
	mu      sync.Mutex
	running map[string]*thread // by their CPUs
}

// start has a thread serve a run's proxy, and reports to the run once it does.
func (s *Threads) start(r *run) {
	cpus := slices.Compact(slices.Sorted(slices.Values(r.proxy.options.CPUs)))
	key := fmt.Sprint(cpus)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.running[key]; t != nil {
		t.joining = append(t.joining, r)
		t.call()
		return
	}
	t := newThread()
	t.cpus, t.joining = key, []*run{r}
	if s.running == nil {
		s.running = map[string]*thread{}
	}
	s.running[key] = t
	go s.run(t, cpus)
}

// run is the goroutine of a thread.
func (s *Threads) run(t *thread, cpus []int) {
	// The goroutine never unlocks the thread, which ends with it: nobody else gets
	// a thread that is bound to some CPUs.
	runtime.LockOSThread()
	err := setAffinity(cpus)
	setTimerSlack()
	id := unix.Gettid()
	defer func() {
		// Only a handler can end the goroutine, and a proxy with one shares no thread.
		for len(t.runs) > 0 {
			s.end(t, t.runs[0], t.runs[0].proxy.exited())
		}
	}()
	for s.admit(t, id, err) {
		if r, over, err := t.serve(); over {
			s.end(t, r, err)
		}
	}
}

// admit adds the runs that want to be served, or tells them the error. It reports whether
// the thread serves any.
func (s *Threads) admit(t *thread, id int, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range t.joining {
		if err != nil {
			p := r.proxy
			r.release()
			r.ready <- mscclgo.Errorf(mscclgo.ErrInvalid, opStart, "cannot run on CPUs %v: %w", p.options.CPUs, err).At(p.options.Rank, mscclgo.NoRank)
			r.forgo()
			continue
		}
		r.thread.Store(int64(id))
		t.add(r)
		r.ready <- nil
	}
	t.joining = nil
	t.answer()
	s.forget(t)
	return len(t.runs) > 0
}

// forget lets no run join a thread that serves none, and which is about to end. The
// caller holds mu.
func (s *Threads) forget(t *thread) {
	if len(t.runs)+len(t.joining) == 0 && s.running[t.cpus] == t {
		delete(s.running, t.cpus)
	}
}

// end ends a run. err is why, or nil. OnFailure may wait for something, and must hold up neither the
// other runs of the thread nor the runs that are to join it.
func (s *Threads) end(t *thread, r *run, err error) {
	t.remove(r)
	s.mu.Lock()
	s.forget(t)
	s.mu.Unlock()
	if err == nil || r.proxy.options.Threads != s {
		r.finish(err)
		return
	}
	r.thread.Store(0)
	go func() {
		runtime.LockOSThread() // which itself knows
		defer runtime.UnlockOSThread()
		r.thread.Store(int64(unix.Gettid()))
		r.finish(err)
	}()
}

// finish ends a run that no thread serves any more. err is why, or nil.
func (r *run) finish(err error) {
	if err != nil {
		r.proxy.fail(err)
	}
	r.release()
	r.cancel(nil)
	close(r.done)
	r.turns.Ended() // last: then others have their turns
}
