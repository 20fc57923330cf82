package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

// kill ends a rank as the death of its process would: its sockets close, and it
// sends nothing.
func kill(b *Bootstrap) {
	b.mu.Lock()
	b.closing = true // its own reader shall not take part
	for _, p := range b.peers {
		for c := range p.conns {
			c.nc.Close()
		}
	}
	b.mu.Unlock()
	b.acc.Stop()
}

func awaitDone(t testing.TB, b *Bootstrap) {
	t.Helper()
	select {
	case <-b.Done():
	case <-time.After(30 * time.Second):
		t.Fatalf("rank %d does not know that the group failed", b.Rank())
	}
}

func TestAbortReachesAll(t *testing.T) {
	bs := group(t, 20)
	ctx := testContext(t)
	blocked := make(chan error, 2)
	go func() { _, err := bs[3].Recv(ctx, 4, 1); blocked <- err }()
	go func() { blocked <- bs[11].Barrier(ctx) }()
	cause := errors.New("the proxy met a trigger it does not know")
	bs[17].Abort(cause)
	bs[17].Abort(errors.New("a second cause changes nothing"))
	for _, b := range bs {
		awaitDone(t, b)
		if b.Rank() == 17 {
			wantError(t, b.Err(), mscclgo.ErrAborted, cause.Error())
			if !errors.Is(b.Err(), cause) {
				t.Error("the cause is not to be found in Err on the rank that aborted")
			}
			continue
		}
		wantError(t, b.Err(), mscclgo.ErrAborted, "rank 17", cause.Error())
		if e := (*mscclgo.Error)(nil); !errors.As(b.Err(), &e) || e.Peer != 17 || e.Rank != b.Rank() {
			t.Errorf("rank %d: error %v names not peer 17", b.Rank(), b.Err())
		}
	}
	for range 2 {
		wantError(t, <-blocked, mscclgo.ErrAborted, "rank 17")
	}
	wantError(t, bs[0].Send(ctx, 1, 0, nil), mscclgo.ErrAborted, "rank 17")
}

func TestBlame(t *testing.T) {
	bs := group(t, 5)
	cause := errors.New("it is stopped")
	bs[3].Internal().Blame(1, cause)
	bs[3].Internal().Blame(2, errors.New("a second cause changes nothing"))
	for _, b := range bs {
		awaitDone(t, b)
		if b.Rank() == 1 {
			wantError(t, b.Err(), mscclgo.ErrRemote, "rank 3 considers this rank failed", cause.Error())
			continue
		}
		wantError(t, b.Err(), mscclgo.ErrRemote, "rank 1 failed", cause.Error())
		if e := (*mscclgo.Error)(nil); !errors.As(b.Err(), &e) || e.Peer != 1 || e.Rank != b.Rank() {
			t.Errorf("rank %d: error %v names not peer 1", b.Rank(), b.Err())
		}
	}
	if !errors.Is(bs[3].Err(), cause) {
		t.Error("the cause is not to be found in Err on the rank that blames")
	}
}

// Blame of this rank itself, or of none, is Abort.
func TestBlameOfNoOther(t *testing.T) {
	for _, rank := range []int{0, -1, 2} {
		bs := group(t, 2)
		bs[0].Internal().Blame(rank, errors.New("it is stopped"))
		awaitDone(t, bs[1])
		wantError(t, bs[0].Err(), mscclgo.ErrAborted, "it is stopped")
		wantError(t, bs[1].Err(), mscclgo.ErrAborted, "rank 0 failed", "it is stopped")
	}
}

// Each rank in turn dies: the root of the tree, an inner rank, a leaf.
func TestDeathIsNoticedByIdleRanks(t *testing.T) {
	for _, victim := range []int{0, 1, 29} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			bs := group(t, 30)
			start := time.Now()
			kill(bs[victim])
			for _, b := range bs {
				if b.Rank() == victim {
					continue
				}
				awaitDone(t, b)
				wantError(t, b.Err(), mscclgo.ErrRemote, fmt.Sprintf("rank %d failed", victim))
			}
			t.Logf("noticed in %v", time.Since(start))
		})
	}
}

