package bootstrap

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
)

// elastic opens a server for the test's time.
func elastic(t testing.TB, o ElasticOptions) *Elastic {
	t.Helper()
	o.Logger = quiet
	e, err := NewElastic("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// newMembers returns n members of a server for the test's time.
func newMembers(t testing.TB, e *Elastic, n int) []*Member {
	t.Helper()
	all := make([]*Member, n)
	for i := range all {
		m, err := NewMember(Options{ID: e.ID(), Logger: quiet, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		all[i] = m
	}
	return all
}

// next has members come together, and closes what they get with the test.
func next(t testing.TB, members []*Member) []*Bootstrap {
	t.Helper()
	ctx := testContext(t)
	bs := make([]*Bootstrap, len(members))
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { bs[i], errs[i] = m.Next(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(bs) })
	for _, b := range bs {
		if b.Size() != len(members) {
			t.Fatalf("a group of %d ranks, not %d", b.Size(), len(members))
		}
	}
	each(t, bs, func(b *Bootstrap) error { return b.Barrier(ctx) })
	return bs
}

// byRank returns members in the order of the ranks that they got.
func byRank(members []*Member, bs []*Bootstrap) []*Member {
	sorted := make([]*Member, len(members))
	for i, b := range bs {
		sorted[b.Rank()] = members[i]
	}
	return sorted
}

// come has a member come, and returns when the server has noticed.
func come(ctx context.Context, t testing.TB, e *Elastic, m *Member) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		b, err := m.Next(ctx)
		if err == nil {
			b.Close()
		}
		result <- err
	}()
	await(t, "the server notices a member", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.ContainsFunc(e.comers, func(c *comer) bool { return c.process == m.process })
	})
	return result
}

// TestGenerations loses a rank, goes on with three, and takes in a newcomer.
func TestGenerations(t *testing.T) {
	noLeaks(t)
	e := elastic(t, ElasticOptions{Min: 2, Max: 4, Settle: 300 * time.Millisecond})
	members := newMembers(t, e, 4)
	bs := next(t, members)
	members = byRank(members, bs)

	members[1].Close() // its process ends
	for _, b := range bs {
		if b.Rank() == 1 {
			b.Abort(errors.New("the process ends"))
		}
	}
	left := slices.Delete(slices.Clone(members), 1, 2)
	bs = next(t, left)
	if diff := cmp.Diff([]int{0, 1, 2}, []int{bs[0].Rank(), bs[1].Rank(), bs[2].Rank()}); diff != "" {
		t.Errorf("ranks of the survivors (-want +got):\n%s", diff)
	}
	for _, m := range left {
		if m.Generation() != 2 {
			t.Errorf("generation %d, not 2", m.Generation())
		}
		select {
		case <-m.Newcomers():
			t.Error("told of newcomers before there are any")
		default:
		}
	}

	fresh := newMembers(t, e, 1)
	result := make(chan *Bootstrap, 1)
	go func() {
		b, _ := fresh[0].Next(testContext(t))
		result <- b
	}()
	for _, m := range left {
		select {
		case <-m.Newcomers():
		case <-time.After(time.Minute):
			t.Fatal("not told of the newcomer")
		}
	}
	ctx := testContext(t)
	var wg sync.WaitGroup
	for i, m := range left {
		wg.Go(func() {
			b, err := m.Next(ctx)
			if err != nil || b.Size() != 4 || b.Rank() != i {
				t.Errorf("survivor %d: %v %v", i, b, err)
				return
			}
			t.Cleanup(func() { b.Close() })
		})
	}
	wg.Wait()
	b := <-result
	if b == nil || b.Rank() != 3 {
		t.Fatalf("the newcomer got %v", b)
	}
	b.Close()
}

// TestLeftOut has one rank of three not come back: the others go on after the settle time,
// and its group ends. Later it is a newcomer.
func TestLeftOut(t *testing.T) {
	noLeaks(t)
	e := elastic(t, ElasticOptions{Settle: 100 * time.Millisecond})
	members := newMembers(t, e, 3)
	bs := next(t, members)
	next(t, members[:2])
	select {
	case <-bs[2].Done():
		wantError(t, bs[2].Err(), mscclgo.ErrAborted, "went on without this rank after generation 1")
	case <-time.After(time.Minute):
		t.Fatal("not told that it was left out")
	}
	ctx, cancel := context.WithCancel(testContext(t))
	result := come(ctx, t, e, members[2])
	for _, m := range members[:2] {
		<-m.Newcomers()
	}
	cancel()
	wantError(t, <-result, mscclgo.ErrAborted, "no generation formed")
	// A server that is not asked for lack of time is not said to be silent.
	_, err := members[2].Next(ctx)
	wantError(t, err, mscclgo.ErrAborted, "no generation formed")
	for i, b := range next(t, []*Member{members[2], members[0], members[1]}) {
		if b.Size() != 3 || (i == 0) != (b.Rank() == 2) {
			t.Errorf("member %d is rank %d of %d", i, b.Rank(), b.Size())
		}
	}
}

// TestCloseBesideTheLeftOut closes the server while a process that was left out is connected to it.
func TestCloseBesideTheLeftOut(t *testing.T) {
	e := elastic(t, ElasticOptions{Settle: 100 * time.Millisecond})
	members := newMembers(t, e, 2)
	next(t, members)
	next(t, members[:1])
	closed := make(chan error)
	go func() { closed <- e.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Close waits for the process that was left out")
	}
}

// TestStoppedBetweenAssignmentAndConnect has a member stopped there until the others have gone on without it.
func TestStoppedBetweenAssignmentAndConnect(t *testing.T) {
	noLeaks(t)
	e := elastic(t, ElasticOptions{Min: 2, Max: 3, Settle: time.Minute})
	members := newMembers(t, e, 3)
	ctx := testContext(t)
	brief, giveUp := context.WithCancel(ctx)
	first, second := come(brief, t, e, members[0]), come(brief, t, e, members[1])
	a, err := members[2].await(ctx)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the others have their assignments", func() bool { return members[0].Generation()+members[1].Generation() == 2 })
	e.mu.Lock()
	e.o.Settle = 100 * time.Millisecond
	e.mu.Unlock()
	giveUp() // the others, as their time to connect is up
	wantError(t, <-first, mscclgo.ErrAborted)
	wantError(t, <-second, mscclgo.ErrAborted)
	next(t, members[:2])
	start := time.Now()
	if _, err := members[2].join(ctx, a); !errors.Is(err, errLeftOut) {
		t.Errorf("it continues, and its join returns %v", err)
	}
	if took := time.Since(start); took > 5*time.Second { // of the 10 s that it has
		t.Errorf("it took %v", took)
	}
}

// TestServerEndsBeforeConnect has the server end, and with it the rendezvous that it assigned a member to.
func TestServerEndsBeforeConnect(t *testing.T) {
	noLeaks(t)
	e := elastic(t, ElasticOptions{Settle: time.Millisecond})
	m := newMembers(t, e, 1)[0]
	ctx := testContext(t)
	a, err := m.await(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	start := time.Now()
	_, err = m.join(ctx, a)
	wantError(t, err, mscclgo.ErrRemote, "was lost before all ranks had come")
	if took := time.Since(start); took > 5*time.Second { // of the 10 s that it has
		t.Errorf("it took %v", took)
	}
}

// TestDiesWhileWaiting has a process end while a generation forms, and one give up.
func TestDiesWhileWaiting(t *testing.T) {
	noLeaks(t)
	e := elastic(t, ElasticOptions{Min: 2, Max: 4, Settle: 500 * time.Millisecond})
	members := newMembers(t, e, 4)
	over, cancel := context.WithCancel(testContext(t))
	gaveUp := come(over, t, e, members[0])
	cancel()
	wantError(t, <-gaveUp, mscclgo.ErrAborted)
	died := come(testContext(t), t, e, members[1])
	members[1].Close()
	if err := <-died; err == nil {
		t.Error("a closed member is in a generation")
	}
	start := time.Now()
	next(t, members[2:])
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the others were held up for %v", took)
	}
}

// TestLeave has members leave while they wait, and as ranks, and come again.
func TestLeave(t *testing.T) {
	noLeaks(t)
	e := elastic(t, ElasticOptions{Min: 2, Max: 2, Settle: 50 * time.Millisecond})
	members := newMembers(t, e, 4)
	members[0].Leave() // it was not there
	result := come(testContext(t), t, e, members[0])
	members[0].Leave()
	if err := <-result; !errors.Is(err, mscclgo.ErrAborted) || !strings.Contains(err.Error(), "the member leaves") {
		t.Errorf("the error of Next is %v", err)
	}
	await(t, "the server learns of it", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.comers) == 0
	})
	closeAll(next(t, members[1:3]))
	for _, m := range members[1:3] {
		m.Leave()
	}
	next(t, []*Member{members[0], members[3]}) // nobody waits for those of before
	members[1].Close()
	members[1].Leave()
	if _, err := members[1].Next(testContext(t)); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("the error of Next of a closed member is %v", err)
	}
}

