package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

// A rank that came to the rendezvous and then gives no sign of life is named, whether the
// others have come or not.
func TestSilentWhileTheGroupForms(t *testing.T) {
	for what, size := range map[string]int{"before all came": 4, "with the table": 3} {
		t.Run(what, func(t *testing.T) {
			noLeaks(t)
			r := rendezvous(t, quiet)
			nc := proved(t, r, 2)
			ln, err := net.Listen("tcp", "127.0.0.1:0") // where its peers would wait for it
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			join := joinMessage{size: size, left: time.Minute, silence: 2 * time.Second, addr: ln.Addr().String()}
			start := time.Now()
			var bs []*Bootstrap
			var errs []error
			var all sync.WaitGroup
			all.Go(func() {
				bs, errs = connectAll(testContext(t), []Options{{Rank: 0, Size: size, ID: r.ID()}, {Rank: 1, Size: size, ID: r.ID()}})
			})
			// The others, which are more patient, have come before.
			await(t, "they come", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.members) == 2 })
			nc.Write(frame{kind: frameJoin, payload: join.encode()}.encode())
			all.Wait()
			closeAll(bs)
			wantCulprit(t, errs, mscclgo.ErrRemote, 2)
			if took := time.Since(start); took < time.Second || took > 50*time.Second {
				t.Errorf("it took %v, want 2 s", took)
			}
		})
	}
}

// A rank that proves that it is of the group and then says nothing more, as one whose host is
// cut off just then, is named.
func TestSilentBeforeItJoins(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	proved(t, r, 2)
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := Options{Size: 3, ID: r.ID(), HeartbeatTimeout: time.Second}
	first, second := o, o
	second.Rank = 1
	bs, errs := connectAll(ctx, []Options{first, second})
	closeAll(bs)
	wantCulprit(t, errs, mscclgo.ErrRemote, 2)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %v, want 6 s", took)
	}
}

// A rank that never came and is stopped is named once that has lasted for the time-out of one
// that waits, and not if it has none.
func TestStoppedBeforeItCame(t *testing.T) {
	for what, test := range map[string]struct {
		timeout, since time.Duration
		told           bool
	}{
		"long":        {time.Minute, 2 * time.Minute, true},
		"not so long": {time.Minute, 0, false},
		"never":       {-1, 2 * time.Minute, false},
	} {
		t.Run(what, func(t *testing.T) {
			noLeaks(t)
			r := rendezvous(t, quiet)
			since := time.Now().Add(-test.since)
			if r.Internal().Stopped(2, 77, since) {
				t.Error("there is nobody to tell")
			}
			var bs []*Bootstrap
			var errs []error
			done := make(chan struct{})
			go func() {
				defer close(done)
				timeout := 20 * time.Second
				if !test.told {
					timeout = time.Second
				}
				var opts []Options
				for rank := range 2 {
					opts = append(opts, Options{Rank: rank, Size: 3, ID: r.ID(), Timeout: timeout, HeartbeatTimeout: test.timeout})
				}
				bs, errs = connectAll(testContext(t), opts)
			}()
			told := false
			for over := false; !over; time.Sleep(time.Millisecond) {
				select {
				case <-done:
					over = true
				default:
					told = r.Internal().Stopped(2, 77, since) || told
				}
			}
			closeAll(bs)
			if told != test.told {
				t.Errorf("Stopped has told the others: %v, want %v", told, test.told)
			}
			if told {
				wantCulprit(t, errs, mscclgo.ErrRemote, 2)
				wantError(t, errs[0], mscclgo.ErrRemote, "rank 2", "is stopped (process 77)")
			}
			<-r.Internal().Over()
		})
	}
}

// A rank of a group that works falls silent, the root or an inner one, though its
// connections stay. All others name it, and hear of it though it passes on no news. A group
// that only waits is not silent.
func TestSilentNeighbour(t *testing.T) {
	for _, victim := range []int{0, 1} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			bs := groupOf(t, 11, Options{HeartbeatTimeout: time.Second})
			start := time.Now()
			for time.Since(start) < 1500*time.Millisecond {
				if err := bs[5].Err(); err != nil {
					t.Fatalf("before anything happened: %v", err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			bs[victim].mu.Lock() // it handles nothing any more
			defer bs[victim].mu.Unlock()
			for _, b := range bs {
				if b.Rank() == victim {
					continue
				}
				awaitDone(t, b)
				wantCulprit(t, []error{b.Err()}, mscclgo.ErrRemote, victim)
			}
			closing := time.Now()
			bs[1-victim].Close() // a neighbour, which does not wait for the silent one to read
			if took := time.Since(closing); took >= lingerTime {
				t.Errorf("Close took %v", took)
			}
		})
	}
}

