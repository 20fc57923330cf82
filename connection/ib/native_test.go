package ib

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// port is what a thread in C does for a port channel from a to b, without a proxy.
type port struct {
	t        *testing.T
	a, b     *side
	from, to *registeredmem.Memory // of a
	at       *registeredmem.Memory // to, as b has it
	sent     uint64                // signals; the word is the last of to
}

func newPort(t *testing.T, o Options, bytes uint64) *port {
	a, b := newPair(t, o)
	if !a.d.adds {
		t.Skip("there are no atomics: threads in C cannot use the connection")
	}
	p := &port{t: t, a: a, b: b, from: a.memory(t, bytes, true), at: b.memory(t, bytes, true)}
	p.to = a.imported(t, p.at)
	return p
}

func placeIn(m *registeredmem.Memory, offset uint64) nativetest.Place {
	return nativetest.Place{Range: m.Internal().Range(), Offset: offset}
}

func (p *port) queue() *native.Queue { return p.a.conn.Internal().Path().Queue }

// meet has Go use the connection and its memories first.
func (p *port) meet() {
	p.t.Helper()
	if err := p.a.conn.Write(p.to, 0, p.from, 0, 8); err != nil {
		p.t.Fatal(err)
	}
	p.a.flush(p.t)
}

func (p *port) put(n uint64) nativetest.Request {
	return nativetest.Request{Dst: placeIn(p.to, 0), Src: placeIn(p.from, 0), Bytes: n}
}

// signaled is a request with a signal behind it, which is counted if it is served.
func (p *port) signaled(r nativetest.Request) nativetest.Request {
	r.Word, r.From, r.To = placeIn(p.to, p.to.Size()-8), p.sent, p.sent+1
	return r
}

// must serves a request.
func (p *port) must(r nativetest.Request, want int) {
	p.t.Helper()
	if rc := nativetest.Serve(p.queue(), r); rc != want {
		p.t.Fatalf("a thread in C got %d, want %d; the connection: %v", rc, want, p.a.d.failed("look"))
	}
	if want != nativetest.Busy && r.Word.Range != nil {
		p.sent++
	}
}

// reach waits for a mark and returns its result.
func (p *port) reach(mark uint64) int {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Microsecond) {
		if rc := nativetest.Do(p.queue(), native.Reach, mark, 0, 0); rc != nativetest.Pending && rc != nativetest.Busy {
			return rc
		}
		if time.Now().After(end) {
			p.t.Fatal("a mark is not reached")
		}
	}
}

// word returns the last word of the peer's, which counts the signals.
func (p *port) word() uint64 {
	words := p.words(p.at)
	return atomic.LoadUint64(&words[len(words)-1])
}

// progress has what is parked posted.
func (p *port) progress() int {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Microsecond) {
		if rc := nativetest.Do(p.queue(), native.Progress, 0, 0, 0); rc != nativetest.Pending && rc != nativetest.Busy {
			return rc
		}
		if time.Now().After(end) {
			p.t.Fatal("it stays parked")
		}
	}
}

func (p *port) words(m *registeredmem.Memory) []uint64 {
	b := m.Buffer().Bytes()
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
}

