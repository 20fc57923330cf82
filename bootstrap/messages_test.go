package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
)

// Every rank sends to every rank, itself included, with several tags, from a
// goroutine for each, while collectives run: each tag's messages arrive whole
// and in order.
func TestManyGoroutines(t *testing.T) {
	const ranks, tags, messages = 5, 4, 30
	bs := groupOf(t, ranks, Options{HeartbeatTimeout: time.Minute}) // for which a rank of a busy machine may take to connect
	ctx := testContext(t)
	content := func(from, to int, tag uint64, i int) []byte {
		r := rand.New(rand.NewPCG(uint64(from*ranks+to), tag*messages+uint64(i)))
		b := make([]byte, 8+r.IntN(3000))
		binary.LittleEndian.PutUint64(b, uint64(i))
		for j := 8; j < len(b); j++ {
			b[j] = byte(r.Uint32())
		}
		return b
	}
	each(t, bs, func(b *Bootstrap) error {
		var wg sync.WaitGroup
		errs := make(chan error, 2*ranks*tags+1)
		for peer := range ranks {
			for tag := range uint64(tags) {
				wg.Go(func() {
					for i := range messages {
						data := content(b.Rank(), peer, tag, i)
						if err := b.Send(ctx, peer, tag, data); err != nil {
							errs <- err
							return
						}
						clear(data) // it is the sender's again
					}
				})
				wg.Go(func() {
					for i := range messages {
						got, err := b.Recv(ctx, peer, tag)
						// A diff of them all would take too long.
						if want := content(peer, b.Rank(), tag, i); err == nil && !bytes.Equal(want, got) {
							err = fmt.Errorf("rank %d: message %d from rank %d with tag %d (-want +got):\n%s", b.Rank(), i, peer, tag, cmp.Diff(want, got))
						}
						if err != nil {
							errs <- err
							return
						}
					}
				})
			}
		}
		wg.Go(func() {
			for i := range messages {
				if err := collectivesOnce(ctx, b, i); err != nil {
					errs <- err
					return
				}
			}
		})
		wg.Wait()
		close(errs)
		var all []error
		for err := range errs {
			all = append(all, err)
		}
		return errors.Join(all...)
	})
	for _, b := range bs {
		b.inbox.mu.Lock()
		if n := len(b.inbox.mail) + len(b.inbox.held); n != 0 {
			t.Errorf("rank %d: %d entries are left in the mailbox", b.Rank(), n)
		}
		b.inbox.mu.Unlock()
	}
}

// quickly compares byte strings as wholes: element by element takes too long for
// what 74 ranks gather.
var quickly = cmp.Comparer(func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) })

// collectivesOnce runs one of each collective and checks its result.
func collectivesOnce(ctx context.Context, b *Bootstrap, round int) error {
	mine := bytes.Repeat([]byte{byte(b.Rank()), byte(round)}, (b.Rank()+round)%5)
	blocks, err := b.AllGather(ctx, mine)
	if err != nil {
		return err
	}
	want := make([][]byte, b.Size())
	for r := range want {
		want[r] = bytes.Repeat([]byte{byte(r), byte(round)}, (r+round)%5) // not nil, even if empty
	}
	if diff := cmp.Diff(want, blocks, quickly); diff != "" {
		return fmt.Errorf("all-gather %d (-want +got):\n%s", round, diff)
	}
	root := round % b.Size()
	data := []byte("not looked at")
	if b.Rank() == root {
		data = fmt.Appendf(nil, "round %d", round)
	}
	got, err := b.Broadcast(ctx, root, data)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("round %d", round); string(got) != want {
		return fmt.Errorf("broadcast: %q, want %q", got, want)
	}
	return b.Barrier(ctx)
}

// Broadcast from every root, or many, and groups of sizes around the tree's edges.
func TestCollectives(t *testing.T) {
	for _, size := range []int{1, 2, 9, 10, 74} {
		bs := group(t, size)
		ctx := testContext(t)
		each(t, bs, func(b *Bootstrap) error {
			for round := 0; round < size; round += 1 + size/10 {
				if err := collectivesOnce(ctx, b, round); err != nil {
					return err
				}
			}
			return nil
		})
		closeAll(bs)
	}
}

// No rank leaves a barrier before the last has come.
func TestBarrierHolds(t *testing.T) {
	bs := group(t, 12)
	ctx := testContext(t)
	passed := make(chan int, len(bs))
	for _, b := range bs[:11] {
		go func() {
			if b.Barrier(ctx) == nil {
				passed <- b.Rank()
			}
		}()
	}
	select {
	case r := <-passed:
		t.Fatalf("rank %d passed before rank 11 came", r)
	case <-time.After(100 * time.Millisecond):
	}
	if err := bs[11].Barrier(ctx); err != nil {
		t.Fatal(err)
	}
	for range bs[:11] {
		select {
		case <-passed:
		case <-ctx.Done():
			t.Fatal("a rank is still in the barrier")
		}
	}
}

