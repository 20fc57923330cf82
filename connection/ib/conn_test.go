package ib

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/conntest"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestConnection(t *testing.T) {
	soft := strings.HasPrefix(testDevices(t)[0], "rxe")
	for _, o := range []Options{
		{QueuePairs: 1}, {QueuePairs: 2, NoAtomics: true}, {QueuePairs: 4, Depth: minDepth},
	} {
		if testing.Short() && o.QueuePairs != 2 {
			continue // each takes minutes in a virtual machine
		}
		if soft {
			o.AckTimeout = 4 * ackUnit << 14 // both ends may get no processor for longer than a network is silent
		}
		t.Run(fmt.Sprintf("%d queue pairs, no atomics %v, depth %d", o.QueuePairs, o.NoAtomics, o.Depth), func(t *testing.T) {
			conntest.TestConnection(t, func(t testing.TB) (*conntest.Rank, *conntest.Rank) {
				a, b := newPair(t, o)
				rank := func(s *side) *conntest.Rank {
					return &conntest.Rank{Registry: s.reg, Connection: s.conn, Allocates: o.NoAtomics, Waits: o.NoAtomics, Tears: soft, Apart: true, Heard: s.d.heard, Kill: func() { s.d.Close() }}
				}
				return rank(a), rank(b)
			})
		})
	}
}

// TestCrossings counts the calls of C of a small write for which there is room: each takes as long as half
// of all else.
func TestCrossings(t *testing.T) {
	a, b := newPair(t, Options{QueuePairs: 2})
	src, dst := a.memory(t, 64, true), a.imported(t, b.memory(t, 64, true))
	least := int64(1 << 32) // others may call C meanwhile
	for range 20 {
		before := runtime.NumCgoCall()
		testerr.Check(t, a.conn.Write(dst, 0, src, 0, 64))
		least = min(least, runtime.NumCgoCall()-before)
		a.flush(t)
	}
	if least != 1 {
		t.Errorf("a write calls C %d times", least)
	}
}

// heard reports whether the peer has said that it has closed a memory.
func (c *conn) heard(m *registeredmem.Memory) bool { return c.find(m) != nil }

func TestLargeWrite(t *testing.T) {
	const size = 64 << 20
	a, b := newPair(t, Options{})
	src, mine := a.memory(t, size, false), b.memory(t, size, false)
	values := make([]uint64, size/8)
	for i := range values {
		values[i] = uint64(i)
	}
	testerr.Check(t, gpu.CopyIn(src.Buffer(), values))
	testerr.Check(t, a.conn.Write(a.imported(t, mine), 0, src, 0, size))
	a.flush(t)
	got := make([]uint64, size/8)
	read(t, mine, 0, got)
	if !slices.Equal(got, values) { // a diff of 64 MiB helps nobody
		t.Error("the values are wrong")
	}
}

// whole returns a number with its complement above it. The next round's write may be
// under way while a word is read, and is only bytes to a device: halves of two
// numbers do not match.
func whole(n uint64) uint64 { return n | (^n&0xffffffff)<<32 }

// puts has one side write rounds of n bytes that hold the round's number, each
// with an update, and the other check that it sees the data once it sees the update.
func puts(t *testing.T, from, to *side, rounds, n uint64, pinned bool) {
	src, mine := from.memory(t, 8*rounds+n, false), to.memory(t, 8+n, false)
	word := to.memory(t, 8, pinned)
	dst, flag := from.imported(t, mine), from.imported(t, word)
	fill := make([]uint64, rounds+n/8)
	for i := range fill {
		fill[i] = whole(uint64(i))
	}
	testerr.Check(t, gpu.CopyIn(src.Buffer(), fill))
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := uint64(1); k <= rounds; k++ {
			if err := errors.Join(from.conn.Write(dst, 8, src, 8*(k-1), n), from.conn.UpdateAndSync(flag, 0, k-1, k)); err != nil {
				t.Error(err)
				return
			}
		}
		from.flush(t)
	})
	defer wg.Wait()
	seen, last, ends := make([]uint64, 1), uint64(0), make([]uint64, 1)
	for end := time.Now().Add(patience); seen[0] < rounds && !t.Failed(); {
		read(t, word, 0, seen)
		for _, at := range []uint64{0, n / 2 / 8 * 8, n - 8} {
			for ends[0] = 0; ends[0] != whole(uint64(uint32(ends[0]))) && time.Now().Before(end); {
				if read(t, mine, 8+at, ends); seen[0] == 0 {
					ends[0] = whole(0) // there may be nothing yet
				}
			}
			ends[0] = uint64(uint32(ends[0]))
			if seen[0] > 0 && ends[0] < seen[0]-1+at/8 || seen[0] < last {
				t.Errorf("the word went from %d to %d, the data at %d is %d", last, seen[0], at, ends[0])
			}
		}
		last = seen[0]
		if time.Now().After(end) {
			t.Errorf("the word stays at %d", seen[0])
		}
	}
}

