package proxyservice_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// newProxy returns a proxy on a ring of its own, and a rank whose kernels push.
func newProxy(t *testing.T, h proxyservice.Handler, o proxyservice.Options) (*rank, *fifo.Ring, *proxyservice.Proxy) {
	t.Helper()
	r := newRank(t, 0, false)
	ring := testerr.Must(fifo.New(r.dev, fifo.Options{Size: 4, Watch: r.watch()}))(t)
	p := testerr.Must(proxyservice.NewProxy(ring, h, o))(t)
	t.Cleanup(func() {
		r.abort()
		r.wait(t)
		r.stream.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		p.Stop(ctx)
		ring.Close()
	})
	return r, ring, p
}

// push has a kernel push a trigger and wait until it was served.
func (r *rank) push(t *testing.T, ring *fifo.Ring, a uint64) {
	t.Helper()
	result := r.alloc(t, 4)
	r.launch(t, "pushRaw", 1, 1, ring.Handle(), a, uint64(0), uint64(0), uint64(0), uint32(200), result)
	r.wait(t)
	if got := read[uint32](t, result, 1)[0]; got != 0 {
		t.Fatalf("the push ended with %d", got)
	}
}

// TestServedAfterBeingIdle checks that a trigger is served however far the proxy has
// backed off, and that Snapshot counts both.
func TestServedAfterBeingIdle(t *testing.T) {
	for name, o := range map[string]proxyservice.Options{
		"spinning": {Spin: time.Hour, Count: true},
		"sleeping": {Spin: -1, Sleep: 2 * time.Millisecond, Count: true},
		"defaults": {Count: true},
	} {
		t.Run(name, func(t *testing.T) {
			var sum atomic.Uint64
			r, ring, p := newProxy(t, func(_ context.Context, t fifo.Trigger) error { sum.Add(t.A); return nil }, o)
			testerr.Check(t, p.Start(t.Context()))
			for i := range 3 {
				time.Sleep(20 * time.Millisecond)
				r.push(t, ring, uint64(i+1))
			}
			testerr.Check(t, p.Stop(t.Context()))
			s := p.Snapshot()
			if sum.Load() != 6 || s.Triggers[200] != 3 {
				t.Errorf("served %d triggers with sum %d", s.Triggers[200], sum.Load())
			}
			if s.Idle < 40*time.Millisecond {
				t.Errorf("idle for %v", s.Idle)
			}
		})
	}
}

// TestIdleProxyLeavesTheCore measures the processor time of an idle proxy.
func TestIdleProxyLeavesTheCore(t *testing.T) {
	_, _, p := newProxy(t, func(context.Context, fifo.Trigger) error { return nil }, proxyservice.Options{})
	testerr.Check(t, p.Start(t.Context()))
	time.Sleep(20 * time.Millisecond)
	const long = 300 * time.Millisecond
	before, start := processorTime(t), time.Now()
	time.Sleep(long)
	if used, took := processorTime(t)-before, time.Since(start); used > took/3 {
		t.Errorf("the process used %v of a core in %v", used, took)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	testerr.Check(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestAffinity(t *testing.T) {
	var allowed unix.CPUSet
	testerr.Check(t, unix.SchedGetaffinity(0, &allowed))
	cpu := 0
	for !allowed.IsSet(cpu) {
		cpu++
	}
	seen := make(chan unix.CPUSet, 1)
	cpus := []int{cpu}
	r, ring, p := newProxy(t, func(context.Context, fifo.Trigger) error {
		var own unix.CPUSet
		err := unix.SchedGetaffinity(0, &own)
		seen <- own
		return err
	}, proxyservice.Options{CPUs: cpus})
	cpus[0] = -1 // the slice is the caller's
	testerr.Check(t, p.Start(t.Context()))
	r.push(t, ring, 0)
	if own := <-seen; own.Count() != 1 || !own.IsSet(cpu) {
		t.Errorf("the proxy may run on %d CPUs", own.Count())
	}
}

func TestServing(t *testing.T) {
	type seen struct {
		position uint64
		kind     uint8
		ok       bool
	}
	during := make(chan seen, 1)
	var proxy atomic.Pointer[proxyservice.Proxy]
	r, ring, p := newProxy(t, func(context.Context, fifo.Trigger) error {
		p := proxy.Load()
		var s seen
		s.position, s.kind, s.ok = p.Serving()
		during <- s
		return nil
	}, proxyservice.Options{})
	proxy.Store(p)
	if _, _, ok := p.Serving(); ok {
		t.Error("it serves before it is started")
	}
	testerr.Check(t, p.Start(t.Context()))
	for position := range uint64(3) {
		r.push(t, ring, 0)
		if got := <-during; !got.ok || got.position != position {
			t.Errorf("trigger %d: %+v", position, got)
		}
	}
	testerr.Check(t, p.Stop(t.Context()))
	if _, _, ok := p.Serving(); ok {
		t.Error("it serves after it was stopped")
	}
}

func TestWrongProxies(t *testing.T) {
	for _, cpus := range [][]int{{-1}, {0, 1024}} {
		_, _, p := newProxy(t, func(context.Context, fifo.Trigger) error { return nil }, proxyservice.Options{CPUs: cpus})
		if err := p.Start(t.Context()); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("CPUs %v: %v", cpus, err)
		}
	}
	_, ring, _ := newProxy(t, func(context.Context, fifo.Trigger) error { return nil }, proxyservice.Options{})
	if _, err := proxyservice.NewProxy(ring, nil, proxyservice.Options{}); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("no handler: %v", err)
	}
	if _, err := proxyservice.NewProxy(nil, func(context.Context, fifo.Trigger) error { return nil }, proxyservice.Options{}); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("no ring: %v", err)
	}
	_, closed, p := newProxy(t, func(context.Context, fifo.Trigger) error { return nil }, proxyservice.Options{})
	closed.Close()
	if err := p.Start(t.Context()); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a closed ring: %v", err)
	}
	_, _, p = newProxy(t, func(context.Context, fifo.Trigger) error { return nil }, proxyservice.Options{})
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("stopping what was not started: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Start(ended); !errors.Is(err, mscclgo.ErrAborted) {
		t.Errorf("starting with an ended context: %v", err)
	}
	testerr.Check(t, p.Start(t.Context()))
	if err := p.Start(t.Context()); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("starting twice: %v", err)
	}
}

// TestClosedUnderTheProxy closes what a proxy uses while it runs.
func TestClosedUnderTheProxy(t *testing.T) {
	device, err := gpu.Open(testdev.Name(t, 0))
	testerr.Check(t, err)
	ring := testerr.Must(fifo.New(device, fifo.Options{}))(t)
	p, err := proxyservice.NewProxy(ring, func(context.Context, fifo.Trigger) error { return nil }, proxyservice.Options{Rank: 7})
	if err == nil {
		err = p.Start(t.Context())
	}
	testerr.Check(t, err)
	testerr.Expect(t, ring.Close(), mscclgo.ErrInvalid, "the proxy of rank 7 serves it")
	testerr.Expect(t, device.Close(), mscclgo.ErrInvalid, "the proxy of rank 7 uses its memory")
	testerr.Report(t, errors.Join(p.Stop(t.Context()), ring.Close(), device.Close()))
	testerr.Expect(t, p.Start(t.Context()), mscclgo.ErrInvalid, "its ring is closed")
}
