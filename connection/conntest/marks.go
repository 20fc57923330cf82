package conntest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// reach waits until a mark is reached.
func reach(t testing.TB, m connection.Mark) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		done, err := m.Done()
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the mark is not reached")
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// testMarks checks that marks are reached in order, behind what they mark, and
// can be reached once.
func testMarks(t *testing.T, p *pair) {
	c := p.a.Connection
	mark := func() connection.Mark {
		m, err := c.Mark()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	reach(t, mark()) // nothing was queued

	const size, writes = 100_000, 10
	data := noise(writes * size)
	src := source(t, p, device, writes*size, data)
	own, dst := p.onDevice(t, writes*size)
	var marks []connection.Mark
	for i := range uint64(writes) {
		if err := c.Write(dst, i*size, src, i*size, size); err != nil {
			t.Fatal(err)
		}
		marks = append(marks, mark())
	}
	reach(t, marks[4])
	if at := differ(data[:5*size], read[byte](t, own, 0, 5*size)); at >= 0 {
		t.Errorf("a mark is reached, and byte %d before it has not arrived", at)
	}
	for _, m := range marks[:4] {
		if done, err := m.Done(); !done || err != nil {
			t.Errorf("a mark before one that is reached: %v, %v", done, err)
		}
	}
	reach(t, marks[9])
	if at := differ(data, read[byte](t, own, 0, writes*size)); at >= 0 {
		t.Errorf("a mark is reached, and byte %d before it has not arrived", at)
	}
	_, err := marks[0].Done()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "used up", "rank 0, peer 1")
	_, err = connection.Mark{}.Done()
	testerr.Expect(t, err, mscclgo.ErrInvalid)
	reach(t, mark())

	p.close(t)
	for _, m := range marks[5:9] {
		if done, err := m.Done(); !done && err == nil {
			t.Error("a mark of a closed connection is neither reached nor an error")
		}
	}
	_, err = c.Mark()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
}

// testAllocations checks that the calls of the data path allocate nothing.
func testAllocations(t *testing.T, p *pair) {
	if p.a.Allocates || p.b.Allocates {
		t.Skip("devices or the transport allocate for their work")
	}
	c := p.a.Connection
	src := source(t, p, device, 64, noise(64))
	_, dst := p.onDevice(t, 128)
	back := p.a.memory(t, device, 64)
	_, counts := p.onDevice(t, 8)
	k := uint64(0)
	bytes := noise(int(min(c.InlineLimit(), 64)))
	put := func() {
		if err := errors.Join(c.Write(dst, 8, src, 0, 64), c.UpdateAndSync(dst, 0, k, k+1)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.WriteBytes(dst, 64, bytes), c.Read(back, 0, dst, 64, 64)); err != nil && !errors.Is(err, mscclgo.ErrUnsupported) {
			t.Fatal(err)
		}
		if err := errors.Join(c.Add(counts, 0, 1), c.Exchange(back, 0, counts, 0, 1)); err != nil && !errors.Is(err, mscclgo.ErrUnsupported) {
			t.Fatal(err)
		}
		k++
	}
	for range 5000 { // until queues have taken what memory they keep
		put()
	}
	p.flush(t)
	if n := testing.AllocsPerRun(50, func() {
		put()
		m, err := c.Mark()
		if err != nil {
			t.Fatal(err)
		}
		reach(t, m)
	}); n > 0 {
		t.Errorf("a write, an update, a read, atomic operations and a mark allocate %v times", n)
	}
}

// testFlush checks right after each flush that the end of a large write, and then an
// update, have arrived.
func testFlush(t *testing.T, p *pair) {
	const size, rounds, updates = 4 << 20, 10, 500
	c := p.a.Connection
	src := source(t, p, device, size, make([]byte, size))
	own, dst := p.onDevice(t, size)
	flag, remote := p.onDevice(t, 8)
	end, err := src.Buffer().Slice(size-8, 8)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for k := uint64(1); k <= rounds; k++ {
		if err := errors.Join(gpu.CopyIn(end, []uint64{k}), c.Write(dst, 0, src, 0, size), c.Flush(ctx)); err != nil {
			t.Fatal(err)
		}
		if got := word(t, own, size-8); got != k {
			t.Fatalf("a flush returned, and the end of the write before it is of round %d, not %d", got, k)
		}
	}
	for k := uint64(1); k <= updates; k++ {
		if err := errors.Join(c.UpdateAndSync(remote, 0, k-1, k), c.Flush(ctx)); err != nil {
			t.Fatal(err)
		}
		if got := word(t, flag, 0); got != k {
			t.Fatalf("a flush returned, and the word is %d after an update to %d", got, k)
		}
	}
}

// testContexts flushes with contexts that have ended while much is under way.
func testContexts(t *testing.T, p *pair) {
	const size = 4 << 20
	data := noise(size)
	src := source(t, p, device, size, data)
	own, dst := p.onDevice(t, size)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	past, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	for _, c := range []struct {
		ctx  context.Context
		kind mscclgo.Kind
	}{{canceled, mscclgo.ErrAborted}, {past, mscclgo.ErrTimeout}} {
		for range 4 {
			if err := p.a.Connection.Write(dst, 0, src, 0, size); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.flushUntil(c.ctx); err != nil {
			expectEnded(t, err, c.kind)
		}
	}
	p.flush(t) // what was queued goes on
	if at := differ(data, read[byte](t, own, 0, size)); at >= 0 {
		t.Errorf("after flushes whose contexts had ended, byte %d has not arrived", at)
	}
}

// expectFlush flushes with a context that ends first, which is an error of that kind.
func (p *pair) expectFlush(t *testing.T, ctx context.Context, kind mscclgo.Kind) {
	t.Helper()
	expectEnded(t, p.flushUntil(ctx), kind)
}

// expectEnded checks the error of a flush whose context has ended.
func expectEnded(t *testing.T, err error, kind mscclgo.Kind) {
	t.Helper()
	if err == errGoesOn {
		t.Fatal(err)
	}
	testerr.Expect(t, err, kind, "flush", "rank 0, peer 1")
}

// testContextsHeld does so while nothing gets done.
func testContextsHeld(t *testing.T, p *pair) {
	if p.a.Hold == nil {
		t.Skip("the transport cannot be held")
	}
	c := p.a.Connection
	src := source(t, p, device, 8, []uint64{3})
	own, dst := p.onDevice(t, 16)
	release := p.a.Hold()
	defer release()
	if err := c.Write(dst, 8, src, 0, 8); err != nil {
		t.Fatal(err)
	}
	m, err := c.Mark()
	if err != nil {
		t.Fatal(err)
	}
	var done bool
	if !soon(func() { done, err = m.Done() }) {
		t.Fatal("Done waits for a mark")
	}
	if done || err != nil {
		t.Errorf("a mark behind what is held: %v, %v", done, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	p.expectFlush(t, ctx, mscclgo.ErrTimeout)
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	p.expectFlush(t, ctx, mscclgo.ErrAborted)

	// Others go on beside a flush that waits.
	flushed := make(chan error, 1)
	go func() { flushed <- c.Flush(context.Background()) }()
	if err := c.UpdateAndSync(dst, 0, 0, 5); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-flushed:
		t.Fatalf("a flush did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	release()
	if !soon(func() { err = <-flushed }) {
		t.Fatal("a flush goes on though nothing is held any more")
	}
	if err != nil {
		t.Error(err)
	}
	p.flush(t)
	reach(t, m)
	testcmp.Equal(t, "what arrived", read[uint64](t, own, 0, 2), []uint64{5, 3})
}
