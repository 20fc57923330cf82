package conntest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// testMisuse makes calls with invalid arguments. Nothing is written, and the
// connection still works.
func testMisuse(t *testing.T, p *pair) {
	const size = 4096
	c := p.a.Connection
	src := source(t, p, device, size, noise(size))
	own, dst := p.onDevice(t, size)
	many := make([]byte, c.InlineLimit()+1)
	for name, err := range map[string]error{
		"destination nil":          c.Write(nil, 0, src, 0, 8),
		"source nil":               c.Write(dst, 0, nil, 0, 8),
		"destination of this rank": c.Write(src, 0, src, 0, 8),
		"source of the peer":       c.Write(dst, 0, dst, 0, 8),
		"destination not imported": c.Write(own, 0, src, 0, 8),
		"source of the peer's":     c.Write(dst, 0, own, 0, 8),
		"past the destination":     c.Write(dst, size-7, src, 0, 8),
		"past the source":          c.Write(dst, 0, src, size-7, 8),
		"0 bytes past the end":     c.Write(dst, size+1, src, 0, 0),
		"0 bytes to nil":           c.Write(nil, 0, src, 0, 0),
		"size overflows":           c.Write(dst, 8, src, 8, 1<<64-8),
		"offset overflows":         c.Write(dst, 1<<64-8, src, 0, 16),
		"source offset overflows":  c.Write(dst, 0, src, 1<<64-8, 16),
		"bytes to nil":             c.WriteBytes(nil, 0, []byte{1}),
		"bytes to this rank":       c.WriteBytes(src, 0, []byte{1}),
		"bytes not imported":       c.WriteBytes(own, 0, []byte{1}),
		"bytes past the end":       c.WriteBytes(dst, size, []byte{1}),
		"bytes far away":           c.WriteBytes(dst, 1<<64-1, []byte{1}),
		"too many bytes":           c.WriteBytes(dst, 0, many),
		"word nil":                 c.UpdateAndSync(nil, 0, 0, 1),
		"word of this rank":        c.UpdateAndSync(src, 0, 0, 1),
		"word not imported":        c.UpdateAndSync(own, 0, 0, 1),
		"word not aligned":         c.UpdateAndSync(dst, 4, 0, 1),
		"word past the end":        c.UpdateAndSync(dst, size, 0, 1),
		"half a word":              c.UpdateAndSync(dst, size-4, 0, 1),
		"word that falls":          c.UpdateAndSync(dst, 0, 2, 1),
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1") })
	}
	if err := errors.Join(c.WriteBytes(dst, 0, nil), c.Write(dst, size, src, size, 0)); err != nil {
		t.Errorf("0 bytes: %v", err)
	}
	p.flush(t)
	if at := differ(make([]byte, size), read[byte](t, own, 0, size)); at >= 0 {
		t.Errorf("byte %d was written by a call that returned an error", at)
	}
	if err := errors.Join(c.Write(dst, 8, src, 8, 8), c.UpdateAndSync(dst, 0, 0, 3)); err != nil {
		t.Fatal(err)
	}
	p.flush(t)
	if got := read[uint64](t, own, 0, 1)[0]; got != 3 {
		t.Errorf("the word is %d after an update from 0 to 3", got)
	}
}

// testClose closes with work under way, twice, and uses the connection then.
func testClose(t *testing.T, p *pair) {
	const size = 1 << 20
	c := p.a.Connection
	data := noise(size)
	src := source(t, p, device, size, data)
	own, dst := p.onDevice(t, size)
	if err := c.Write(dst, 0, src, 0, size); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p.close(t)
	}
	if at := differ(data, read[byte](t, own, 0, size)); at >= 0 {
		t.Errorf("Close did not wait for byte %d", at)
	}
	_, err := c.Mark()
	for name, err := range map[string]error{
		"write": c.Write(dst, 0, src, 0, 8), "write of nothing": c.Write(dst, 0, src, 0, 0), "bytes": c.WriteBytes(dst, 0, nil),
		"update": c.UpdateAndSync(dst, 0, 0, 1), "flush": c.Flush(context.Background()), "mark": err,
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, "closed", "rank 0, peer 1") })
	}
	if err := src.Close(); err != nil {
		t.Errorf("a memory after its connection: %v", err)
	}
}