// TestSeveralNICs has connections that use two devices of each side.
func TestSeveralNICs(t *testing.T) {
	names := testDevices(t)
	for _, no := range []bool{false, true} {
		a, b := newPair(t, Options{Device: names[0] + "," + names[1], NoAtomics: no})
		if q := a.d.queues; len(q) != 2 || q[0].nic == q[1].nic {
			t.Fatalf("the queue pairs are %v", q)
		}
		puts(t, a, b, 20, 400_000, false)
	}
}

// TestNumbersOfNICsDiffer has one side with two devices and one with one. They have one queue
// pair in common, on the first device.
func TestNumbersOfNICsDiffer(t *testing.T) {
	names := testDevices(t)
	two, one := newSide(t, 0, Options{Device: names[0] + "," + names[1]}), newSide(t, 1, Options{Device: names[1]})
	connect(t, two, one)
	if p, q := two.d.queues, one.d.queues; len(p) != 1 || len(q) != 1 || p[0].nic.name != names[0] {
		t.Fatalf("the queue pairs are %v and %v", p, q)
	}
	puts(t, two, one, 20, 400_000, false)
	puts(t, one, two, 20, 400_000, true)
}

func TestSelf(t *testing.T) {
	testDevices(t)
	s := newSide(t, 0, Options{})
	e, err := s.t.NewEndpoint()
	testerr.Check(t, err)
	data := testerr.Must(e.MarshalBinary())(t)
	c := testerr.Must(e.Connect(t.Context(), data))(t)
	m := s.memory(t, 16, false)
	// To connect anew is an error, which the connection does not notice.
	other := testerr.Must(decode(data))(t)
	other.queues[0].nic = 1
	_, err = e.Connect(t.Context(), other.encode())
	testerr.Expect(t, err, mscclgo.ErrInvalid, "before")
	testerr.Check(t, errors.Join(c.UpdateAndSync(m, 8, 0, 5), c.Flush(t.Context()), c.Close(), c.Close()))
	got := make([]uint64, 2)
	if read(t, m, 0, got); got[1] != 5 {
		t.Errorf("the words are %d", got)
	}
	testerr.Expect(t, c.UpdateAndSync(m, 8, 5, 6), mscclgo.ErrInvalid, "closed")
	_, err = e.Connect(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "before")
}

// TestHostBehindDevice counts the requests of updates. An update of host memory first
// reads device memory that was changed before. Here that is the host's too.
func TestHostBehindDevice(t *testing.T) {
	a, b := newPair(t, Options{})
	c, d := a.conn, a.d
	if !d.adds {
		t.Skip("there are no atomics: updates are carried out by the peer's process")
	}
	src, device, host := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false)), a.imported(t, b.memory(t, 64, true))
	k := testerr.Must(d.remote("test", device))(t)
	k.device = true
	for i, step := range []struct {
		do       func() error
		requests uint64
	}{
		{func() error { return c.UpdateAndSync(host, 0, 0, 1) }, 1},
		{func() error { return c.Write(device, 0, src, 0, 64) }, 1},
		{func() error { return c.UpdateAndSync(host, 0, 1, 2) }, 2}, // behind the write
		{func() error { return c.UpdateAndSync(host, 0, 2, 3) }, 1},
		{func() error { return c.Write(device, 0, src, 0, 8) }, 1},
		{func() error { return c.UpdateAndSync(device, 8, 0, 1) }, 1},
		{func() error { return c.UpdateAndSync(device, 8, 1, 2) }, 1},
		{func() error { return c.UpdateAndSync(host, 0, 3, 4) }, 2}, // behind the device's update
		{func() error { return c.UpdateAndSync(host, 0, 4, 5) }, 1},
	} {
		before := d.queues[0].posted
		testerr.Check(t, step.do())
		if got := d.queues[0].posted - before; got != step.requests {
			t.Errorf("step %d made %d requests, want %d", i, got, step.requests)
		}
	}
	a.flush(t)
}

