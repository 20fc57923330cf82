package communicator

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// split returns observers of a part of a group, whose ranks have the numbers there.
func split(outer []*observer, clock *time.Time, numbers ...int) []*observer {
	part, _ := observers(make([]int, len(numbers))...)
	for i, n := range numbers {
		part[i].now = func() time.Time { return *clock }
		part[i].branch = outer[n].branch.child(numbers)
	}
	return part
}

// commOf returns the communicator of an observer's rank, as far as errors need it.
func commOf(o *observer) *Communicator {
	boot := many{rank: o.rank, size: o.size}
	return &Communicator{boot: boot, failure: &failure{boot: boot, observer: o}}
}

// TestExchangeThatHasEnded has a call on the host end by its deadline: other groups hear of it for
// a moment, and not as of one that goes on.
func TestExchangeThatHasEnded(t *testing.T) {
	outer, clock := observers(0, 0, 0, 0)
	part := split(outer, clock, 0, 1)
	all := append(part, outer...)
	for _, o := range outer[1:3] {
		o.exchange(false)
	}
	done := outer[0].exchange(false)
	waits := func() string {
		var told []string
		for _, w := range part[0].elsewhere(*clock) {
			told = append(told, fmt.Sprintf("%d of the outer group, %v, %v", w.Peer, w.For.Round(100*time.Millisecond), w.Ended))
		}
		return strings.Join(told, "; ")
	}
	pass := func(d time.Duration, want string) {
		t.Helper()
		if v, dead := ticks(clock, d, all...); dead {
			t.Fatalf("%+v", v)
		}
		if got := waits(); got != want {
			t.Errorf("it waits for %q, want %q", got, want)
		}
	}
	pass(time.Second, "3 of the outer group, 1s, false")
	done(mscclgo.Errorf(mscclgo.ErrTimeout, "gather", "it is late"))
	pass(200*time.Millisecond, "3 of the outer group, 1s, true")
	pass(time.Minute, "")
	if s := outer[0].own(watch.Call{}, *clock); s.Exchanging.Round(100*time.Millisecond) != time.Second || !s.ExchangeEnded {
		t.Errorf("its own group hears of an exchange of %v, ended %v", s.Exchanging, s.ExchangeEnded)
	}
}

