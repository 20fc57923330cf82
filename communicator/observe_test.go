package communicator

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// many is the bootstrap of a rank of several.
type many struct {
	fullBootstrap
	rank, size int
}

func (m many) Rank() int { return m.rank }
func (m many) Size() int { return m.size }

// observers returns observers of ranks by one clock. Observers with the same owner share a
// board. Their processes differ.
func observers(owners ...int) (all []*observer, clock *time.Time) {
	clock = new(time.Time)
	*clock = time.Unix(1_000_000, 0)
	boards := map[int]*watch.SharedBoard{}
	for rank, owner := range owners {
		o := newObserver(rank, len(owners), func() time.Time { return *clock }, nil, observedBy(many{rank: rank, size: len(owners)}, 5*time.Second))
		o.namespace = uint64(rank + 1)
		if boards[owner] == nil {
			boards[owner] = watch.AloneBoard(len(owners), len(owners))
		}
		o.join(boards[owner].Board, owners, nil, nil)
		all = append(all, o)
	}
	return all, clock
}

// observedBy is what the observer knows of a rank that has a bootstrap and does nothing.
func observedBy(boot fullBootstrap, heartbeat time.Duration) observed {
	return observed{
		timeout: time.Hour, heartbeat: heartbeat, boot: boot, calls: new(atomic.Pointer[watch.Calls]),
		nameOf: func(uint32) channelName { return channelName{} }, lossy: func(time.Time) []watch.Wait { return nil },
		delay: func(time.Duration) {}, fail: func(error) {}, left: func(int) bool { return false },
	}
}

// noNotes is what kernels write that do not wait.
func noNotes() *deviceNotes { return &deviceNotes{} }

// ticks has observers tick for a while, and returns the first verdict.
func ticks(clock *time.Time, d time.Duration, all ...*observer) (watch.Verdict, bool) {
	for end := clock.Add(d); clock.Before(end); *clock = clock.Add(reportInterval) {
		for _, o := range all {
			if v, dead := o.tick(noNotes); dead {
				return v, true
			}
		}
	}
	return watch.Verdict{}, false
}

func TestSilenceIsNoticed(t *testing.T) {
	all, clock := observers(0, 0, 0)
	if v, dead := ticks(clock, time.Minute, all...); dead {
		t.Fatalf("while all tick: %+v", v)
	}
	start := *clock
	v, dead := ticks(clock, 10*time.Second, all[0], all[2])
	if want := fmt.Sprintf("rank 1 (process %d) has given no sign of life for 5s: it is stopped, its host hangs, or the network to it is down", os.Getpid()); !dead || v.Culprit != 1 || v.Text != want {
		t.Errorf("%v, %+v; want %s", dead, v, want)
	}
	if took := clock.Sub(start); took > 5*time.Second+reportInterval {
		t.Errorf("it took %v", took)
	}
}

// TestSilenceFromTheStart has a rank stop before its first tick.
func TestSilenceFromTheStart(t *testing.T) {
	all, clock := observers(0, 0)
	if v, dead := ticks(clock, 10*time.Second, all[0]); !dead || v.Culprit != 1 {
		t.Errorf("%v, %+v", dead, v)
	}
}

// TestSilenceBeforeTheFirstSign has a rank give no sign of life at all, of this host or the
// leader of another.
func TestSilenceBeforeTheFirstSign(t *testing.T) {
	for name, owners := range map[string][]int{"this host": {0, 0}, "another host": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			all, clock := observers(owners...)
			b := watch.AloneBoard(2, 2)
			all[0].join(b.Board, owners, nil, slices.DeleteFunc([]int{1}, func(int) bool { return owners[1] == 0 }))
			start := *clock
			v, dead := ticks(clock, 10*time.Second, all[0])
			if took := clock.Sub(start); !dead || v.Culprit != 1 || took > 5*time.Second+reportInterval {
				t.Errorf("after %v: %v, %+v", took, dead, v)
			}
		})
	}
}

