package proxyservice_test

import (
	"context"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/relay"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// newRemote returns a rank and its channel over a queue that leads over a network, to memory that is
// not mapped.
func newRemote(t *testing.T) (*rank, *channel.PortChannel, *faked) {
	t.Helper()
	if testdev.CUDA() {
		t.Skip("the queue is the host's")
	}
	ranks := newFarPair(t, proxyservice.ServiceOptions{RingSize: 64})
	r := ranks[0]
	f := &faked{queue: nativetest.NewRemoteQueue()}
	f.conn, f.relay = relay.New(t, r.reg, 1, r.conn, f.queue.Queue)
	r.conn = f.conn
	d := newDuo(t, ranks, 4096)
	t.Cleanup(func() {
		if n := f.queue.Wrong(); n != 0 {
			t.Errorf("%d operations or requests were not done as they were asked for", n)
		}
		if n := f.relay.Calls(); n != 0 {
			t.Errorf("%d calls went through Go", n)
		}
	})
	return r, d.channels[0], f
}

// TestRemoteInC has kernels ask for many times what a backlog holds of a queue over a network. All is
// done in C, and kernels are told of it, or they would wait.
func TestRemoteInC(t *testing.T) {
	const many = 3 * layout.PortWaiting
	r, c, f := newRemote(t)
	for _, a := range []Action{put, putWithSignal, signal, get, store} {
		bytes := uint64(8)
		if a == signal {
			bytes = 0
		}
		if got := r.act(t, c, a, 8, 16, bytes, many); got != devicecode.WaitDone {
			t.Fatalf("action %d: %v (%v)", a, got, r.service.Err())
		}
		r.must(t, c, flush, 0, 0, 0)
	}
	for _, a := range []Action{putWithSignalAndFlush, getAndFlush, storeAndFlush} {
		r.must(t, c, a, 8, 16, 8)
	}
	for op, want := range map[native.Op]int{native.Write: 3*many + 2, native.Update: 2*many + 1, native.Store: many + 1, native.Mark: 8} {
		if got := f.queue.Done(op); got != want {
			t.Errorf("operation %d was done %d times, not %d", op, got, want)
		}
	}
}

// TestRemoteParks has the queue take all but have it wait: kernels go on, flushes and a stop wait too.
func TestRemoteParks(t *testing.T) {
	const many = 2 * layout.PortWaiting
	r, c, f := newRemote(t)
	f.queue.Park(true)
	if got := r.act(t, c, putWithSignal, 8, 16, 8, many); got != devicecode.WaitDone {
		t.Fatalf("%v (%v)", got, r.service.Err())
	}
	result := r.alloc(t, 4)
	r.launch(t, "act", 1, 1, c.Handle(), int32(flush), uint64(0), uint64(0), uint64(0), 1, result)
	eventually(t, "all is taken", func() bool { return f.queue.Done(native.Mark) == 1 })
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		stopped <- r.service.Stop(ctx)
	}()
	select {
	case err := <-stopped:
		t.Fatalf("the service stopped, and what it has taken waits: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if done, err := r.stream.Query(); done || err != nil {
		t.Fatalf("a flush ended behind what waits: %v, %v", done, err)
	}
	f.queue.Park(false)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	r.wait(t)
	var end [1]uint32
	if err := gpu.CopyOut(end[:], result); err != nil || end[0] != uint32(devicecode.WaitDone) {
		t.Errorf("the flush ended with %d, %v", end[0], err)
	}
	if n := f.queue.Done(native.Update); n != many {
		t.Errorf("%d signals were queued, not %d", n, many)
	}
}