// TestServedInC has C do each kind of request, once Go has found the keys, and counts what it
// posts.
func TestServedInC(t *testing.T) {
	p := newPort(t, Options{}, 4096)
	p.must(p.signaled(p.put(64)), nativetest.Busy) // the first is Go's
	p.meet()
	own, theirs := p.words(p.from), p.words(p.at)
	q := p.a.d.queues[0]
	for i, c := range []struct {
		change   func(*nativetest.Request)
		requests uint64
	}{
		{func(r *nativetest.Request) { *r = p.signaled(*r) }, 2},
		{func(r *nativetest.Request) { *r = p.signaled(*r); r.Mark = 1 }, 3},
		{func(r *nativetest.Request) { r.Bytes, r.Mark = 0, 1 }, 0},
		{func(r *nativetest.Request) { r.Bytes = 0; *r = p.signaled(*r) }, 1},
		{func(r *nativetest.Request) { r.Bytes, r.Stores, r.Value, r.Mark = 0, true, 99, 16 }, 2},
		{func(r *nativetest.Request) {
			*r = nativetest.Request{Dst: placeIn(p.from, 128), Src: placeIn(p.to, 8), Bytes: 8, Reads: true, Mark: 2}
		}, 1},
	} {
		own[1], theirs[0] = uint64(100+i), 0
		before, sent, r := q.posted, p.sent, p.put(64)
		c.change(&r)
		want := 0
		if r.Mark > 0 {
			want = nativetest.Pending
		}
		p.must(r, want)
		if got := q.posted - before; got != c.requests {
			t.Errorf("request %d is %d, not %d", i, got, c.requests)
		}
		p.must(nativetest.Request{Mark: 3}, nativetest.Pending)
		if rc := p.reach(2); rc != 0 {
			t.Fatalf("a mark returned %d", rc)
		}
		switch {
		case r.Reads && own[16] != theirs[1]:
			t.Errorf("request %d read %d, not %d", i, own[16], theirs[1])
		case r.Stores && theirs[0] != 99:
			t.Errorf("request %d stored %d", i, theirs[0])
		case r.Bytes == 64 && theirs[1] != own[1]:
			t.Errorf("request %d wrote %d, not %d", i, theirs[1], own[1])
		}
		if r.Word.Range != nil && sent+1 != p.sent || p.word() != p.sent {
			t.Errorf("request %d: the word is %d, and %d were sent", i, p.word(), p.sent)
		}
	}
}

// TestOtherRegistriesInC has a thread in C asked for memories of other registries of the two ranks, whose
// numbers it knows: they are left to Go, which refuses them.
func TestOtherRegistriesInC(t *testing.T) {
	p := newPort(t, Options{}, 64)
	p.meet()
	p.must(p.put(8), 0)
	var others [2]*registeredmem.Memory
	for rank := range others {
		others[rank] = p.a.imported(t, newSide(t, rank, Options{}).memory(t, 64, true))
		if others[rank].ID() != p.to.ID() || others[rank].ID() != p.from.ID() {
			t.Fatalf("the numbers of the memories differ: %v, %v and %v", p.from, p.to, others[rank])
		}
	}
	at := func(r nativetest.Request, change func(*nativetest.Request)) nativetest.Request {
		change(&r)
		return r
	}
	for name, r := range map[string]nativetest.Request{
		"put to another":    at(p.put(8), func(r *nativetest.Request) { r.Dst = placeIn(others[1], 0) }),
		"put from another":  at(p.put(8), func(r *nativetest.Request) { r.Src = placeIn(others[0], 0) }),
		"signal another":    at(p.signaled(p.put(8)), func(r *nativetest.Request) { r.Word = placeIn(others[1], 0) }),
		"store to another":  {Dst: placeIn(others[1], 0), Stores: true, Value: 9},
		"read from another": {Dst: placeIn(p.from, 0), Src: placeIn(others[1], 0), Bytes: 8, Reads: true},
		"read to another":   {Dst: placeIn(others[0], 0), Src: placeIn(p.to, 0), Bytes: 8, Reads: true},
	} {
		if rc := nativetest.Serve(p.queue(), r); rc != nativetest.Busy {
			t.Errorf("%s: a thread in C got %d", name, rc)
		}
	}
	testerr.Expect(t, p.a.conn.Write(others[1], 0, p.from, 0, 8), mscclgo.ErrInvalid, "another transport of the rank")
	testerr.Expect(t, p.a.conn.Write(p.to, 0, others[0], 0, 8), mscclgo.ErrInvalid, "another transport of the rank")
	p.a.flush(t)
}

// TestBusyInC lists what C leaves to Go.
func TestBusyInC(t *testing.T) {
	p := newPort(t, Options{}, 4096)
	p.meet()
	unknown := p.a.memory(t, 64, true)
	p.a.d.mu.Lock()
	p.must(p.put(8), nativetest.Busy)
	p.a.d.mu.Unlock()
	p.must(p.put(8), 0)
	p.must(nativetest.Request{Dst: placeIn(p.to, 0), Src: placeIn(unknown, 0), Bytes: 8}, nativetest.Busy)
	testerr.Check(t, p.at.Close())
	for end := time.Now().Add(patience); !p.a.d.heard(p.to); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a memory is never heard to be closed")
		}
	}
	p.must(p.put(8), nativetest.Busy)
	testerr.Expect(t, p.a.conn.Write(p.to, 0, p.from, 0, 8), mscclgo.ErrRemote, "nothing was sent")
}

