package proxyservice_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// raw is a trigger as pushRaw takes it.
type raw struct {
	a, b, c, detail uint64
	kind            uint32
}

// expectFailure checks that the service has failed with an error of a kind whose text
// has the parts, and that it has called OnFailure.
func (r *rank) expectFailure(t *testing.T, kind mscclgo.Kind, parts ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for r.failure.Load() == nil && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	err := r.service.Err()
	testerr.Expect(t, err, kind, parts...)
	if r.failure.Load() == nil || !errors.Is(*r.failure.Load(), err) {
		t.Fatalf("the service has failed with %v, and OnFailure was called with %v", err, r.failure.Load())
	}
	if err := r.service.Start(t.Context()); err == nil {
		t.Error("a failed service started again")
	}
}

// TestWrongTriggers checks that each fails the group and ends the kernel's wait as
// aborted.
func TestWrongTriggers(t *testing.T) {
	const put, signal, inline, get, store = layout.PortPut, layout.PortSignal, layout.PortInline, layout.PortGet, layout.PortStore
	const add, exchange = layout.PortAdd, layout.PortExchange
	for _, c := range []struct {
		name    string
		trigger raw
		parts   []string
	}{
		{"no kind", raw{kind: 0}, []string{"kind 0"}},
		{"unknown kind", raw{kind: 64}, []string{"kind 64"}},
		{"user's kind without a handler", raw{kind: 200}, []string{"kind 200", "Handler"}},
		{"unknown channel", raw{kind: signal, detail: 1}, []string{"channel has number 1"}},
		{"channel beyond 16 bits", raw{kind: signal, detail: 1 << 40}, []string{"channel"}},
		{"unknown dst", raw{a: 9 << 48, b: 1 << 48, c: 8, kind: put}, []string{"channel 0", "memory has number 9", "peer 1"}},
		{"unknown src", raw{b: 65535 << 48, c: 8, kind: put}, []string{"channel 0", "memory has number 65535"}},
		{"dst outside", raw{a: 4090, b: 1 << 48, c: 8, kind: put}, []string{"channel 0", "rank 0, peer 1", "offset 4090"}},
		{"src outside", raw{b: 1<<48 | 4096, c: 1, kind: put}, []string{"channel 0", "offset 4096"}},
		{"offset beyond all", raw{a: 1<<48 - 1, b: 1 << 48, c: 1<<48 - 1, kind: put}, []string{"channel 0", "outside"}},
		{"size beyond all", raw{b: 1 << 48, c: ^uint64(0), kind: put}, []string{"2^48"}},
		{"dst of this rank", raw{a: 1 << 48, b: 1 << 48, c: 8, kind: put}, []string{"channel 0", "memory"}},
		{"bytes without a put", raw{c: 8, kind: signal | inline}, []string{"kind 10"}},
		{"bytes for a copy", raw{b: 3, c: 8, kind: put | inline}, []string{"channel 0", "rank 0, peer 1", "at most 0"}},
		{"get of this rank's", raw{a: 1 << 48, b: 1 << 48, c: 8, kind: get}, []string{"channel 0", "get", "8 bytes at offset 0 of memory 1", "outside the peer's"}},
		{"get to the peer's", raw{c: 8, kind: get}, []string{"channel 0", "get", "outside this rank's"}},
		{"get from outside", raw{a: 1 << 48, b: 4090, c: 8, kind: get}, []string{"channel 0", "rank 0, peer 1", "offset 4090"}},
		{"get to outside", raw{a: 1<<48 | 4090, c: 8, kind: get}, []string{"channel 0", "rank 0, peer 1", "offset 4090"}},
		{"get beyond all", raw{a: 1 << 48, c: ^uint64(0), kind: get}, []string{"2^48"}},
		{"get with a put", raw{a: 1 << 48, c: 8, kind: get | put}, []string{"kind 17"}},
		{"get with a signal", raw{a: 1 << 48, c: 8, kind: get | signal}, []string{"kind 18"}},
		{"store outside", raw{a: 4089, c: 8, kind: store}, []string{"channel 0", "store", "offset 4089"}},
		{"store of this rank's", raw{a: 1 << 48, c: 8, kind: store}, []string{"channel 0", "store", "outside the peer's"}},
		{"store that is not aligned", raw{a: 12, c: 8, kind: store}, []string{"channel 0", "store", "offset 12", "not aligned"}},
		{"store to nothing", raw{a: 9 << 48, c: 8, kind: store}, []string{"channel 0", "store", "memory has number 9"}},
		{"store of half a word", raw{c: 4, kind: store}, []string{"not of 8 bytes"}},
		{"store with a put", raw{c: 8, kind: store | put}, []string{"kind 33"}},
		{"store and a get", raw{a: 1 << 48, c: 8, kind: store | get}, []string{"kind 48"}},
		{"add outside", raw{a: 4089, c: 8, kind: add}, []string{"channel 0", "add", "8 bytes at offset 4089"}},
		{"add to this rank's", raw{a: 1 << 48, c: 8, kind: add}, []string{"channel 0", "add", "outside the peer's"}},
		{"add that is not aligned", raw{a: 12, c: 8, kind: add}, []string{"channel 0", "add", "offset 12", "not aligned"}},
		{"add to nothing", raw{a: 9 << 48, c: 8, kind: add}, []string{"channel 0", "add", "memory has number 9"}},
		{"add of half a word", raw{c: 4, kind: add}, []string{"not of 8 bytes"}},
		{"exchange outside", raw{a: 4089, b: 1 << 48, c: 1, kind: exchange}, []string{"channel 0", "exchange", "8 bytes at offset 4089", "outside the peer's"}},
		{"exchange of this rank's", raw{a: 1 << 48, b: 1 << 48, kind: exchange}, []string{"channel 0", "exchange", "outside the peer's"}},
		{"exchange into the peer's", raw{c: ^uint64(0), kind: exchange}, []string{"channel 0", "exchange", "outside this rank's"}},
		{"exchange into nothing", raw{b: 7 << 48, kind: exchange}, []string{"channel 0", "exchange", "memory has number 7"}},
		{"exchange that is not aligned", raw{a: 4, b: 1 << 48, kind: exchange}, []string{"channel 0", "exchange", "offset 4", "not aligned"}},
		{"add and an exchange", raw{b: 1 << 48, c: 8, kind: add | exchange}, []string{"kind 112"}},
		{"exchange with a signal", raw{b: 1 << 48, c: 8, kind: exchange | signal}, []string{"kind 82"}},
		{"add with a put", raw{b: 1 << 48, c: 8, kind: add | put}, []string{"kind 97"}},
		{"src of the peer", raw{c: 8, kind: put}, []string{"channel 0", "memory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wrongTrigger(t, newPair(t, hostOnly), c.trigger, c.parts...)
		})
	}
}