// TestSilenceThatProvesNothing has rank 1 silent while rank 0 does not run either, and after
// it has left.
func TestSilenceThatProvesNothing(t *testing.T) {
	all, clock := observers(0, 0)
	ticks(clock, time.Second, all...)
	for range 10 {
		if v, dead := ticks(clock, 4*time.Second, all[0]); dead {
			t.Errorf("while this rank hardly runs: %+v", v)
		}
		*clock = clock.Add(2 * time.Second) // in which this rank has no CPU
	}
	ticks(clock, time.Second, all...)
	all[1].leave()
	if v, dead := ticks(clock, 10*time.Second, all[0]); dead {
		t.Errorf("after rank 1 has left: %+v", v)
	}
	all, clock = observers(0, 0)
	*clock = clock.Add(10 * time.Second) // in which neither has a CPU for its first tick
	if v, dead := ticks(clock, time.Second, all[0]); dead {
		t.Errorf("at a first tick that is late: %+v", v)
	}
	all, clock = observers(0, 0)
	all[0].heartbeat = -1
	ticks(clock, time.Second, all...)
	if v, dead := ticks(clock, time.Hour/100, all[0]); dead {
		t.Errorf("with the heartbeat off: %+v", v)
	}
	all, clock = observers(0, 0)
	all[1].namespace = all[0].namespace
	ticks(clock, time.Second, all...)
	if v, dead := ticks(clock, 10*time.Second, all[0]); dead {
		t.Errorf("of a rank of this process: %+v", v)
	}
}

// TestSilentHostWhileThisRankDoesNotRun has the only rank of another host fall silent, and rank 0 get no CPU
// once and again: its count goes on, but for the time in which it did not run. What the other host said in that
// time is read before it counts as silent.
func TestSilentHostWhileThisRankDoesNotRun(t *testing.T) {
	hosts := func() ([]*observer, *time.Time) {
		all, clock := observers(0, 1)
		all[0].join(watch.AloneBoard(2, 2).Board, []int{0, 1}, nil, []int{1})
		return all, clock
	}
	for name, c := range map[string]struct {
		run, gap time.Duration // in turn
		want     time.Duration // of its running time
	}{
		"once, early":     {2 * time.Second, time.Hour, 5 * time.Second},
		"once, late":      {4500 * time.Millisecond, time.Minute, 5500 * time.Millisecond},
		"again and again": {2 * time.Second, 2 * time.Second, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			all, clock := hosts()
			var ran time.Duration
			for ran < time.Minute {
				start := *clock
				_, dead := ticks(clock, c.run, all[0])
				ran += clock.Sub(start)
				if dead {
					break
				}
				*clock = clock.Add(c.gap)
			}
			if ran < c.want-2*reportInterval || ran > c.want+4*reportInterval {
				t.Errorf("it took %v of running, want %v", ran, c.want)
			}
		})
	}
	all, clock := hosts()
	ticks(clock, 4500*time.Millisecond, all[0])
	*clock = clock.Add(time.Minute)
	ticks(clock, 500*time.Millisecond, all[0])
	e := all[1].relay(0, make([]uint64, 2))
	testerr.Must(all[0].hear(1, e))(t)
	if v, dead := ticks(clock, 4500*time.Millisecond, all[0]); dead {
		t.Errorf("what had come was not heard: %+v", v)
	}
}

// TestSuspects has the leader of another host fall silent: each rank of this host suspects it, long before
// its leader judges it, until it is heard again or has left.
func TestSuspects(t *testing.T) {
	all, clock := observers(0, 1, 1)
	relays := func(d time.Duration) { // of host 0
		for end := clock.Add(d); clock.Before(end); {
			ticks(clock, all[0].compare, all...)
			testerr.Must(all[1].hear(0, all[0].relay(1, make([]uint64, 3))))(t)
		}
		ticks(clock, reportInterval, all...)
	}
	suspected := func(when string, want bool) {
		t.Helper()
		for _, o := range all[1:] {
			if got := o.suspects(); got != want {
				t.Errorf("rank %d, %s: %v", o.rank, when, got)
			}
		}
	}
	relays(time.Minute)
	suspected("while all tell", false)
	ticks(clock, time.Second, all...)
	suspected("after a second", false)
	ticks(clock, time.Second, all...)
	suspected("after two", true)
	*clock = clock.Add(time.Second) // in which no rank has a CPU
	ticks(clock, reportInterval, all...)
	suspected("after a gap", true)
	relays(time.Second)
	suspected("once it is heard again", false)
	for _, o := range all[1:] {
		o.left = func(rank int) bool { return rank == 0 }
		o.forget(0)
	}
	ticks(clock, time.Minute, all...)
	suspected("after it has left", false)
	ticks(clock, 2*time.Second, all[1])
	if !all[1].suspects() {
		t.Error("rank 2 is silent, and not suspected by the leader of its host")
	}
}

