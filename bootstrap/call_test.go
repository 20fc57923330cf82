package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// callAll has all ranks call at the same time, each with its context, and returns their
// errors and how long the last took.
func callAll(bs []*Bootstrap, ctxs []context.Context, call func(context.Context, *Bootstrap) error) ([]error, time.Duration) {
	errs := make([]error, len(bs))
	start := time.Now()
	var wg sync.WaitGroup
	for i, b := range bs {
		wg.Go(func() { errs[i] = call(ctxs[i], b) })
	}
	wg.Wait()
	return errs, time.Since(start)
}

// One rank's context is over when it calls a collective, or ends while it waits in it. The
// others' calls end with it, later calls too, and the next calls match.
func TestOneRankLeavesACollective(t *testing.T) {
	const leaver, late = 2, 11
	calls := map[string]func(context.Context, *Bootstrap) error{
		"barrier":    func(ctx context.Context, b *Bootstrap) error { return b.Barrier(ctx) },
		"all-gather": func(ctx context.Context, b *Bootstrap) error { _, err := b.AllGather(ctx, []byte{1}); return err },
		"broadcast":  func(ctx context.Context, b *Bootstrap) error { _, err := b.Broadcast(ctx, leaver, nil); return err },
	}
	bs := group(t, 20)
	ctx := testContext(t)
	for name, call := range calls {
		for _, atOnce := range []bool{true, false} {
			if name == "broadcast" && !atOnce {
				continue // the root does not wait
			}
			leaving, leave := context.WithCancelCause(ctx)
			ctxs := make([]context.Context, len(bs))
			for i := range ctxs {
				ctxs[i] = ctx
			}
			ctxs[leaver] = leaving
			cause := errors.New("the user has had enough")
			if atOnce {
				leave(cause)
			} else {
				time.AfterFunc(50*time.Millisecond, func() { leave(cause) })
			}
			errs, took := callAll(bs, ctxs, func(ctx context.Context, b *Bootstrap) error {
				if b.Rank() == late {
					time.Sleep(200 * time.Millisecond)
				}
				return call(ctx, b)
			})
			for rank, err := range errs {
				if rank == leaver {
					wantError(t, err, mscclgo.ErrAborted, cause.Error())
					continue
				}
				wantError(t, err, mscclgo.ErrRemote, "rank 2 left", cause.Error())
				if e := (*mscclgo.Error)(nil); errors.As(err, &e) && (e.Peer != leaver || e.Rank != rank) {
					t.Errorf("%s: rank %d: not the peer %d: %v", name, rank, leaver, err)
				}
			}
			if took > 5*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
			each(t, bs, func(b *Bootstrap) error { return collectivesOnce(ctx, b, 1) })
		}
	}
	nothingKnown(t, bs)
}