// wrongTrigger has rank 0 push a trigger that fails its service.
func wrongTrigger(t *testing.T, ranks [2]*rank, x raw, parts ...string) {
	t.Helper()
	newDuo(t, ranks, 4096) // channel 0; memory 0 is the peer's, memory 1 this rank's
	r := ranks[0]
	result := r.alloc(t, 4)
	r.launch(t, "pushRaw", 1, 1, r.service.Fifo(), x.a, x.b, x.c, x.detail, x.kind, result)
	r.wait(t)
	if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitAborted {
		t.Errorf("the kernel's wait ended with %v", got)
	}
	r.expectFailure(t, mscclgo.ErrInvalid, parts...)
}

// TestNumbersBeyondTheirFields checks that a put with an offset that its field cannot
// hold names no other bytes.
func TestNumbersBeyondTheirFields(t *testing.T) {
	ranks := newPair(t, direct)
	d := newDuo(t, ranks, 4096)
	if got := ranks[0].act(t, d.channels[0], putWithSignalAndFlush, 1<<48, 0, 8, 1); got != devicecode.WaitAborted {
		t.Errorf("the put ended with %v", got)
	}
	ranks[0].expectFailure(t, mscclgo.ErrInvalid, "2^48")
}

func TestPutOutsideFailsThoughSmall(t *testing.T) {
	ranks := newPair(t, direct)
	d := newDuo(t, ranks, 4096)
	if got := ranks[0].act(t, d.channels[0], putWithSignalAndFlush, 4090, 0, 8, 1); got != devicecode.WaitAborted {
		t.Errorf("the put ended with %v", got)
	}
	ranks[0].expectFailure(t, mscclgo.ErrInvalid, "offset 4090", "channel 0")
}