// TestCulpritAmongBranches finds the number that the culprit of an error has in the outer group.
func TestCulpritAmongBranches(t *testing.T) {
	outer, clock := observers(0, 0, 0, 0)
	part := split(outer, clock, 2, 1, 0)
	other := split(outer, clock, 1, 3)
	p, q := part[1], other[0] // of rank 1
	timeout := func(peer int) error { return mscclgo.Errorf(mscclgo.ErrTimeout, "wait", "it did not come").At(1, peer) }
	blame := func(o *observer, err error, culprit, otherwise int) int {
		number, _ := o.branch.blame(err, culprit, otherwise)
		return number
	}
	check := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: rank %d of the outer group, want %d", what, got, want)
		}
	}
	const none = mscclgo.NoRank
	check("a peer", blame(p, timeout(0), none, 1), 2)
	check("a rank that is given", blame(p, errors.New("calls differ"), 2, 1), 0)
	check("an error of this rank", blame(p, errors.New("a bug"), none, 1), 1)
	check("news that name nobody", blame(p, mscclgo.Errorf(mscclgo.ErrRemote, "group", "it failed").At(1, none), none, none), none)
	check("news that name this rank", blame(p, mscclgo.Errorf(mscclgo.ErrAborted, "group", "rank 2 considers this rank failed").At(1, none), none, none), 1)
	quoting := watch.Verdict{Culprit: 0, Text: watch.Outsider("rank 0 has not made call 4", 3)}
	check("a verdict", blame(p, p.judged(quoting, 2, quoting.Text, nil), none, 1), 2)
	check("a verdict without a culprit", blame(p, p.judged(watch.Verdict{Culprit: none}, 2, "a cycle", nil), none, 1), 0)

	// News tell of a culprit outside.
	news := func(cause error) error {
		f := testerr.Must(watch.DecodeFact(watch.Blamed(1, 1, cause).Encode(), 2))(t)
		return f.Failed("group", 0)
	}
	outside := func(number int) error {
		return q.judged(watch.Verdict{Culprit: 0, Outside: true, Outer: number}, none, "it is late", nil)
	}
	check("news of a rank outside", blame(q, news(outside(2)), none, none), 2)
	check("the same of news", blame(q, news(news(outside(2))), none, none), 2)
	check("news of a rank of the group", blame(q, news(timeout(1)), none, none), 3)
	check("news of a rank that is not of the outer group", blame(q, news(outside(4)), none, none), 3)

	// The error passes from one part through another, which lacks the culprit, to the outer group.
	_, first := p.branch.blame(fmt.Errorf("step 3: %w", timeout(0)), none, 1)
	culprit, ours := commOf(q).ofOther(mscclgo.ErrAborted, "abort", first)
	if culprit != none || !strings.HasSuffix(ours.Error(), "rank 2 of the outer group is not of this one") {
		t.Fatalf("rank %d, %v", culprit, ours)
	}
	check("the same in the other part", blame(q, ours, 0, 0), 2) // in which the aborter is to blame
	check("the same in a call of the other part", blame(q, mscclgo.Errorf(mscclgo.ErrTimeout, "gather", "%w", ours).At(0, 1), none, none), 2)
	check("the same where it is told", blame(q, news(ours), none, none), 2)
	step := fmt.Errorf("step 4: %w", ours)
	if culprit, ours = commOf(outer[1]).ofOther(mscclgo.ErrAborted, "abort", step); culprit != 2 || ours == nil {
		t.Errorf("rank %d is to blame in the outer group: %v", culprit, ours)
	}
	if _, ours = commOf(q).ofOther(mscclgo.ErrAborted, "abort", step); ours != nil {
		t.Errorf("an error of the group, which quotes another's, is taken for another's: %v", ours)
	}
	for range 100 {
		p.branch.blame(timeout(0), none, 1)
	}
	if _, ours = commOf(q).ofOther(mscclgo.ErrAborted, "abort", first); ours == nil {
		t.Error("an older error of another group is not known")
	}
}

// reentrant is an error of a program's whose methods use the groups.
type reentrant struct{ is func() }

func (r *reentrant) Error() string { return "reentrant" }
func (r *reentrant) As(any) bool   { r.is(); return false }

func TestErrorThatUsesTheTree(t *testing.T) {
	outer, clock := observers(0, 0, 0)
	split(outer, clock, 1, 0)
	asked := 0
	commOf(outer[1]).ours(&reentrant{func() {
		if asked++; asked == 1 {
			commOf(outer[1]).ours(errors.New("another"))
		}
	}})
	if asked == 0 {
		t.Error("the error was not asked")
	}
}

// TestOuterGroupsFailure has a call of the outer group fail, and then the group: a part hears of
// the latter, for as long as it may explain a wait there.
func TestOuterGroupsFailure(t *testing.T) {
	outer, clock := observers(0, 0, 0)
	part := split(outer, clock, 1, 0)
	part[0].timeout = time.Minute
	o := outer[1]
	commOf(o).ours(mscclgo.Errorf(mscclgo.ErrTimeout, "gather", "it is late").At(1, 0))
	if f := part[0].outerGroup().Failure; f != nil {
		t.Errorf("before it fails: %+v", f)
	}
	o.branch.failed(errors.New("it fails"), 2, o.now())
	if f := part[0].outerGroup().Failure; f == nil || f.Culprit != 2 || f.Text != "it fails" {
		t.Errorf("when it has failed: %+v", f)
	}
	*clock = clock.Add(time.Minute)
	if f := part[0].outerGroup().Failure; f == nil || f.Culprit != 2 {
		t.Errorf("when a wait ends that began just before: %+v", f)
	}
	*clock = clock.Add(askedFor)
	if f := part[0].outerGroup().Failure; f != nil {
		t.Errorf("later: %+v", f)
	}
	o.branch.failed(errors.New("nobody knows who"), mscclgo.NoRank, o.now())
	if g := part[0].outerGroup(); g.Failure != nil || g.Size != 3 {
		t.Errorf("where no rank is known: %+v", g)
	}
}

