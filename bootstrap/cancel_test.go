package bootstrap

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

// deafen has b's reader of a peer's connection wait until the result is called.
func deafen(t *testing.T, from, b *Bootstrap) (hear func()) {
	t.Helper()
	b.mu.Lock()
	from.mu.Lock()
	from.peers[b.rank].out.enqueue(frame{kind: frameLeft, tag: uint64(b.rank)}) // takes b.mu, and is nothing
	from.mu.Unlock()
	return b.mu.Unlock
}

// Sends that end with their contexts hold none of their bytes, also the one that was
// half sent, whose rest the peer reads and drops.
func TestCancelledSendsHoldNothing(t *testing.T) {
	bs := group(t, 2)
	held := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc) >> 20
	}
	before := held()
	hear := deafen(t, bs[0], bs[1])
	data := bytes.Repeat([]byte{7}, 32<<20)
	for range 16 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		wantError(t, bs[0].Send(ctx, 1, 5, data), mscclgo.ErrTimeout)
		cancel()
	}
	data = nil
	if after := held(); after-before > 8 {
		t.Errorf("%d MiB are held, %d before", after, before)
	}
	hear()
	ctx := testContext(t)
	if err := bs[0].Send(ctx, 1, 6, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got, err := bs[1].Recv(ctx, 0, 6); err != nil || string(got) != "hello" {
		t.Errorf("the next message: %q, %v", got, err)
	}
	if bs[1].inbox.has(mailKey{0, frameData, 5}) {
		t.Error("a message arrived of which a part was not sent")
	}
}

// The sender's slice is its own when Send returns, whatever ended it, while the connection
// still sends.
func TestDataIsTheSendersAfterTheFailure(t *testing.T) {
	bs := group(t, 3)
	hear := deafen(t, bs[0], bs[1])
	data := make([]byte, 32<<20)
	sent := make(chan error)
	go func() { sent <- bs[0].Send(testContext(t), 1, 5, data) }()
	time.Sleep(20 * time.Millisecond)
	bs[2].Abort(context.Canceled)
	wantError(t, <-sent, mscclgo.ErrAborted, "rank 2")
	hear()
	for i := range data { // the race detector finds the connection here
		data[i] = 1
	}
}

// The longest message is cancelled at several moments, while the peer reads it. The next one
// arrives whole, and is the only one that does.
func TestLongestMessageCancelled(t *testing.T) {
	bs := group(t, 2)
	ctx := testContext(t)
	data := make([]byte, MaxMessage)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		hear := deafen(t, bs[0], bs[1])
		sending, cancel := context.WithCancel(ctx)
		sent := make(chan error, 1)
		go func() { sent <- bs[0].Send(sending, 1, 8, data) }()
		time.Sleep(10 * time.Millisecond) // the sockets are full: it is half sent
		time.AfterFunc(after, cancel)
		if after > 0 {
			hear()
		}
		err := <-sent
		if after == 0 {
			hear()
			wantError(t, err, mscclgo.ErrAborted, "rank 0")
		}
		if err == nil { // it was quicker
			if got, err := bs[1].Recv(ctx, 0, 8); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		}
		cancel()
	}
	if err := bs[0].Send(ctx, 1, 8, data); err != nil {
		t.Fatal(err)
	}
	got, err := bs[1].Recv(ctx, 0, 8)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the message that was not cancelled: %d bytes, %v", len(got), err)
	}
	if bs[1].inbox.has(mailKey{0, frameData, 8}) {
		t.Error("a cancelled message arrived")
	}
}

// A rank whose context ends a collective, and which then leaves the group at once, leaves the others
// with the reason.
func TestCancelledAndLeft(t *testing.T) {
	for range 20 {
		bs := group(t, 3)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		each(t, bs, func(b *Bootstrap) error {
			ctx := testContext(t)
			if b.rank == 1 {
				ctx = cancelled
				defer b.Close()
			}
			_, err := b.AllGather(ctx, nil)
			if err == nil || !strings.Contains(err.Error(), "context canceled") {
				t.Errorf("rank %d: %v", b.rank, err)
			}
			return nil
		})
		closeAll(bs)
	}
}