// testCloseHeld closes a connection while nothing gets done.
func testCloseHeld(t *testing.T, p *pair) {
	if p.a.Hold == nil {
		t.Skip("the transport cannot be held")
	}
	c := p.a.Connection
	own, dst := p.onDevice(t, 8)
	release := p.a.Hold()
	defer release()
	if err := c.UpdateAndSync(dst, 0, 0, 4); err != nil {
		t.Fatal(err)
	}
	testdriver.ClosedTogether(t, c, release, nil)
	if got := read[uint64](t, own, 0, 1)[0]; got != 4 {
		t.Errorf("after Close the word is %d; an update to 4 was queued before", got)
	}
}

// load has goroutines write and flush until that is an error, which must say that
// something is closed.
func load(t *testing.T, p *pair, dst, src *registeredmem.Memory) (wait func()) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for end := time.Now().Add(patience); time.Now().Before(end); {
				err := p.a.Connection.Write(dst, 0, src, 0, src.Size())
				if err == nil {
					err = p.a.Connection.Flush(context.Background())
				}
				if err != nil {
					testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
					return
				}
			}
			t.Error("nothing was ever closed")
		})
	}
	time.Sleep(10 * time.Millisecond)
	return func() {
		if !soon(all.Wait) {
			t.Fatal("a write or a flush does not return")
		}
	}
}

// testCloseUnderLoad closes a connection that goroutines use.
func testCloseUnderLoad(t *testing.T, p *pair) {
	src := source(t, p, device, 4096, noise(4096))
	_, dst := p.onDevice(t, 4096)
	wait := load(t, p, dst, src)
	p.close(t)
	wait()
}

// testClosedMemory uses memories that are closed.
func testClosedMemory(t *testing.T, p *pair) {
	c := p.a.Connection
	src, gone := source(t, p, device, 64, noise(64)), source(t, p, device, 64, noise(64))
	own, dst := p.onDevice(t, 64)
	_, away := p.onDevice(t, 64)
	if err := errors.Join(gone.Close(), away.Close()); err != nil {
		t.Fatal(err)
	}
	testerr.Expect(t, c.Write(dst, 0, gone, 0, 8), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
	testerr.Expect(t, c.Write(away, 0, src, 0, 8), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
	testerr.Expect(t, c.WriteBytes(away, 0, nil), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
	testerr.Expect(t, c.UpdateAndSync(away, 0, 0, 1), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
	if err := c.Write(dst, 0, src, 0, 64); err != nil {
		t.Fatal(err)
	}
	p.flush(t)
	testcmp.Equal(t, "what arrived", read[byte](t, own, 0, 64), noise(64))
}

// testMemoryClosedUnderLoad closes a memory that is being written from. Once
// Close has returned nothing reads it any more.
func testMemoryClosedUnderLoad(t *testing.T, p *pair) {
	const size = 256 << 10
	src := source(t, p, device, size, make([]byte, size))
	own, dst := p.onDevice(t, size)
	buf := src.Buffer()
	wait := load(t, p, dst, src)
	if err := src.Close(); err != nil {
		t.Error(err)
	}
	if err := gpu.CopyIn(buf, noise(size)); err != nil {
		t.Fatal(err)
	}
	wait()
	p.flush(t)
	if at := differ(make([]byte, size), read[byte](t, own, 0, size)); at >= 0 {
		t.Errorf("byte %d was read after the memory was closed", at)
	}
}

// testMemoryClosedAtPeer writes to a memory that the peer has closed. Where the
// peer's memory is mapped that works. Elsewhere the error says that it is closed, and
// the connection may fail.
func testMemoryClosedAtPeer(t *testing.T, p *pair) {
	c := p.a.Connection
	src := source(t, p, device, 64, noise(64))
	other, _ := p.onDevice(t, 64)
	own, dst := p.onDevice(t, 64)
	buf := own.Buffer()
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	err := c.Write(dst, 0, src, 0, 64)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err = p.flushUntil(ctx)
	}
	testcmp.Equal(t, "another memory", read[byte](t, other, 0, 64), make([]byte, 64))
	if dst.Buffer() != nil && err == nil {
		return
	}
	expectRemote(t, "a write to a memory that the peer has closed", err)
	if err != nil && (!strings.Contains(err.Error(), "closed") || strings.Contains(err.Error(), "process has ended")) {
		t.Errorf("the peer lives and has closed the memory, which the error does not say: %v", err)
	}
	expectZeros(t, "the memory that the peer has closed", buf)
}

// testMemoryHeardClosed makes all calls on a memory that the rank has heard to be closed. Nothing
// is sent, and the connection works on.
func testMemoryHeardClosed(t *testing.T, p *pair) {
	c := p.a.Connection
	if p.a.Heard == nil {
		t.Skip("the transport does not tell what it has heard")
	}
	src := source(t, p, device, 64, noise(64))
	own, dst := p.onDevice(t, 64)
	other, stays := p.onDevice(t, 64)
	if err := c.Write(stays, 0, src, 0, 8); err != nil {
		t.Fatal(err)
	}
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); !p.a.Heard(own); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the rank never hears that the peer has closed the memory")
		}
	}
	says := []string{"rank 0, peer 1", fmt.Sprintf("rank 1 has closed memory %d; nothing was sent", own.ID())}
	for name, err := range map[string]error{
		"write": c.Write(dst, 0, src, 0, 64), "bytes": c.WriteBytes(dst, 0, make([]byte, min(1, c.InlineLimit()))),
		"update": c.UpdateAndSync(dst, 0, 0, 1), "read": c.Read(src, 0, dst, 0, 64), "store": c.Store(dst, 0, 1),
		"addition": c.Add(dst, 0, 1), "exchange": c.Exchange(src, 0, dst, 0, 1),
	} {
		t.Run(name, func(t *testing.T) {
			if !errors.Is(err, mscclgo.ErrUnsupported) && (name != "bytes" || c.InlineLimit() > 0) {
				testerr.Expect(t, err, mscclgo.ErrRemote, says...)
			}
		})
	}
	if err := c.Write(stays, 0, src, 0, 64); err != nil {
		t.Fatal(err)
	}
	p.flush(t)
	testcmp.Equal(t, "another memory", read[byte](t, other, 0, 64), noise(64))
}