// TestReadsLand counts the requests of flushes, of which the first behind a read into device
// memory writes a byte of it. Here that is the host's too.
func TestReadsLand(t *testing.T) {
	a, b := newPair(t, Options{})
	c, d := a.conn, a.d
	src, host, device := a.imported(t, b.memory(t, 64, false)), a.memory(t, 64, true), a.memory(t, 64, false)
	a.t.registered(device.ID()).device = true
	for i, step := range []struct {
		do       func() error
		requests uint64
	}{
		{func() error { return c.Read(host, 0, src, 0, 64) }, 2}, // the first is a greeting
		{func() error { return c.Flush(t.Context()) }, 0},
		{func() error { return c.Read(device, 0, src, 0, 64) }, 1},
		{func() error { return c.Read(host, 0, src, 0, 64) }, 1},
		{func() error { return c.Flush(t.Context()) }, 1},
		{func() error { return c.Flush(t.Context()) }, 0},
		{func() error { return c.Read(device, 8, src, 0, 8) }, 1},
		{func() error { return c.Flush(t.Context()) }, 1},
	} {
		before := d.queues[0].posted
		testerr.Check(t, step.do())
		if got := d.queues[0].posted - before; got != step.requests {
			t.Errorf("step %d made %d requests, want %d", i, got, step.requests)
		}
	}
}

func TestBadOptions(t *testing.T) {
	name := testDevices(t)[0]
	for want, o := range map[string]Options{
		"no such RDMA device": {Device: "none0"},
		"no port 9":           {Device: name, Port: 9},
		"Depth":               {Device: name, Depth: 1},
		"the list of devices \"" + name + ",\" has": {Device: name + ","},
	} {
		_, err := New(newRegistry(t, 0), o)
		testerr.Expect(t, err, mscclgo.ErrInvalid, want, "rank 0")
	}
}

func TestRemoteAccessError(t *testing.T) {
	a, b := newPair(t, Options{})
	src, theirs := a.memory(t, 64, false), b.memory(t, 64, false)
	dst := a.imported(t, theirs)
	testerr.Check(t, theirs.Close())
	testerr.Check(t, a.conn.Write(dst, 8, src, 0, 16))
	err := a.conn.Flush(t.Context())
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "remote access error", "write of 16 bytes at offset 8 of memory 0 of rank 1", "queue pair")
	testerr.Expect(t, a.conn.Write(dst, 8, src, 0, 16), mscclgo.ErrRemote, "has failed")
	testerr.Report(t, a.conn.Close())
}

func TestBadMessage(t *testing.T) {
	a, b := newPair(t, Options{NoAtomics: true})
	theirs := b.memory(t, 64, false)
	dst := a.imported(t, theirs)
	testerr.Check(t, errors.Join(theirs.Close(), a.conn.UpdateAndSync(dst, 0, 0, 1)))
	expectFailure(t, b, mscclgo.ErrRemote, "there is no memory 0")
}

// TestDeviceFailsMessage: what this rank's device cannot do is not the peer's fault.
func TestDeviceFailsMessage(t *testing.T) {
	a, b := newPair(t, Options{NoAtomics: true})
	b.t.host = func(*gpu.Buffer) []byte { return nil }
	dst := a.imported(t, b.memory(t, 64, false))
	testerr.Check(t, errors.Join(b.t.changer.stream.Close(), a.conn.Add(dst, 0, 1)))
	expectFailure(t, b, mscclgo.ErrSystem, "this rank's device could not", "is closed")
}

// expectFailure waits until b's connection has failed.
func expectFailure(t *testing.T, b *side, kind mscclgo.Kind, texts ...string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := b.d.failed("test"); err != nil {
			testerr.Expect(t, err, kind, append(texts, "rank 1, peer 0")...)
			return
		}
		if time.Now().After(end) {
			t.Fatal("the connection has not failed")
		}
	}
}