// Two ranks that have dialled each other at the same time, and so have two connections, become neighbours
// when the rank above them leaves. Each hears the other.
func TestNeighboursWithTwoConnections(t *testing.T) {
	bs := groupOf(t, 3, Options{HeartbeatTimeout: time.Second})
	var own [3]*conn
	for rank := 1; rank <= 2; rank++ {
		b, peer := bs[rank], bs[rank].peers[3-rank]
		nc, err := b.dialPeer(t.Context(), peer)
		if err != nil {
			t.Fatal(err)
		}
		own[rank] = newConn(nc, &b.mu, peer, true)
		if err := b.admit(own[rank]); err != nil {
			t.Fatal(err)
		}
	}
	for rank := 1; rank <= 2; rank++ { // before either hears of the other's
		bs[rank].establish(own[rank])
	}
	for rank := 1; rank <= 2; rank++ {
		bs[rank].wg.Go(func() { bs[rank].serve(own[rank]) })
	}
	bs[0].Close()
	time.Sleep(2 * time.Second)
	for rank := 1; rank <= 2; rank++ {
		if err := bs[rank].Err(); err != nil || bs[rank].isQuiet(3-rank) {
			t.Errorf("rank %d: %v, and the other is quiet: %v", rank, err, bs[rank].isQuiet(3-rank))
		}
	}
}

// A group fails because of one of two ranks that are silent, such as those of a host. Close does not wait
// for the other either, where that is known.
func TestCloseBesideTheDead(t *testing.T) {
	const failed, silent = 2, 1
	bs := groupOf(t, 4, Options{})
	for _, b := range bs {
		b.Internal().AskDead(func(rank int) bool { return rank == silent })
	}
	for _, rank := range []int{failed, silent} {
		bs[rank].mu.Lock() // it handles nothing any more
		defer bs[rank].mu.Unlock()
	}
	bs[0].Internal().Blame(failed, errors.New("it is silent"))
	start := time.Now()
	bs[0].Close()
	if took := time.Since(start); took >= lingerTime {
		t.Errorf("Close took %v", took)
	}
}

// A rank 0 that is silent while it holds the rendezvous is named.
func TestSilentRendezvous(t *testing.T) {
	noLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	id := newID([]string{"127.0.0.1"}, uint16(ln.Addr().(*net.TCPAddr).Port), true)
	r := serveRendezvous(ln, id, quiet)
	defer r.Close()
	noticed := make(chan struct{})
	go func() { // it hangs once both have come
		await(t, "they come", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.members) == 2 })
		r.mu.Lock()
		defer r.mu.Unlock()
		<-noticed
	}()
	bs, errs := connectAll(testContext(t), []Options{{Rank: 1, Size: 3, ID: id, HeartbeatTimeout: time.Second}, {Rank: 2, Size: 3, ID: id, HeartbeatTimeout: time.Second}})
	close(noticed)
	closeAll(bs)
	wantCulprit(t, errs, mscclgo.ErrRemote, 0)
}

// Ranks that come one after the other, and give signs of life, are not taken for stopped.
func TestSlowToComeIsNotSilent(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	ctx := testContext(t)
	first := make(chan error, 1)
	options := Options{Size: 2, ID: r.ID(), HeartbeatTimeout: time.Second}
	go func() {
		b, err := Connect(ctx, options)
		if err == nil {
			b.Close()
		}
		first <- err
	}()
	time.Sleep(3 * options.HeartbeatTimeout)
	second := options
	second.Rank = 1
	b, err := Connect(ctx, second)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// A rank that looks too late has perhaps been stopped itself, with those of its machine. The silence of
// another machine goes on, and what came meanwhile has time to be read.
func TestSilenceAfterAGap(t *testing.T) {
	const timeout, often = 5 * time.Second, 500 * time.Millisecond
	for name, test := range map[string]struct {
		far         bool
		before      int // looks until the gap, each often after the other
		early, last int // looks after it until silence is not, and is, found
	}{
		"this machine":                {before: 8, early: 9, last: 10},
		"another":                     {far: true, before: 4, early: 5, last: 6},
		"another that is about to be": {far: true, before: 9, early: 1, last: 2},
	} {
		t.Run(name, func(t *testing.T) {
			now, s := time.Unix(1000, 0), silence{far: test.far}
			looks := func(n int, beats uint64) (silent bool) {
				for range n {
					now = now.Add(often)
					silent = s.lasts(now, beats, timeout)
				}
				return silent
			}
			if looks(1, 1) || looks(test.before, 1) {
				t.Error("silence is found before the gap")
			}
			now = now.Add(time.Minute - often)
			if looks(1, 1) || looks(test.early, 1) {
				t.Error("silence while nobody looked counts")
			}
			if heard := s; heard.lasts(now.Add(often), 2, timeout) {
				t.Error("what is heard does not end the silence")
			}
			if !looks(test.last-test.early, 1) {
				t.Error("silence is not found")
			}
		})
	}
}