// TestParkedInC has an update wait, as behind a read of another queue pair. What comes behind
// waits too, in C and in Go.
func TestParkedInC(t *testing.T) {
	p := newPort(t, Options{QueuePairs: 2}, 4096)
	p.meet()
	d, first, second := p.a.d, p.a.d.queues[0], p.a.d.queues[1]
	second.waitFor = 1
	before := first.posted
	p.must(p.signaled(p.put(8)), nativetest.Pending)
	if got := first.posted - before; got != 1 {
		t.Errorf("%d requests are posted, not the write alone", got)
	}
	marked := p.put(8)
	marked.Mark = 1
	p.must(marked, nativetest.Pending)
	for range 14 {
		p.must(p.signaled(p.put(8)), nativetest.Pending)
	}
	p.must(p.put(8), nativetest.Busy)
	for what, rc := range map[string]int{"the mark": nativetest.Do(p.queue(), native.Reach, 0, 0, 0), "progress": nativetest.Do(p.queue(), native.Progress, 0, 0, 0)} {
		if rc != nativetest.Pending {
			t.Errorf("%s returns %d", what, rc)
		}
	}
	if d.Ready(connection.Write, 8) {
		t.Error("Go is told that it need not wait")
	}
	if got := first.posted - before; got != 1 || p.word() != 0 {
		t.Errorf("%d requests are posted, and the word is %d", got, p.word())
	}
	written := make(chan error, 1)
	go func() { written <- p.a.conn.UpdateAndSync(p.to, 64, 0, 1) }()
	select {
	case err := <-written:
		t.Error("Go overtakes what is parked:", err)
	case <-time.After(50 * time.Millisecond):
	}
	second.mayPass()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if d.c.parked_from != d.c.queue.taken {
		t.Error("Go overtook what was parked")
	}
	if rc := p.progress(); rc != 0 {
		t.Errorf("progress returned %d", rc)
	}
	if rc := p.reach(0); rc != 0 {
		t.Errorf("the mark returned %d", rc)
	}
	p.a.flush(t)
	if p.word() != p.sent || p.sent != 15 {
		t.Errorf("the word is %d, and %d signals were sent", p.word(), p.sent)
	}
}

// TestMarkedInC has a mark wait. It is set with what is before it, so that it takes no room of a turn that
// begins then.
func TestMarkedInC(t *testing.T) {
	p := newPort(t, Options{QueuePairs: 2}, 4096)
	p.meet()
	d, first, second := p.a.d, p.a.d.queues[0], p.a.d.queues[1]
	second.waitFor = 1
	r := p.signaled(p.put(8))
	r.Mark = 1
	p.must(r, nativetest.Pending)
	second.mayPass()
	if !d.Ready(connection.Write, 8) {
		t.Error("nothing waits, and there is room")
	}
	before := first.posted
	if rc := p.reach(0); rc != 0 || p.word() != 1 {
		t.Errorf("the mark returned %d, and the word is %d", rc, p.word())
	}
	if got := first.posted - before; got != 0 {
		t.Errorf("the mark takes %d requests of a turn's room", got)
	}
}

// mayPass has updates wait for the queue no more. A call that waits looks all the time.
func (q *queue) mayPass() { atomic.StoreUint64(&q.waitFor, 0) }

// TestReadInC has C read what it writes, and write what it reads: each waits for the one before
// it where the two would be in each other's way.
func TestReadInC(t *testing.T) {
	p := newPort(t, Options{}, 4096)
	p.meet()
	own, theirs := p.words(p.from), p.words(p.at)
	const rounds = 50
	for k := uint64(1); k <= rounds; k++ {
		own[0] = k
		for _, r := range []nativetest.Request{
			p.put(8), // to the peer's first word
			{Dst: placeIn(p.from, 8*k), Src: placeIn(p.to, 0), Bytes: 8, Reads: true},      // and back
			{Dst: placeIn(p.to, 8*k), Src: placeIn(p.from, 8*k), Bytes: 8},                 // from there to another
			p.signaled(nativetest.Request{Src: placeIn(p.from, 0), Dst: placeIn(p.to, 0)}), // which tells of it
		} {
			if rc := nativetest.Serve(p.queue(), r); rc != 0 && rc != nativetest.Pending {
				t.Fatalf("round %d: %d", k, rc)
			}
		}
		p.sent++
		if rc := p.progress(); rc != 0 {
			t.Fatal(rc)
		}
		for end := time.Now().Add(patience); p.word() < k; {
			if time.Now().After(end) {
				t.Fatalf("signal %d does not come", k)
			}
		}
		if got := atomic.LoadUint64(&theirs[k]); got != k {
			t.Fatalf("round %d wrote %d", k, got)
		}
	}
}