// TestServerAgain has the server end and another open at its address: groups go on, and
// their members come to it.
func TestServerAgain(t *testing.T) {
	noLeaks(t)
	e := elastic(t, ElasticOptions{Settle: 300 * time.Millisecond})
	members := newMembers(t, e, 2)
	bs := next(t, members)
	e.Close()
	each(t, bs, func(b *Bootstrap) error { return b.Barrier(testContext(t)) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := members[0].Next(ctx)
	wantError(t, err, mscclgo.ErrTimeout, e.ID().Addr())

	again, err := NewElastic(e.ID().Addr(), ElasticOptions{Settle: 300 * time.Millisecond, ID: e.ID(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	next(t, members)
	if g := members[0].Generation(); g != 2 {
		t.Errorf("generation %d, not 2", g)
	}
}

// TestElasticStranger has a process with another secret come to a server's address.
func TestElasticStranger(t *testing.T) {
	e := elastic(t, ElasticOptions{Settle: time.Millisecond})
	other := elastic(t, ElasticOptions{})
	id := other.ID()
	id.port = e.ID().port
	m, err := NewMember(Options{ID: id, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = m.Next(ctx)
	wantError(t, err, mscclgo.ErrTimeout)
	if e.mu.Lock(); len(e.comers) > 0 || e.generation > 0 {
		t.Error("a stranger was let in")
	}
	e.mu.Unlock()
}

func TestElasticBadOptions(t *testing.T) {
	for _, o := range []ElasticOptions{{Min: -1}, {Min: 3, Max: 2}, {Max: MaxSize + 1}, {Settle: -1}} {
		if _, err := NewElastic("127.0.0.1:0", o); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	e := elastic(t, ElasticOptions{})
	for _, o := range []Options{{}, {ID: e.ID(), Size: 2}, {ID: e.ID(), Rank: 1}, {ID: e.ID(), Timeout: -1}} {
		if _, err := NewMember(o); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestArrange gives survivors their ranks, in order, and the others the gaps. Numbers are
// survivors' old ranks, letters newcomers.
func TestArrange(t *testing.T) {
	for _, c := range []struct {
		comers string
		most   int
		want   string
	}{
		{"a b c", 8, "a b c |"},
		{"3 0 2", 8, "0 2 3 |"},
		{"3 a 0 2", 8, "0 a 2 3 |"},
		{"a b 3 0", 8, "0 a b 3 |"},
		{"a 7", 8, "a 7 |"},
		{"7 6 5 a", 8, "a 5 6 7 |"},
		{"a 0 b 1", 3, "0 1 a | b"},
		{"2 1 0", 2, "0 1 | 2"},
	} {
		old := map[*comer]bool{}
		names := map[*comer]string{}
		var comers []*comer
		for name := range strings.FieldsSeq(c.comers) {
			one := &comer{rank: int(name[0] - '0')}
			old[one] = name[0] <= '9'
			names[one] = name
			comers = append(comers, one)
		}
		ranks, rest := arrange(comers, func(c *comer) bool { return old[c] }, c.most)
		var got []string
		for _, one := range ranks {
			got = append(got, names[one])
		}
		got = append(got, "|")
		for _, one := range rest {
			got = append(got, names[one])
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s, at most %d: %s, not %s", c.comers, c.most, text, c.want)
		}
	}
}

// FuzzElasticMessages decodes what comes to and from a server.
func FuzzElasticMessages(f *testing.F) {
	f.Add(comeMessage{generation: 3, rank: 2}.encode())
	f.Add(assignment{generation: 3, rank: 2, size: 4, port: 5}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeCome(b); err == nil && !slices.Equal(m.encode(), b) {
			t.Errorf("%x is %+v, which is %x", b, m, m.encode())
		}
		if a, err := decodeAssignment(b); err == nil && !slices.Equal(a.encode(), b) {
			t.Errorf("%x is %+v, which is %x", b, a, a.encode())
		}
	})
}