// expectRemote checks the error of what fails because of the peer.
func expectRemote(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s is no error", what)
		return
	}
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1")
}

// expectZeros checks that a buffer is as it was made.
func expectZeros(t testing.TB, what string, b *gpu.Buffer) {
	t.Helper()
	got := make([]byte, b.Size())
	if err := gpu.CopyOut(got, b); err != nil {
		t.Fatal(err)
	}
	if at := differ(make([]byte, len(got)), got); at >= 0 {
		t.Errorf("byte %d of %s was written", at, what)
	}
}

// testMemoryClosedAtPeerUnderLoad has the peer close a memory that is being written
// to. Once Close has returned, nothing changes the memory any more, unless it is
// mapped.
func testMemoryClosedAtPeerUnderLoad(t *testing.T, p *pair) {
	const size = 256 << 10
	src := source(t, p, device, size, noise(size))
	own, dst := p.onDevice(t, size)
	if dst.Buffer() != nil {
		t.Skip("the memory is mapped")
	}
	failed := make(chan error, 1)
	go func() {
		var err error
		for end := time.Now().Add(patience); err == nil && time.Now().Before(end); {
			if err = p.a.Connection.Write(dst, 0, src, 0, size); err == nil {
				err = p.a.Connection.Flush(context.Background())
			}
		}
		failed <- err
	}()
	time.Sleep(10 * time.Millisecond)
	buf := own.Buffer()
	if err := own.Close(); err != nil {
		t.Error(err)
	}
	if err := gpu.CopyIn(buf, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	var err error
	if !soon(func() { err = <-failed }) {
		t.Fatal("a write or a flush does not return")
	}
	expectRemote(t, "writing to a memory that the peer has closed", err)
	expectZeros(t, "the memory that the peer has closed", buf)
}

// testBufferClosedAtPeer makes all calls on a memory of which the peer has closed the buffer. The
// peer is named, and not its device. Where the memory is mapped the connection works on.
func testBufferClosedAtPeer(t *testing.T, p *pair) {
	c := p.a.Connection
	src := source(t, p, device, 64, noise(64))
	own, dst := p.onDevice(t, 64)
	other, stays := p.onDevice(t, 64)
	if err := own.Buffer().Close(); err != nil {
		t.Fatal(err)
	}
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"write", func() error { return c.Write(dst, 0, src, 0, 64) }},
		{"bytes", func() error { return c.WriteBytes(dst, 0, make([]byte, min(8, c.InlineLimit()))) }},
		{"update", func() error { return c.UpdateAndSync(dst, 0, 0, 1) }},
		{"read", func() error { return c.Read(src, 0, dst, 0, 64) }},
		{"store", func() error { return c.Store(dst, 0, 1) }},
		{"addition", func() error { return c.Add(dst, 0, 1) }},
		{"exchange", func() error { return c.Exchange(src, 0, dst, 0, 1) }},
	} {
		err := call.do()
		if errors.Is(err, mscclgo.ErrUnsupported) || call.name == "bytes" && c.InlineLimit() == 0 {
			continue
		}
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err = p.flushUntil(ctx)
			cancel()
		}
		expectBufferClosed(t, p, call.name, err)
	}
	if c.Transport() != registeredmem.CudaIPC {
		return
	}
	if err := c.Write(stays, 0, src, 0, 64); err != nil {
		t.Fatal(err)
	}
	p.flush(t)
	testcmp.Equal(t, "another memory", read[byte](t, other, 0, 64), noise(64))
}