// TestOrderInC has C put and signal, and Go what C leaves to it, while another goroutine flushes
// and writes elsewhere for the first half. The peer sees no signal before its data.
func TestOrderInC(t *testing.T) {
	for _, c := range []struct {
		o         Options
		n, rounds uint64
	}{{Options{Depth: minDepth}, 8, 3000}, {Options{QueuePairs: 2}, 2 * spreadFrom, 100}, {Options{QueuePairs: 4, Depth: minDepth}, 2 * spreadFrom, 100}} {
		t.Run(fmt.Sprintf("%d bytes, %d queue pairs", c.n, c.o.QueuePairs), func(t *testing.T) { orderInC(t, newPort(t, c.o, c.n+2048), c.n, c.rounds) })
	}
}

func orderInC(t *testing.T, p *port, n, rounds uint64) {
	p.meet()
	own, theirs := p.words(p.from), p.words(p.at)
	ends := []uint64{0, n / 16, n/8 - 1}
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for !stop.Load() && p.word() < rounds/2 { // then C has the connection alone
			if err := errors.Join(p.a.conn.Write(p.to, n+1024, p.from, n+1024, 64), p.a.conn.Flush(t.Context())); err != nil {
				t.Error(err)
				return
			}
		}
	})
	all.Go(func() {
		for seen := uint64(0); seen < rounds && !stop.Load(); {
			if seen = p.word(); seen == 0 {
				continue
			}
			for _, at := range ends {
				if data := atomic.LoadUint64(&theirs[at]); uint32(data) < uint32(seen) {
					t.Errorf("signal %d came before its data, which is %d at word %d", seen, data, at)
					return
				}
			}
		}
	})
	defer all.Wait()
	defer stop.Store(true)
	inC := 0
	for p.sent < rounds && !t.Failed() {
		// The source is read later, but never an older value.
		for _, at := range ends {
			atomic.StoreUint64(&own[at], p.sent+1)
		}
		switch rc := nativetest.Serve(p.queue(), p.signaled(p.put(n))); rc {
		case 0, nativetest.Pending:
			inC++
		case nativetest.Busy:
			turn := p.a.conn.Internal().Turn()
			err := errors.Join(
				turn.Do(connection.Operation{Kind: connection.Write, Theirs: p.to, Own: p.from, N: n}),
				turn.Do(connection.Operation{Kind: connection.Update, Theirs: p.to, Offset: p.to.Size() - 8, From: p.sent, To: p.sent + 1}))
			turn.End()
			testerr.Check(t, err)
		default:
			t.Fatalf("a thread in C got %d: %v", rc, p.a.d.failed("look"))
		}
		p.sent++
	}
	p.a.flush(t)
	if got := p.word(); got != rounds {
		t.Errorf("%d of %d signals arrived", got, rounds)
	}
	if inC == 0 {
		t.Error("C served none")
	}
	t.Logf("C served %d of %d", inC, rounds)
}

// TestThreadsInC has two threads in C, of two services, use a connection. Each finds it free, or soon.
func TestThreadsInC(t *testing.T) {
	const each, words = 2000, 512
	p := newPort(t, Options{Depth: 1024}, 8*words)
	p.meet()
	own, theirs := p.words(p.from), p.words(p.at)
	var inC [2]atomic.Int64
	var all sync.WaitGroup
	for i := range inC {
		data, word := uint64(8*8*i), uint64(8*(words-1-8*i))
		all.Go(func() {
			for sent := uint64(0); sent < each; {
				atomic.StoreUint64(&own[data/8], sent+1)
				r := nativetest.Request{Dst: placeIn(p.to, data), Src: placeIn(p.from, data), Bytes: 8, Word: placeIn(p.to, word), From: sent, To: sent + 1}
				switch rc := nativetest.Serve(p.queue(), r); rc {
				case nativetest.Busy: // so much waits
				case 0, nativetest.Pending:
					sent++
					inC[i].Add(1)
				default:
					t.Errorf("thread %d got %d: %v", i, rc, p.a.d.failed("look"))
					return
				}
			}
		})
	}
	all.Wait()
	p.a.flush(t)
	for i := range inC {
		if data, signals := theirs[8*i], theirs[words-1-8*i]; data != each || signals != each {
			t.Errorf("thread %d: %d arrived with signal %d", i, data, signals)
		}
	}
}