// TestWaitsOfAFailedGroup has the outer group fail while a rank waits there. A part hears of that
// wait, behind waits that go on, for as long as it may explain a wait of the part. The ranks of the
// failed group tell nothing more, and the part does not take them for silent.
func TestWaitsOfAFailedGroup(t *testing.T) {
	outer, clock := observers(0, 0, 0, 0)
	part, other := split(outer, clock, 0, 1), split(outer, clock, 0, 2)
	part[0].timeout = time.Minute
	for _, o := range outer[:3] {
		o.exchange(false) // which rank 3 does not begin
	}
	ticks(clock, 2*time.Second, append(part, outer...)...)
	for _, o := range outer {
		o.quiet()
	}
	other[0].exchange(false)
	ticks(clock, time.Second, append(part, other...)...)
	told := func() (waits []string) {
		for _, w := range part[0].elsewhere(*clock) {
			waits = append(waits, fmt.Sprintf("%d for %v", w.Peer, w.For.Round(100*time.Millisecond)))
		}
		return waits
	}
	if got := told(); !slices.Equal(got, []string{"2 for 1s", "3 for 2s"}) {
		t.Errorf("rank 0 waits elsewhere for %q", got)
	}
	*clock = clock.Add(50 * time.Second)
	if got := told(); !slices.Equal(got, []string{"3 for 2s"}) {
		t.Errorf("50 s later it waits for %q", got)
	}
	ranks := part[0].outerGroup().Ranks
	if len(ranks) != 4 {
		t.Errorf("%d ranks of the outer group are known", len(ranks))
	}
	for i, r := range ranks {
		if r.Silent != 0 {
			t.Errorf("rank %d of the failed group is silent for %v", i, r.Silent)
		}
	}
	*clock = clock.Add(10 * time.Second)
	if got := told(); len(got) != 0 || part[0].outerGroup().Ranks != nil {
		t.Errorf("a minute later it waits for %q", got)
	}
}

// TestLeaveDuringTick has a group end while a tick is under way.
func TestLeaveDuringTick(t *testing.T) {
	outer, clock := observers(0, 0)
	split(outer, clock, 1, 0)
	o := outer[0]
	o.mu.Lock() // as a tick has it
	var left sync.WaitGroup
	left.Go(o.leave)
	time.Sleep(20 * time.Millisecond)
	o.tell(o.own(watch.Call{}, *clock), *clock)
	o.mu.Unlock()
	left.Wait()
	o.tick(noNotes)
	o.quiet() // as the end of watch does
	if k := o.branch; len(k.tree.waits) != 0 || k.observer != nil {
		t.Errorf("the tree knows %v of a group that is closed, %v", k.tree.waits, k.observer)
	}
}

// TestClosedGroupsAreFreed has a program split its group again and again, and close the old one.
func TestClosedGroupsAreFreed(t *testing.T) {
	rendezvous := testerr.Must(bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler)))(t)
	defer rendezvous.Close()
	dev := testdev.Open(t, 0)
	boot := testerr.Must(bootstrap.Connect(t.Context(), bootstrap.Options{Rank: 0, Size: 1, ID: rendezvous.ID()}))(t)
	defer boot.Close()
	c := testerr.Must(New(t.Context(), boot, dev, Options{}))(t)
	var old []weak.Pointer[Communicator]
	for range 3 {
		next := testerr.Must(c.Split(t.Context(), 0, 0))(t)
		old = append(old, weak.Make(c))
		testerr.Report(t, c.Close())
		c = next
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		runtime.GC()
		alive := 0
		for _, p := range old {
			if p.Value() != nil {
				alive++
			}
		}
		if alive == 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d of %d communicators that are closed are still there", alive, len(old))
			break
		}
	}
	testerr.Report(t, c.Close())
}