// A rank does not come to a collective, and the time of the others is up at once: all say
// whom they waited for. It hears of that when it comes, blames none of them, and the next
// calls match.
func TestOneRankDoesNotCall(t *testing.T) {
	bs := group(t, 20)
	for _, absent := range []int{0, 1, 7, 19} {
		ctx, cancel := context.WithTimeout(testContext(t), 1500*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		errs := make([]error, len(bs))
		for rank, b := range bs {
			if rank != absent {
				wg.Go(func() { errs[rank] = b.Barrier(ctx) })
			}
		}
		wg.Wait()
		culprit := fmt.Sprintf("waiting for rank %d,", absent)
		for rank, err := range errs {
			if rank == absent {
				continue
			}
			wantError(t, err, mscclgo.ErrTimeout, culprit)
			if e := (*mscclgo.Error)(nil); errors.As(err, &e) && e.Peer != absent {
				t.Errorf("rank %d: not the peer %d: %v", rank, absent, err)
			}
		}
		awaitNews(t, bs[absent])
		start := time.Now()
		late := bs[absent].Barrier(testContext(t))
		wantError(t, late, mscclgo.ErrTimeout, "left call", culprit)
		if e := (*mscclgo.Error)(nil); errors.As(late, &e) && (e.Rank != absent || e.Peer != mscclgo.NoRank) {
			t.Errorf("rank %d, for which the others waited, blames rank %d: %v", absent, e.Peer, late)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		each(t, bs, func(b *Bootstrap) error { return collectivesOnce(testContext(t), b, 1) })
	}
	nothingKnown(t, bs)
}

// TestPeerLeavesTheGroup has a rank wait in a collective for one that leaves the group: the group fails,
// unless a third rank had left the call before, which ends it on both.
func TestPeerLeavesTheGroup(t *testing.T) {
	for first, fails := range map[int]bool{1: true, 2: false} {
		b := group(t, 3)[0]
		b.mu.Lock()
		b.peers[1].left = true
		b.mu.Unlock()
		left := watch.About(first, mscclgo.ErrAborted, first, "out of flour")
		c := &call{b: b, op: "bootstrap: barrier", state: &callState{left: &left}}
		wantError(t, c.failIfLeft(1, errors.New("it left")), mscclgo.ErrRemote, fmt.Sprintf("rank %d left", first), "out of flour")
		if failed := b.Err() != nil; failed != fails {
			t.Errorf("where rank %d had left the call, the group's error is %v", first, b.Err())
		}
	}
}

// TestLateRankAborts checks that a rank that came too late, and fails the group because its
// call failed, is the one that all errors name.
func TestLateRankAborts(t *testing.T) {
	bs := group(t, 4)
	const late = 2
	ctx, cancel := context.WithTimeout(testContext(t), 500*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for rank, b := range bs {
		if rank != late {
			wg.Go(func() { b.Barrier(ctx) })
		}
	}
	wg.Wait()
	awaitNews(t, bs[late])
	bs[late].Abort(bs[late].Barrier(testContext(t)))
	for rank, b := range bs {
		<-b.Done()
		want := late
		if rank == late {
			want = mscclgo.NoRank
		}
		if e := (*mscclgo.Error)(nil); !errors.As(b.Err(), &e) || e.Peer != want {
			t.Errorf("rank %d: %v, which does not name rank %d", rank, b.Err(), late)
		}
	}
}

// awaitNews returns when b has heard that a rank left the call that it makes next.
func awaitNews(t *testing.T, b *Bootstrap) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		b.calls.mu.Lock()
		k := b.calls.known[b.calls.begun]
		heard := k != nil && k.left != nil
		b.calls.mu.Unlock()
		if heard {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("rank %d has not heard that the others left", b.Rank())
		}
	}
}

// A rank whose arguments are wrong leaves the others no call that does not end.
func TestWrongArgumentsOfOneRank(t *testing.T) {
	bs := group(t, 3)
	ctx := testContext(t)
	ctxs := []context.Context{ctx, ctx, ctx}
	errs, _ := callAll(bs, ctxs, func(ctx context.Context, b *Bootstrap) error {
		_, err := b.AllGather(ctx, make([]byte, (b.Rank()/2)*MaxMessage))
		return err
	})
	wantError(t, errs[2], mscclgo.ErrInvalid, "67108864 bytes, at most")
	for _, err := range errs[:2] {
		wantError(t, err, mscclgo.ErrRemote, "rank 2 left", "67108864 bytes, at most")
	}
	each(t, bs, func(b *Bootstrap) error { return b.Barrier(ctx) })
}

// nothingKnown checks that ended calls leave nothing behind.
func nothingKnown(t *testing.T, bs []*Bootstrap) {
	t.Helper()
	for _, b := range bs {
		b.calls.mu.Lock()
		if len(b.calls.known) > 0 {
			t.Errorf("rank %d still knows of %d calls", b.Rank(), len(b.calls.known))
		}
		b.calls.mu.Unlock()
	}
}