// TestClosedUnderLoadInC closes the connection, or its driver, while a thread in C uses it.
func TestClosedUnderLoadInC(t *testing.T) {
	for name, end := range map[string]func(*side) error{
		"the connection": func(s *side) error { return s.conn.Close() },
		"the transport":  func(s *side) error { return s.d.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(t, Options{}, 4096)
			p.meet()
			var served atomic.Int64
			last := make(chan int)
			go func() {
				for {
					switch rc := nativetest.Serve(p.queue(), p.signaled(p.put(64))); rc {
					case nativetest.Busy:
					case 0, nativetest.Pending:
						p.sent++
						served.Add(1)
					default:
						last <- rc
						return
					}
				}
			}()
			for deadline := time.Now().Add(patience); served.Load() < 200; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("it serves nothing")
				}
			}
			testerr.Report(t, end(p.a))
			if rc := <-last; rc != nativetest.Closed {
				t.Errorf("the last request got %d", rc)
			}
		})
	}
}

// TestFailureInC has a request fail that C posted. Its flush has the error that Go's has, and
// what comes later is left to Go, which returns the reason too.
func TestFailureInC(t *testing.T) {
	p := newPort(t, Options{AckTimeout: time.Millisecond, Retries: 2}, 4096)
	p.meet()
	testerr.Check(t, p.b.d.Close())
	r := p.put(64)
	r.Mark = 1
	p.must(r, nativetest.Pending)
	rc := p.reach(0)
	if rc == 0 {
		t.Fatal("the mark is reached")
	}
	err := p.a.conn.Internal().Error(native.Failure{Op: native.Reach, Code: rc})
	testerr.Expect(t, err, mscclgo.ErrRemote, "the peer does not answer", fmt.Sprintf("write of 64 bytes at offset 0 of memory %d of rank 1 (4096 bytes)", p.to.ID()), "rank 0, peer 1", "queue pair")
	p.must(p.put(8), nativetest.Busy)
	testerr.Expect(t, p.a.conn.Write(p.to, 0, p.from, 0, 8), mscclgo.ErrRemote, "has failed", "the peer does not answer")
	testerr.Report(t, p.a.conn.Close())
}

// TestFailureOfParkedInC is TestFailureInC of what was parked when the peer went away.
func TestFailureOfParkedInC(t *testing.T) {
	p := newPort(t, Options{QueuePairs: 2, AckTimeout: time.Millisecond, Retries: 2}, 2*spreadFrom+64)
	p.meet()
	testerr.Check(t, p.b.d.Close())
	p.must(p.signaled(p.put(2*spreadFrom)), nativetest.Pending)
	rc := p.progress()
	if rc == 0 {
		t.Fatal("the signal is posted")
	}
	err := p.a.conn.Internal().Error(native.Failure{Op: native.Progress, Code: rc})
	testerr.Expect(t, err, mscclgo.ErrRemote, "the peer does not answer", "rank 0, peer 1", "queue pair")
	testerr.Expect(t, p.a.conn.Write(p.to, 0, p.from, 0, 8), mscclgo.ErrRemote, "has failed", "the peer does not answer")
}

// TestSilenceInC has the peer acknowledge nothing of what C posts.
func TestSilenceInC(t *testing.T) {
	p := newPort(t, Options{Timeout: 500 * time.Millisecond, AckTimeout: time.Minute}, 4096)
	p.meet()
	testerr.Check(t, p.b.conn.Close())
	r := p.put(64)
	r.Mark = 1
	p.must(r, nativetest.Pending)
	err := p.a.conn.Internal().Error(native.Failure{Op: native.Reach, Code: p.reach(0)})
	testerr.Expect(t, err, mscclgo.ErrRemote, "acknowledged nothing for", "write of 64 bytes", "rank 0, peer 1")
}

// TestNoAtomicsInC: updates that are messages are Go's.
func TestNoAtomicsInC(t *testing.T) {
	a, _ := newPair(t, Options{NoAtomics: true})
	if a.conn.Internal().Path().Queue != nil {
		t.Error("threads in C can use a connection without atomics")
	}
}