func TestWrongChannels(t *testing.T) {
	ranks := newPair(t, proxyservice.ServiceOptions{MaxConnections: 1})
	r := ranks[0]
	own, theirs := r.register(t, r.alloc(t, 64)), r.share(t, ranks[1].alloc(t, 64))
	sem := r.newSemaphore(t, r.conn)
	if _, err := r.service.PortChannel(sem, own, own); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a channel into this rank's memory over a connection to another: %v", err)
	}
	if _, err := r.service.PortChannel(sem, theirs, theirs); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a channel from the peer's memory: %v", err)
	}
	pinned := testerr.Must(r.dev.AllocHost(64))(t)
	defer pinned.Close()
	if _, err := r.service.PortChannel(sem, theirs, r.register(t, pinned)); err != nil {
		t.Errorf("a channel from pinned memory: %v", err)
	}
	more := r.connect(t)
	defer more.Close()
	if _, err := r.service.BasePortChannel(r.newSemaphore(t, more)); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "MaxConnections") {
		t.Errorf("a connection too many: %v", err)
	}
	if _, err := r.service.AddMemory(nil); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a nil memory: %v", err)
	}
	if _, err := r.service.AddSemaphore(nil); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a nil semaphore: %v", err)
	}
	for _, o := range []proxyservice.ServiceOptions{{MaxConnections: -1}, {RingSize: 3, Watch: r.watch()}, {Inline: fifo.MaxPayload + 1, Watch: r.watch()}, {Watch: r.watch(), Options: proxyservice.Options{Sleep: -1}}} {
		if _, err := proxyservice.New(r.dev, o); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("options %+v: %v", o, err)
		}
	}
}

// pusher has a kernel push one user's trigger into a service with a handler.
func pusher(t *testing.T, o proxyservice.ServiceOptions) (*rank, devicecode.WaitResult) {
	t.Helper()
	ranks := newPair(t, o)
	r := ranks[0]
	result := r.alloc(t, 4)
	r.launch(t, "pushRaw", 1, 1, r.service.Fifo(), uint64(1), ^uint64(0), uint64(3), uint64(4), uint32(130), result)
	r.wait(t)
	return r, devicecode.WaitResult(read[uint32](t, result, 1)[0])
}

func TestUsersTrigger(t *testing.T) {
	served := make(chan fifo.Trigger, 1)
	_, result := pusher(t, proxyservice.ServiceOptions{Handler: func(_ context.Context, t fifo.Trigger) error {
		served <- t
		return nil
	}})
	if result != devicecode.WaitDone {
		t.Fatalf("the kernel's wait ended with %v", result)
	}
	testcmp.Equal(t, "the handler's trigger", <-served, fifo.Trigger{A: 1, B: ^uint64(0), C: 3, Detail: 4, Kind: 130})
}

func TestHandlerPanics(t *testing.T) {
	r, result := pusher(t, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error { panic("no such luck") }})
	if result != devicecode.WaitAborted {
		t.Errorf("the kernel's wait ended with %v", result)
	}
	r.expectFailure(t, mscclgo.ErrSystem, "no such luck", "kind 130", "failure_test.go")
}

// TestHandlerGoexit has the handler end its goroutine, as FailNow of a test does.
func TestHandlerGoexit(t *testing.T) {
	r, result := pusher(t, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error {
		runtime.Goexit()
		return nil
	}})
	if result != devicecode.WaitAborted {
		t.Errorf("the kernel's wait ended with %v", result)
	}
	r.expectFailure(t, mscclgo.ErrSystem, "Goexit", "kind 130", "trigger 0")
}

