package bootstrap

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

// meetAt connects n ranks of this process.
func meetAt(ctx context.Context, t *testing.T, id UniqueID, n int) []*Bootstrap {
	t.Helper()
	options := make([]Options, n)
	for rank := range options {
		options[rank] = Options{Rank: rank, Size: n, ID: id}
	}
	bs, errs := connectAll(ctx, options)
	t.Cleanup(func() { closeAll(bs) })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return bs
}

// TestMeetAgain has the processes of a group make others at one rendezvous, while the first lasts and
// after it, in which ranks come before the others have left.
func TestMeetAgain(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	ctx := testContext(t)
	first := meetAt(ctx, t, r.ID(), 3)
	for range 5 {
		bs := meetAt(ctx, t, r.ID(), 3)
		<-r.Internal().Over()
		each(t, bs, func(b *Bootstrap) error { return b.Barrier(ctx) })
		closeAll(bs)
	}
	each(t, first, func(b *Bootstrap) error { return b.Barrier(ctx) })
}

// TestMeetAgainWithout: ranks that meet again are told at once that the process of one has ended.
func TestMeetAgainWithout(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	ctx := testContext(t)
	closeAll(meetAt(ctx, t, r.ID(), 3))
	<-r.Internal().Over()
	r.Internal().Ended(1, "exited with code 0")
	_, errs := connectAll(ctx, []Options{{Rank: 0, Size: 3, ID: r.ID()}, {Rank: 2, Size: 3, ID: r.ID()}})
	for _, err := range errs {
		wantError(t, err, mscclgo.ErrRemote, "rank 1 exited with code 0 before all ranks had come")
	}
}

// TestMeetAgainStranger refuses a process that has the id and a rank, but was not in the first group:
// before the others meet again, and while they do.
func TestMeetAgainStranger(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	ctx := testContext(t)
	closeAll(meetAt(ctx, t, r.ID(), 2))
	<-r.Internal().Over()
	r.mu.Lock()
	r.met[1][0]++ // another process was rank 1
	r.mu.Unlock()
	other := Options{Rank: 1, Size: 2, ID: r.ID()}
	_, err := Connect(ctx, other)
	wantError(t, err, mscclgo.ErrInvalid, "complete already", "a second rank 1")

	again := make(chan error, 1)
	go func() {
		_, err := Connect(ctx, Options{Rank: 0, Size: 2, ID: r.ID(), Timeout: 2 * time.Second})
		again <- err
	}()
	for came := false; !came; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		came = r.members[0] != nil
		r.mu.Unlock()
	}
	_, err = Connect(ctx, other)
	wantError(t, err, mscclgo.ErrInvalid, "is none of them", "a second rank 1")
	wantError(t, <-again, mscclgo.ErrTimeout, "rank 1") // the stranger does not end it
}