func TestContexts(t *testing.T) {
	bs := group(t, 2)
	ctx := testContext(t)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err := bs[0].Recv(short, 1, 5)
	wantError(t, err, mscclgo.ErrTimeout, "rank 1", "tag 5")
	err = bs[0].Barrier(short)
	wantError(t, err, mscclgo.ErrTimeout, "barrier")

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = bs[0].Recv(cancelled, 1, 5)
	wantError(t, err, mscclgo.ErrAborted, "rank 1")
	wantError(t, bs[0].Send(cancelled, 1, 5, nil), mscclgo.ErrAborted, "peer 1")
}

// A collective that times out on one rank ends there alone, and the next ones
// match again; what came for it later is not kept.
func TestCollectiveAfterTimeout(t *testing.T) {
	bs := group(t, 2)
	ctx := testContext(t)
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	_, err := bs[0].AllGather(short, []byte("too early"))
	wantError(t, err, mscclgo.ErrTimeout, "all-gather", "rank 1")
	late, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	_, err = bs[1].AllGather(late, []byte("too late"))
	wantError(t, err, mscclgo.ErrTimeout, "all-gather", "rank 0")
	each(t, bs, func(b *Bootstrap) error { return collectivesOnce(ctx, b, 3) })
	for _, b := range bs {
		if n := len(b.inbox.mail); n != 0 {
			t.Errorf("rank %d keeps %d messages of the collective that timed out", b.Rank(), n)
		}
	}
}

// Receivers that are cancelled while messages come lose none of them.
func TestCancelledRecvLosesNothing(t *testing.T) {
	bs := group(t, 2)
	ctx := testContext(t)
	const messages = 300
	go func() {
		for i := range messages {
			if bs[1].Send(ctx, 0, 1, binary.LittleEndian.AppendUint32(nil, uint32(i))) != nil {
				return
			}
		}
	}()
	for want := 0; want < messages; {
		impatient, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(50))*time.Microsecond)
		got, err := bs[0].Recv(impatient, 1, 1)
		cancel()
		switch {
		case err == nil:
			if i := binary.LittleEndian.Uint32(got); int(i) != want {
				t.Fatalf("message %d came, %d was next", i, want)
			}
			want++
		case ctx.Err() != nil:
			t.Fatalf("message %d did not come: %v", want, err)
		}
	}
}

func TestInvalidMessages(t *testing.T) {
	b := group(t, 1)[0]
	ctx := testContext(t)
	for _, peer := range []int{-1, 1} {
		want := fmt.Sprintf("rank %d is outside a world of 1", peer)
		wantError(t, b.Send(ctx, peer, 0, nil), mscclgo.ErrInvalid, want)
		_, err := b.Recv(ctx, peer, 0)
		wantError(t, err, mscclgo.ErrInvalid, want)
		_, err = b.Broadcast(ctx, peer, nil)
		wantError(t, err, mscclgo.ErrInvalid, want)
	}
	big := make([]byte, MaxMessage+1)
	wantError(t, b.Send(ctx, 0, 0, big), mscclgo.ErrInvalid, "67108865 bytes")
	_, err := b.Broadcast(ctx, 0, big)
	wantError(t, err, mscclgo.ErrInvalid, "67108865 bytes")
	_, err = b.AllGather(ctx, big)
	wantError(t, err, mscclgo.ErrInvalid, "67108865 bytes", "at most 67108848")
}

// The largest message arrives whole.
func TestLargestMessage(t *testing.T) {
	bs := group(t, 2)
	ctx := testContext(t)
	data := make([]byte, MaxMessage)
	rand.NewChaCha8([32]byte{1}).Read(data)
	each(t, bs, func(b *Bootstrap) error {
		got, err := b.Broadcast(ctx, 1, data[:len(data)*b.Rank()])
		if err == nil && !bytes.Equal(got, data) { // a diff of 64 MiB would take minutes
			err = errors.New("it changed on the way")
		}
		return err
	})
}

func TestKeys(t *testing.T) {
	bs := group(t, 2)
	other := group(t, 1)
	if bs[0].Key("a") != bs[1].Key("a") || bs[0].Group() != bs[1].Group() {
		t.Error("ranks of one group differ in group number or key")
	}
	if bs[0].Key("a") == bs[0].Key("b") || bs[0].Key("a") == other[0].Key("a") || bs[0].Group() == other[0].Group() {
		t.Error("two purposes or groups share a key")
	}
	if bs[0].Key("a") == bs[0].id.secret() {
		t.Error("a key is the group's secret")
	}
}

func TestTree(t *testing.T) {
	const size = 100
	for r := range size {
		for _, c := range children(r, size) {
			if parent(c) != r {
				t.Errorf("rank %d is a child of %d and has the parent %d", c, r, parent(c))
			}
		}
		for to := range size {
			if to == r {
				continue
			}
			at, steps := r, 0
			for ; at != to && steps < 10; steps++ {
				at = toward(at, to)
			}
			if at != to {
				t.Errorf("from %d one does not get to %d", r, to)
			}
		}
	}
}