// expectBufferClosed checks the error of a call on a memory of which the peer has closed the
// buffer. A network card knows of memory only, and goes on; what the peer's host does for it fails
// the connection, which gives no reason over InfiniBand.
func expectBufferClosed(t *testing.T, p *pair, what string, err error) {
	t.Helper()
	card := p.a.Connection.Transport() == registeredmem.InfiniBand
	if card && err == nil {
		return
	}
	expectRemote(t, what+" of memory of which the peer has closed the buffer", err)
	if err != nil && !card && !strings.Contains(err.Error(), "closed") {
		t.Errorf("%s: the error does not say that the peer has closed it: %v", what, err)
	}
}

// testBufferClosedAtPeerUnderLoad has the peer close the buffer of a memory while a write is under
// way, which may still use it: what was queued before is done, or refused because of that.
func testBufferClosedAtPeerUnderLoad(t *testing.T, p *pair) {
	const size = 16 << 20
	c := p.a.Connection
	src := source(t, p, device, size, make([]byte, size))
	own, dst := p.onDevice(t, size)
	if err := errors.Join(c.Write(dst, 0, src, 0, size), own.Buffer().Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.flushUntil(ctx); err != nil {
		expectBufferClosed(t, p, "the write under way", err)
	}
	err := c.Write(dst, 0, src, 0, size)
	if err == nil {
		err = p.flushUntil(ctx)
	}
	expectBufferClosed(t, p, "a write", err)
}

// testDeadPeer ends the peer. Calls fail in time, and go on failing.
func testDeadPeer(t *testing.T, p *pair) {
	if p.b.Kill == nil {
		t.Skip("the transport does not need the peer")
	}
	c := p.a.Connection
	src := source(t, p, device, 64, noise(64))
	_, dst := p.onDevice(t, 64)
	p.b.Kill()
	expectDead(t, "a write or a flush after the peer's death", func() error {
		for {
			if err := errors.Join(c.Write(dst, 0, src, 0, 64), c.Flush(context.Background())); err != nil {
				return err
			}
		}
	})
	testerr.Expect(t, c.Write(dst, 0, src, 0, 64), mscclgo.ErrRemote, "rank 0, peer 1")
	testerr.Expect(t, c.UpdateAndSync(dst, 0, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
	p.close(t)
	testerr.Expect(t, c.Flush(context.Background()), mscclgo.ErrInvalid, "closed")
}

// testDeadPeerHeld ends the peer while a flush and a mark wait for it.
func testDeadPeerHeld(t *testing.T, p *pair) {
	if p.b.Kill == nil || p.a.Hold == nil {
		t.Skip("the transport does not need the peer, or cannot be held")
	}
	c := p.a.Connection
	_, dst := p.onDevice(t, 8)
	release := p.a.Hold()
	defer release()
	if err := c.UpdateAndSync(dst, 0, 0, 1); err != nil {
		t.Fatal(err)
	}
	m, err := c.Mark()
	if err != nil {
		t.Fatal(err)
	}
	flushed := make(chan error, 1)
	go func() { flushed <- c.Flush(context.Background()) }()
	time.Sleep(10 * time.Millisecond)
	p.b.Kill()
	expectDead(t, "a flush that waits as the peer dies", func() error { return <-flushed })
	expectDead(t, "a flush after the peer's death", func() error { return c.Flush(context.Background()) })
	expectDead(t, "a mark that waits as the peer dies", func() error {
		for {
			if done, err := m.Done(); done || err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// expectDead checks that f says in time that the peer is dead.
func expectDead(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	if !soon(func() { err = f() }) {
		t.Fatalf("%s goes on", what)
	}
	expectRemote(t, what, err)
}