// TestMute has two ranks of another host: one fell silent, and then that host. Both are mute. Ranks that
// told what they do until rank 0 looked no more are not.
func TestMute(t *testing.T) {
	all, clock := observers(0, 0, 2, 2)
	heard := func(d time.Duration, ranks ...*observer) { // by rank 0, of the other host
		for end := clock.Add(d); clock.Before(end); {
			ticks(clock, all[0].compare, append(ranks, all[0], all[1])...)
			testerr.Must(all[0].hear(2, all[2].relay(0, make([]uint64, 4))))(t)
		}
	}
	mute := func(when string, want ...bool) {
		t.Helper()
		for rank := range all {
			if got := all[0].mute(rank); got != want[rank] {
				t.Errorf("rank %d, %s: %v", rank, when, got)
			}
		}
	}
	heard(time.Minute, all[2], all[3])
	mute("while all tell", false, false, false, false)
	heard(3*time.Second, all[2])
	mute("after one was silent", false, false, false, true)
	ticks(clock, 3*time.Second, all[0], all[1])
	mute("after its host was", false, false, true, true)
	*clock = clock.Add(time.Minute)
	mute("long after rank 0 has looked", false, false, true, true)
}

// TestStoppedWhileThisRankDoesNotRun has rank 1 stop, and rank 0 get no CPU for a while: it counts on
// from what it had counted before. Where neither ran, as of a job that a shell has stopped, it begins there too.
func TestStoppedWhileThisRankDoesNotRun(t *testing.T) {
	process := exec.Command("sleep", "600")
	testerr.Check(t, process.Start())
	defer process.Wait()
	defer process.Process.Kill()
	testerr.Check(t, process.Process.Signal(syscall.SIGSTOP))
	for start := time.Now(); !procfs.Stopped(process.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("the process is not stopped")
		}
	}
	all, clock := observers(0, 0)
	ticks(clock, time.Second, all...)
	all[0].board.Report(1, (&watch.Status{Process: uint32(process.Process.Pid), Namespace: all[0].namespace}).Encode())
	if !all[0].mute(1) {
		t.Error("closing waits for rank 1")
	}
	const before, gap = 3 * time.Second, time.Hour
	if v, dead := ticks(clock, before, all[0]); dead {
		t.Fatalf("too early: %+v", v)
	}
	start := clock.Add(gap)
	*clock = start
	v, dead := ticks(clock, 10*time.Second, all[0])
	if took, rest := clock.Sub(start), all[0].heartbeat-before; !dead || v.Culprit != 1 || took < rest-2*reportInterval || took > rest+2*reportInterval {
		t.Errorf("after %v: %v, %+v; want it after %v", took, dead, v, rest)
	}
}