// TestHandlerStops has the handler stop and close its own service, which is refused,
// and call what it may.
func TestHandlerStops(t *testing.T) {
	var service *proxyservice.ProxyService
	var memory *registeredmem.Memory
	errs := make(chan error, 4)
	ready := make(chan struct{})
	ranks := newPair(t, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error {
		<-ready
		errs <- service.Stop(context.Background())
		errs <- service.Close()
		errs <- service.Start(context.Background())
		_, err := service.AddMemory(memory)
		service.Snapshot()
		errs <- err
		return nil
	}})
	r := ranks[0]
	service, memory = r.service, r.register(t, r.alloc(t, 64))
	close(ready)
	for range 2 { // the service goes on
		result := r.alloc(t, 4)
		r.launch(t, "pushRaw", 1, 1, r.service.Fifo(), uint64(0), uint64(0), uint64(0), uint64(0), uint32(130), result)
		r.wait(t)
		if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitDone {
			t.Fatalf("the kernel's wait ended with %v", got)
		}
		testerr.Expect(t, <-errs, mscclgo.ErrInvalid, "own goroutine", "rank 0")
		testerr.Expect(t, <-errs, mscclgo.ErrInvalid, "own goroutine", "rank 0")
		testerr.Expect(t, <-errs, mscclgo.ErrInvalid, "it is running")
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	testerr.Report(t, r.service.Stop(t.Context()))
}

// blocked returns a rank whose handler has begun to serve a trigger and returns when
// release is closed, and the result of the kernel that pushed it.
func blocked(t *testing.T) (r *rank, result *gpu.Buffer, release chan struct{}) {
	t.Helper()
	begun, release := make(chan struct{}), make(chan struct{})
	ranks := newPair(t, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error {
		close(begun)
		<-release
		return nil
	}})
	r = ranks[0]
	result = r.alloc(t, 4)
	r.launch(t, "pushRaw", 1, 1, r.service.Fifo(), uint64(0), uint64(0), uint64(0), uint64(0), uint32(130), result)
	<-begun
	return r, result, release
}

// TestHandlerBlocks closes a service whose handler does not return. Close returns, and
// the ring stays until the handler has.
func TestHandlerBlocks(t *testing.T) {
	r, result, release := blocked(t)
	testerr.Expect(t, r.service.Close(), mscclgo.ErrTimeout, "the handler", "has not returned", "trigger 0 of kind 130", "rank 0")
	r.wait(t)
	if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitAborted {
		t.Errorf("the kernel's wait ended with %v", got)
	}
	if err := r.service.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if n := r.service.Snapshot().Waiting; n != 1 {
		t.Errorf("%d triggers are in the ring", n)
	}
	close(release)
	eventually(t, "the ring is closed", func() bool { return r.service.Snapshot().Waiting == 0 })
	r.expectFailure(t, mscclgo.ErrTimeout, "the handler")
	r.failure.Store(nil) // as the test has seen it
}

// TestHandlerWaits closes a service whose handler waits for what does not come, until its context
// ends.
func TestHandlerWaits(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	ranks := newPair(t, proxyservice.ServiceOptions{Handler: func(ctx context.Context, _ fifo.Trigger) error {
		close(begun)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}})
	r := ranks[0]
	result := r.alloc(t, 4)
	r.launch(t, "pushRaw", 1, 1, r.service.Fifo(), uint64(0), uint64(0), uint64(0), uint64(0), uint32(130), result)
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testerr.Expect(t, r.service.Stop(ctx), mscclgo.ErrTimeout, "1 triggers are in the ring", "while trigger 0 of kind 130 is served")
	testerr.Expect(t, <-ended, mscclgo.ErrTimeout, "trigger 0 of kind 130")
	if err := r.service.Stop(t.Context()); err != nil {
		t.Errorf("stopping again: %v", err)
	}
	testerr.Expect(t, r.service.Close(), mscclgo.ErrTimeout, "kind 130")
	r.wait(t)
	r.expectFailure(t, mscclgo.ErrTimeout, "kind 130")
	r.failure.Store(nil) // as the test has seen it
}