// TestPeerNeverConnects writes to a queue pair that no Connect made ready.
func TestPeerNeverConnects(t *testing.T) {
	testDevices(t)
	a, b := newSide(t, 0, Options{AckTimeout: time.Millisecond, Retries: 2}), newSide(t, 1, Options{})
	mine := testerr.Must(a.t.NewEndpoint())(t)
	theirs := testerr.Must(b.t.NewEndpoint())(t)
	data := testerr.Must(theirs.MarshalBinary())(t)
	testerr.Check(t, a.connect(t, mine.(*endpoint), data))
	src, dst := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false))
	testerr.Check(t, a.conn.Write(dst, 0, src, 0, 64))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testerr.Expect(t, a.conn.Flush(ctx), mscclgo.ErrRemote, "the peer does not answer", "rank 0, peer 1", "queue pair")
}

// TestSilence has requests under way that the device sends anew for longer than the
// transport waits.
func TestSilence(t *testing.T) {
	a, b := newPair(t, Options{Timeout: 500 * time.Millisecond, AckTimeout: time.Minute})
	src, dst := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false))
	testerr.Check(t, errors.Join(b.conn.Close(), a.conn.Write(dst, 0, src, 0, 64)))
	start := time.Now()
	testerr.Expect(t, a.conn.Flush(t.Context()), mscclgo.ErrRemote, "acknowledged nothing for", "write of 64 bytes", "rank 0, peer 1")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestInboxFull keeps the peer's process from carrying updates out: no more are sent
// than it has room for, and none is lost.
func TestInboxFull(t *testing.T) {
	const updates = 3 * messages
	a, b := newPair(t, Options{NoAtomics: true})
	word := b.memory(t, 8, true)
	dst := a.imported(t, word)
	b.t.nics[0].mu.Lock()
	sent := make(chan error, 1)
	go func() {
		for k := range uint64(updates) {
			if err := a.conn.UpdateAndSync(dst, 0, k, k+1); err != nil {
				sent <- err
				return
			}
		}
		sent <- a.conn.Flush(t.Context())
	}()
	select {
	case err := <-sent:
		t.Errorf("%d updates are sent, though the peer has room for %d: %v", updates, messages, err)
	case <-time.After(300 * time.Millisecond):
	}
	b.t.nics[0].mu.Unlock()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	got := make([]uint64, 1)
	for end := time.Now().Add(patience); got[0] < updates; read(t, word, 0, got) {
		if time.Now().After(end) {
			t.Fatalf("the word stays at %d", got[0])
		}
	}
}

// TestPeerProcessStuck is TestInboxFull for good.
func TestPeerProcessStuck(t *testing.T) {
	a, b := newPair(t, Options{NoAtomics: true, Timeout: 300 * time.Millisecond})
	dst := a.imported(t, b.memory(t, 8, true))
	b.t.nics[0].mu.Lock()
	defer b.t.nics[0].mu.Unlock()
	for k := range uint64(2 * messages) {
		if err := a.conn.UpdateAndSync(dst, 0, k, k+1); err != nil {
			testerr.Expect(t, err, mscclgo.ErrRemote, "applied none of 256 updates", "rank 0, peer 1")
			return
		}
	}
	t.Error("all updates were taken")
}

func descriptors(t *testing.T) int {
	entries := testerr.Must(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

func TestConnectAndCloseLeavesNothing(t *testing.T) {
	testDevices(t)
	a, b := newSide(t, 0, Options{QueuePairs: 2}), newSide(t, 1, Options{NoAtomics: true})
	src, dst := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, true))
	var files int
	var verbs, memory string
	for i := range 101 {
		connect(t, a, b)
		testerr.Check(t, errors.Join(a.conn.Write(dst, 0, src, 0, 64), a.conn.UpdateAndSync(dst, 0, 0, 1), a.conn.Close(), b.conn.Close()))
		if i == 0 {
			files, verbs, memory = descriptors(t), objects(t), pinned(t)
		}
	}
	if after := descriptors(t); after > files {
		t.Errorf("%d descriptors, then %d", files, after)
	}
	if after := objects(t); after != verbs {
		t.Errorf("verbs objects:\n%sthen:\n%s", verbs, after)
	}
	if after := pinned(t); after != memory {
		t.Errorf("%sthen %s", memory, after)
	}
	if len(a.t.live)+len(b.t.live)+len(a.t.nics[0].conns)+len(b.t.nics[0].conns) > 0 {
		t.Errorf("%d and %d connections are kept", len(a.t.live), len(b.t.live))
	}
}