// TestRelay has the pulses of three hosts reach all of them by the first leader.
func TestRelay(t *testing.T) {
	all, clock := observers(0, 0, 2, 3, 3)
	for i, o := range all {
		o.serves(nil) // of a service that is gone
		o.timeout = time.Second
		o.waits[1] = &deviceWait{lasted: time.Duration(i+1) * time.Second, timedOut: true}
	}
	ticks(clock, 100*time.Millisecond, all...)
	turns := map[[2]int][]uint64{}
	send := func(from, to int) int {
		if turns[[2]int{from, to}] == nil {
			turns[[2]int{from, to}] = make([]uint64, len(all))
		}
		e := all[from].relay(to, turns[[2]int{from, to}])
		testerr.Must(all[to].hear(from, e))(t)
		return len(e.pulses)
	}
	testcmp.Equal(t, "the messages' pulses", []int{send(2, 0), send(3, 0), send(0, 2), send(0, 3)}, []int{1, 2, 4, 3})
	for i, o := range all {
		for rank, r := range o.ranks(*clock) {
			if r.Status == nil || len(r.Waits) != 1 || r.Waits[0].For != time.Duration(rank+1)*time.Second {
				t.Errorf("rank %d knows of rank %d: %+v", i, rank, r.Status)
			}
		}
	}
	for _, p := range all[0].relay(3, turns[[2]int{0, 3}]).pulses {
		if p.status != nil {
			t.Errorf("rank %d's status is sent again", p.rank)
		}
	}
	for name, wrong := range map[string]struct {
		to, from int
		pulse    pulse
	}{
		"no rank":               {0, 2, pulse{rank: 5}},
		"this host":             {0, 2, pulse{rank: 1}},
		"another host's leader": {0, 2, pulse{rank: 3}},
		"own rank":              {3, 0, pulse{rank: 4}},
	} {
		if _, err := all[wrong.to].hear(wrong.from, exchange{pulses: []pulse{wrong.pulse}}); err == nil {
			t.Errorf("%s: rank %d believes rank %d", name, wrong.to, wrong.from)
		}
	}
	// The first leader falls silent.
	if v, dead := ticks(clock, 10*time.Second, all[2]); !dead || v.Culprit != 0 {
		t.Errorf("%v, %+v; want rank 0", dead, v)
	}
	all[2].forget(0)
	if v, dead := ticks(clock, 10*time.Second, all[2]); dead {
		t.Errorf("after the leader has left: %+v", v)
	}
}

