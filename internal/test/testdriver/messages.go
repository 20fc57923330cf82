package testdriver

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Way is a connection of rank 0 to rank 1 whose peer does what it is sent, with memory of 64 bytes at both ends.
type Way struct {
	*connection.Connection
	Src, Mine *registeredmem.Memory // of rank 0, and of rank 1
	Theirs    *registeredmem.Memory // Mine, as rank 0 has it
}

// CopiedWords changes a word behind data many times.
func (w *Way) CopiedWords(t *testing.T) {
	t.Helper()
	const updates = 1000
	testlink.Set(t, w.Src, testlink.Noise(64))
	for i := range uint64(updates) {
		if err := errors.Join(w.Write(w.Theirs, 8, w.Src, 0, 1+i%50), w.UpdateAndSync(w.Theirs, 0, i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := append(binary.NativeEndian.AppendUint64(nil, updates), testlink.Noise(64)[:50]...)
	testcmp.Equal(t, "the memory", testlink.Get(t, w.Mine)[:58], want)
}

// RefusedAtOnce has the peer refuse a write, as it has closed the buffer: told says so, though nobody asks.
func (w *Way) RefusedAtOnce(t *testing.T, told <-chan error) {
	t.Helper()
	if err := errors.Join(w.Mine.Buffer().Close(), w.Write(w.Theirs, 0, w.Src, 0, 64)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-told:
		testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "rank 1 refused ", " memory ", "it was closed")
	case <-time.After(testlink.Timeout):
		t.Error("Lost says nothing")
	}
}

// FlushAndWithdrawWait has a copy into the peer's memory wait until release is called. queued reports whether
// it waits.
func (w *Way) FlushAndWithdrawWait(t *testing.T, queued func() bool, release func()) {
	t.Helper()
	testlink.Set(t, w.Src, testlink.Noise(64))
	if err := w.Write(w.Theirs, 0, w.Src, 0, 64); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testerr.Expect(t, w.Flush(ctx), mscclgo.ErrTimeout, "rank 0, peer 1", "0 of 1")
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	testerr.Expect(t, w.Flush(ctx), mscclgo.ErrAborted, "rank 0, peer 1")

	testlink.Eventually(t, "the copy is queued", queued)
	closed := make(chan error, 1)
	buf := w.Mine.Buffer()
	go func() { closed <- w.Mine.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("the memory was withdrawn (%v) with a copy under way", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if err := errors.Join(<-closed, w.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	if err := gpu.CopyOut(got, buf); err != nil {
		t.Error(err)
	}
	testcmp.Equal(t, "the memory", got, testlink.Noise(64))
}