// TestStopTogether has two goroutines stop a service whose handler is slow. The one that
// cannot wait ends both.
func TestStopTogether(t *testing.T) {
	r, _, release := blocked(t)
	stopped := make(chan error)
	go func() { stopped <- r.service.Stop(context.Background()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	go func() {
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond)
		close(release)
	}()
	testerr.Expect(t, r.service.Stop(ctx), mscclgo.ErrTimeout, "1 triggers are in the ring")
	testerr.Expect(t, <-stopped, mscclgo.ErrTimeout, "1 triggers are in the ring")
	r.wait(t)
}

func TestHandlerFails(t *testing.T) {
	cause := errors.New("out of luck")
	r, result := pusher(t, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error { return cause }})
	if result != devicecode.WaitAborted {
		t.Errorf("the kernel's wait ended with %v", result)
	}
	r.expectFailure(t, mscclgo.ErrSystem, "out of luck", "trigger 0", "rank 0")
	if !errors.Is(r.service.Err(), cause) {
		t.Error("the cause is lost")
	}
	if n := r.service.Snapshot().Failures; n != 1 {
		t.Errorf("%d failures are counted", n)
	}
}

// TestStopUnderLoad checks that the group fails when kernels that go on pushing keep
// Stop from draining, and that a later service works.
func TestStopUnderLoad(t *testing.T) {
	served := make(chan struct{}, 1)
	ranks := newPair(t, proxyservice.ServiceOptions{RingSize: 16, Handler: func(context.Context, fifo.Trigger) error {
		select {
		case served <- struct{}{}:
		default:
		}
		time.Sleep(20 * time.Millisecond) // so that the ring, once full, is not empty before the kernels run again
		return nil
	}})
	r := ranks[0]
	const grid, block = 2, 16
	results := r.alloc(t, grid*block*4)
	r.launch(t, "flood", grid, block, r.service.Fifo(), results)
	<-served
	eventually(t, "the ring is full", func() bool { return r.service.Snapshot().Waiting == 16 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := r.service.Stop(ctx); !errors.Is(err, mscclgo.ErrTimeout) {
		t.Fatalf("stopping under load returned %v", err)
	}
	r.wait(t)
	for thread, result := range read[uint32](t, results, grid*block) {
		if got := devicecode.WaitResult(result); got != devicecode.WaitAborted {
			t.Errorf("thread %d ended with %v", thread, got)
		}
	}
	r.expectFailure(t, mscclgo.ErrTimeout, "triggers are in the ring")

	later := newPair(t, hostOnly)
	e := newDuo(t, later, 64)
	later[0].must(t, e.channels[0], putWithSignalAndFlush, 0, 0, 64)
}

func TestClosedService(t *testing.T) {
	ranks := newPair(t, direct)
	r := ranks[0]
	known, sem := r.register(t, r.alloc(t, 64)), r.newSemaphore(t, r.conn)
	_, err := r.service.AddMemory(known)
	if err == nil {
		_, err = r.service.AddSemaphore(sem)
	}
	testerr.Check(t, err)
	_, err = r.service.AddMemory(ranks[1].register(t, ranks[1].alloc(t, 64)))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "is in a registry for", "the service is for")
	other := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Device: known.Registry().Device()}))(t)
	defer other.Close()
	foreign := testerr.Must(other.Register(known.Buffer()))(t)
	_, err = r.service.AddMemory(foreign)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "is in another registry than the service's connections")
	base := testerr.Must(r.service.BasePortChannel(sem))(t)
	_, err = channel.NewPortChannel(base, known, foreign, 0, 0)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "is in another registry than the semaphore's connection")
	testerr.Check(t, r.service.Close())
	if err := r.service.Close(); err != nil {
		t.Fatalf("closing twice: %v", err)
	}
	if err := r.service.Start(t.Context()); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("starting a closed service: %v", err)
	}
	if _, err := r.service.AddMemory(r.peers); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("adding a memory to a closed service: %v", err)
	}
	if _, err := r.service.AddMemory(known); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a memory of a closed service: %v", err)
	}
	if _, err := r.service.BasePortChannel(sem); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a channel of a closed service: %v", err)
	}
	if s := r.service.Snapshot(); s.Waiting != 0 {
		t.Errorf("a closed ring holds %d triggers", s.Waiting)
	}
}