// A rank ends because its call failed: the group's failure names the rank that did not call. After a
// call that went well the failure names the rank that ends.
func TestDeathAfterACall(t *testing.T) {
	for _, well := range []bool{false, true} {
		bs := group(t, 4)
		each(t, bs[:3], func(b *Bootstrap) error {
			ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
			defer cancel()
			if err := b.Barrier(ctx); !errors.Is(err, mscclgo.ErrTimeout) {
				return fmt.Errorf("a barrier without rank 3: %v", err)
			}
			return nil
		})
		victim := 3
		if well {
			bs[3].Barrier(testContext(t)) // it hears that the others have left this one
			each(t, bs, func(b *Bootstrap) error { return b.Barrier(testContext(t)) })
			victim = 0
		}
		kill(bs[0])
		for _, b := range bs[1:3] {
			awaitDone(t, b)
			if e := (*mscclgo.Error)(nil); !errors.As(b.Err(), &e) || e.Peer != victim {
				t.Errorf("well %v: rank %d: %v names not rank %d", well, b.Rank(), b.Err(), victim)
			}
		}
	}
}

// Ranks that leave in good order fail nobody, whoever they are, and the death of
// another is still noticed by all that remain.
func TestLeavingIsNoFailure(t *testing.T) {
	bs := group(t, 30)
	ctx := testContext(t)
	if err := bs[0].Send(ctx, 20, 7, []byte("last words")); err != nil {
		t.Fatal(err)
	}
	for _, leaver := range []int{0, 1, 2, 10} {
		bs[leaver].Close()
	}
	if got, err := bs[20].Recv(ctx, 0, 7); err != nil || string(got) != "last words" {
		t.Errorf("what rank 0 sent before it left: %q, %v", got, err)
	}
	for _, leaver := range []int{0, 1, 2, 10} {
		_, err := bs[25].Recv(ctx, leaver, 7)
		wantError(t, err, mscclgo.ErrRemote, fmt.Sprintf("rank %d has left", leaver))
		wantError(t, bs[29].Send(ctx, leaver, 7, nil), mscclgo.ErrRemote, "rank")
	}
	for from, to := range map[int]int{3: 29, 29: 3, 9: 11} {
		if err := bs[from].Send(ctx, to, 1, []byte("hello")); err != nil {
			t.Error(err)
		}
		if got, err := bs[to].Recv(ctx, from, 1); err != nil || string(got) != "hello" {
			t.Errorf("rank %d from rank %d: %q, %v", to, from, got, err)
		}
	}
	for _, b := range bs {
		if err := b.Err(); err != nil {
			t.Fatalf("rank %d: %v", b.Rank(), err)
		}
	}
	// The rest hangs together again.
	for !connected(bs[5], 3) {
		if ctx.Err() != nil {
			t.Fatal("rank 5 has not found another rank to hear news from")
		}
		time.Sleep(time.Millisecond)
	}
	kill(bs[5])
	for _, b := range bs {
		switch b.Rank() {
		case 0, 1, 2, 5, 10:
		default:
			awaitDone(t, b)
			wantError(t, b.Err(), mscclgo.ErrRemote, "rank 5 failed")
		}
	}
}

// connected reports whether b sends to rank peer on a connection it has.
func connected(b *Bootstrap, peer int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peers[peer].out != nil
}

// A rank that dies while it has no connection, because the rank above it has
// just left, is missed by the one to which it should have turned. So is that
// one, if it dies instead.
func TestDeathBetweenConnections(t *testing.T) {
	groups := map[int][]*Bootstrap{1: group(t, 4), 2: group(t, 4)}
	for victim, bs := range groups {
		b := bs[victim]
		b.mu.Lock() // it does not get to hear that rank 0 leaves
		b.closing = true
		for c := range b.peers[0].conns {
			defer c.nc.Close()
		}
		b.mu.Unlock()
		b.acc.Stop()
		bs[0].Close()
	}
	for victim, bs := range groups {
		for _, b := range bs[1:] {
			if b.Rank() != victim {
				awaitDone(t, b)
				wantError(t, b.Err(), mscclgo.ErrRemote, fmt.Sprintf("rank %d failed", victim))
			}
		}
	}
}