// TestNotes has a note move, stand still, come back and fail.
func TestNotes(t *testing.T) {
	all, clock := observers(0)
	o := all[0]
	o.hostRanks = []int{0, 7}
	o.nameOf = func(n uint32) channelName { return map[uint32]channelName{5: {name: "gather"}}[n] }
	notes := &deviceNotes{}
	waits := func() string {
		o.tick(func() *deviceNotes { return notes })
		return fmt.Sprint(o.own(watch.Call{}, *clock).Waits)
	}
	const second = uint64(time.Second)
	note := func(channel, peer, block, start, last uint64) layout.WaitNote {
		return layout.WaitNote{What: channel<<32 | peer<<16 | block, Start: start * second, Last: last * second}
	}
	check := func(what, want string) {
		t.Helper()
		if got := waits(); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	check("none", "[]")
	notes.waits[3] = note(5, 2, 9, 1, 3)
	notes.waits[4] = note(hostGroupChannel, 1, 0, 1, 2)
	check("two", "[{0 5 gather 2 9 0 2s false 0 false 0} {2 0  7 0 0 1s false 0 false 0}]")
	notes.waits[5] = note(5, 2, 8, 0, 3)
	check("of another block", "[{0 5 gather 2 8 0 3s false 0 false 0} {2 0  7 0 0 1s false 0 false 0}]")
	*clock = clock.Add(noteFresh + 1)
	check("that stand still", "[]")
	check("that still stand still", "[]")
	notes.waits[3].Last += second / 2
	notes.waits[3].Expected = notes.waits[3].Start<<48 | 4
	check("that goes on", "[{0 5 gather 2 9 4 2.5s false 0 false 0}]")
	notes.waits[3] = layout.WaitNote{What: notes.waits[3].What, Start: 4 * second, Last: 4*second + second/8}
	check("the next for the same", "[{0 5 gather 2 9 4 2.5s false 0 false 0}]")
	*clock = clock.Add(noteFresh + 1)
	notes.waits[3].Last += second / 4
	check("which goes on", "[{0 5 gather 2 9 0 375ms false 0 false 0}]")
	notes.waits[3].What |= 1 << 63
	*clock = clock.Add(time.Hour)
	check("that has failed", "[{0 5 gather 2 9 0 375ms true 0 false 0}]")
	notes.waits[6] = note(1<<31-1, 0xffff, 0xffff, 9, 3)
	check("noise", "[{0 5 gather 2 9 0 375ms true 0 false 0} {2 0  -1 65535 0 0s false 0 false 0}]")
}

// TestAskEarly has a wait come close to its deadline: its rank asks once before, and then
// waits only for what has changed since.
func TestAskEarly(t *testing.T) {
	const timeout = 3 * time.Second
	all, clock := observers(0, 0)
	for _, o := range all {
		o.timeout = timeout
	}
	if got := all[0].ask(); got != settling {
		t.Errorf("with nothing asked, it waits for %v, want %v", got, settling)
	}
	notes := &deviceNotes{}
	asked := all[1].board.Asked()
	first := time.Duration(0)
	for lasted := time.Duration(0); lasted < timeout; lasted += reportInterval {
		notes.waits[0] = layout.WaitNote{What: 5<<32 | 1<<16, Start: 1, Last: 1 + uint64(lasted)}
		if v, dead := all[0].tick(func() *deviceNotes { return notes }); dead {
			t.Fatalf("%+v", v)
		}
		if all[1].board.Asked() > asked && first == 0 {
			first = lasted
		}
		*clock = clock.Add(reportInterval)
	}
	if n := all[1].board.Asked() - asked; n != 1 || first < timeout-askBefore {
		t.Errorf("%d questions were asked, the first after %v of %v; want 1, just before the end", n, first, timeout)
	}
	if got := all[0].ask(); got != reportInterval || all[1].board.Asked() != asked+1 {
		t.Errorf("at the deadline it waits for %v, want %v", got, reportInterval)
	}
	// A wait of long ago, without a deadline that is near, asks nothing.
	for range 100 {
		*clock = clock.Add(reportInterval)
		notes.waits[0].Last += uint64(reportInterval)
		all[0].tick(func() *deviceNotes { return notes })
	}
	if n := all[1].board.Asked(); n != asked+1 {
		t.Errorf("%d questions were asked after the deadline", n-asked-1)
	}
}

// TestAsk has a rank of each of three hosts learn what another's does, while nothing is
// exchanged but on demand.
func TestAsk(t *testing.T) {
	owners := []int{0, 0, 2, 3, 3}
	rendezvous := testerr.Must(bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler)))(t)
	defer rendezvous.Close()
	comms := make([]*Communicator, len(owners))
	var wg sync.WaitGroup
	for rank := range comms {
		wg.Go(func() {
			boot, err := bootstrap.Connect(t.Context(), bootstrap.Options{Rank: rank, Size: len(comms), ID: rendezvous.ID()})
			if err != nil {
				t.Error(err)
				return
			}
			comms[rank] = &Communicator{boot: boot}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	boards := map[int]*watch.SharedBoard{}
	ctx, cancel := context.WithCancel(t.Context())
	for rank, c := range comms {
		if boards[owners[rank]] == nil {
			boards[owners[rank]] = watch.AloneBoard(len(comms), len(comms))
		}
		c.failure = &failure{boot: c.boot, observer: newObserver(rank, len(comms), time.Now, nil, observedBy(c.boot, -1))}
		c.failure.observer.compare = time.Hour
	}
	for rank, c := range comms {
		c.failure.observer.start(boards[owners[rank]].Board, owners, nil, 1<<63)
	}
	for _, c := range comms {
		wg.Go(func() { // as failure.watch does
			for ctx.Err() == nil {
				c.failure.observer.tick(noNotes)
				time.Sleep(reportInterval)
			}
		})
	}
	knows := func(rank, of int) uint64 {
		o := comms[rank].failure.observer
		o.mu.Lock()
		defer o.mu.Unlock()
		if s := o.board.StatusOf(of); s != nil {
			return s.Exchange
		}
		return 0
	}
	for i, pair := range [][2]int{{1, 4}, {4, 2}, {2, 1}, {0, 3}, {3, 0}} {
		asks, tells := pair[0], pair[1]
		comms[tells].failure.observer.exchange(false)
		want := uint64(1)
		for _, earlier := range [][2]int{{1, 4}, {4, 2}, {2, 1}, {0, 3}, {3, 0}}[:i] {
			if earlier[1] == tells {
				want++
			}
		}
		if knows(asks, tells) == want {
			t.Errorf("rank %d knows before it asks", asks)
		}
		if wait := comms[asks].failure.observer.ask(); wait > 100*time.Millisecond {
			t.Errorf("it shall wait %v", wait)
		}
		for end := time.Now().Add(time.Minute); knows(asks, tells) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("rank %d has not heard of rank %d", asks, tells)
			}
		}
		time.Sleep(askedFor + 10*reportInterval) // until they are quiet again
	}
	cancel()
	wg.Wait()
	for _, c := range comms {
		wg.Go(func() {
			c.failure.observer.stop()
			c.boot.(interface{ Close() error }).Close()
		})
	}
	wg.Wait()
}
