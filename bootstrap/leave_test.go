package bootstrap

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

// A rank that gives up before the others come takes its time-out, its world size and its
// number with it.
func TestLeaveTheRendezvous(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	ctx := testContext(t)
	early, leave := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		Connect(early, Options{Rank: 5, Size: 7, ID: r.ID(), Timeout: time.Second})
	}()
	await(t, "the rank comes", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.members) == 1 })
	leave()
	<-gone
	await(t, "the rank leaves", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.members) == 0 })
	other := make(chan *Bootstrap, 1)
	go func() {
		b, err := Connect(ctx, Options{Rank: 0, Size: 2, ID: r.ID()})
		if err != nil {
			t.Error(err)
		}
		other <- b
	}()
	time.Sleep(1500 * time.Millisecond) // longer than the time-out of the one that left
	b, err := Connect(ctx, Options{Rank: 1, Size: 2, ID: r.ID()})
	if err != nil {
		t.Error(err)
	}
	closeAll([]*Bootstrap{b, <-other})
}

// await returns when what is so.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in 30 s it is not so that %s", what)
		}
	}
}

// TestLeftAfterFailure waits for a rank that has left since the group failed: the error is the failure.
func TestLeftAfterFailure(t *testing.T) {
	bs := group(t, 3)
	bs[0].Internal().Blame(2, errors.New("it burns"))
	<-bs[1].Done()
	bs[1].noteLeft(0, "in a test")
	closeAll(bs[:1])
	<-bs[1].peers[0].gone
	for range 50 {
		_, err := bs[1].recv(testContext(t), "receive", mailKey{0, frameData, 1})
		wantError(t, err, mscclgo.ErrRemote, "rank 2 failed", "it burns")
	}
	closeAll(bs[1:])
}