// All ranks leave at once, over and over: nobody takes it for a failure, or lingers.
func TestLeavingTogether(t *testing.T) {
	least := time.Hour
	for range 10 {
		bs := group(t, 20)
		start := time.Now()
		closeAll(bs)
		least = min(least, time.Since(start))
		for _, b := range bs {
			if err := b.Err(); err != nil {
				t.Errorf("rank %d: %v", b.Rank(), err)
			}
		}
	}
	if least >= lingerTime {
		t.Errorf("closing took %v at least", least)
	}
}

func TestClose(t *testing.T) {
	bs := group(t, 2)
	ctx := testContext(t)
	blocked := make(chan error)
	go func() { _, err := bs[0].Recv(ctx, 1, 1); blocked <- err }()
	time.Sleep(10 * time.Millisecond)
	for range 2 {
		if err := bs[0].Close(); err != nil {
			t.Error(err)
		}
	}
	wantError(t, <-blocked, mscclgo.ErrAborted)
	wantError(t, bs[0].Send(ctx, 1, 1, nil), mscclgo.ErrAborted, "closed")
	wantError(t, bs[0].Barrier(ctx), mscclgo.ErrAborted, "closed")
	if err := bs[0].Err(); err != nil {
		t.Errorf("a closed group has failed: %v", err)
	}
}

// A peer that is alive and does not read delays Close for a bounded time.
func TestCloseBesideAStoppedPeer(t *testing.T) {
	bs := group(t, 2)
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	b := bs[1]
	b.mu.Lock() // its readers stop at the first frame
	go bs[0].Abort(errors.New("a frame for the reader to stop at"))
	time.Sleep(50 * time.Millisecond)
	err := bs[0].Send(ctx, 1, 0, make([]byte, MaxMessage))
	if err == nil {
		t.Error("a peer that does not read has taken 64 MiB")
	}
	start := time.Now()
	bs[0].Close()
	b.mu.Unlock()
	if took := time.Since(start); took > 3*lingerTime {
		t.Errorf("Close took %v", took)
	}
}

func TestUnreceivedMessagesAreBounded(t *testing.T) {
	m := newMailbox()
	key := mailKey{peer: 1, kind: frameData, tag: 9}
	piece := make([]byte, MaxMessage)
	kept := 0
	for m.put(key, piece) {
		kept++
		if kept > maxUnreceived/MaxMessage {
			t.Fatal("more is kept than the limit")
		}
	}
	if !m.put(mailKey{peer: 2, kind: frameData, tag: 9}, piece) {
		t.Error("one peer's messages keep another's out")
	}
	for range kept {
		if _, came := m.take(key); came != nil {
			t.Fatal("a kept message is lost")
		}
	}
	if !m.put(key, piece) {
		t.Error("received messages still count")
	}
	m.drop(key)
	m.drop(mailKey{peer: 2, kind: frameData, tag: 9})
	if len(m.held)+len(m.mail) != 0 {
		t.Errorf("an empty mailbox holds %v and %d", m.held, len(m.mail))
	}
}

func TestMismatchedCollectives(t *testing.T) {
	bs := group(t, 3)
	ctx := testContext(t)
	errs := make([]error, 3)
	done := make(chan struct{})
	go func() {
		defer close(done)
		each(t, bs, func(b *Bootstrap) error {
			if b.Rank() == 2 {
				_, errs[2] = b.AllGather(ctx, bytes.Repeat([]byte{2}, 8))
			} else {
				errs[b.Rank()] = b.Barrier(ctx)
			}
			return nil
		})
	}()
	<-done
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "all-gather") || !strings.Contains(err.Error(), "barrier") {
			t.Errorf("rank %d: error %v names not both collectives", rank, err)
		}
	}
}

// Programs end when a call fails. That is not taken for the failure, though it follows
// at once and is closer to most ranks.
func TestDeathAndTheEndsThatFollow(t *testing.T) {
	const victim = 2
	for range 5 {
		bs := group(t, 30)
		ctx := testContext(t)
		errs := make(chan error, len(bs))
		for _, b := range bs {
			if b.Rank() == victim {
				continue
			}
			go func() {
				err := b.Barrier(ctx)
				kill(b)
				errs <- err
			}()
		}
		time.Sleep(5 * time.Millisecond)
		kill(bs[victim])
		for range len(bs) - 1 {
			wantError(t, <-errs, mscclgo.ErrRemote, "rank 2 failed")
		}
	}
}
