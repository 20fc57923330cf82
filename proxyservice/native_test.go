package proxyservice_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/relay"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// inGo makes the services of a pair serve its channels in Go.
func inGo(t testing.TB, ranks [2]*rank) [2]*rank {
	t.Helper()
	for _, r := range ranks {
		r.conn, _ = relay.New(t, r.reg, r.other.reg.Rank(), r.conn, nil)
	}
	return ranks
}

// inC leaves the services of a pair to serve its channels in C, where they can.
func inC(_ testing.TB, ranks [2]*rank) [2]*rank { return ranks }

// faked is a connection whose threads in C use a queue of the test's. It works on
// host memory, as an emulated device's is.
type faked struct {
	conn  *connection.Connection
	relay *relay.Driver
	queue *nativetest.Queue
}

// fake returns a rank's next connection to the other rank.
func (r *rank) fake(t *testing.T) *faked {
	t.Helper()
	if testdev.CUDA() {
		t.Skip("the queue writes to host memory")
	}
	f := &faked{queue: nativetest.NewQueue()}
	f.conn, f.relay = relay.New(t, r.reg, r.other.reg.Rank(), r.connect(t), f.queue.Queue)
	t.Cleanup(func() { f.conn.Close() })
	return f
}

// channelOver returns a rank's channel over a connection, from a buffer to memory of
// the other rank, which is mapped here.
func (r *rank) channelOver(t *testing.T, conn *connection.Connection, bytes uint64) (c *channel.PortChannel, from, to *gpu.Buffer) {
	t.Helper()
	from = r.alloc(t, bytes)
	dst := r.share(t, r.other.alloc(t, bytes))
	c = testerr.Must(r.service.PortChannel(r.newSemaphore(t, conn), dst, r.register(t, from)))(t)
	r.other.newSemaphore(t, r.other.conn)
	return c, from, dst.Buffer()
}

// TestServedInC checks that nothing goes through Go where threads in C can use the
// connection.
func TestServedInC(t *testing.T) {
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	queue := r.conn.Internal().Path().Queue
	if queue == nil {
		t.Skip("threads in C cannot use the connection here")
	}
	conn, driver := relay.New(t, r.reg, r.other.reg.Rank(), r.conn, queue)
	r.conn = conn
	d := newDuo(t, ranks, 4096)
	for range 10 {
		r.must(t, d.channels[0], putWithSignalAndFlush, 8, 16, 100)
		r.must(t, d.channels[0], signal, 0, 0, 0)
		r.must(t, d.channels[0], put, 0, 0, 0)
		r.must(t, d.channels[0], get, 8, 16, 100)
		r.must(t, d.channels[0], getAndFlush, 0, 0, 0)
		r.must(t, d.channels[0], store, 8, 16, 0)
		r.must(t, d.channels[0], storeAndFlush, 8, 16, 0)
	}
	if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, 20); got != devicecode.WaitDone {
		t.Fatal(got)
	}
	if calls := driver.Calls(); calls != 0 {
		t.Errorf("%d calls went through Go", calls)
	}
}

// TestServedInGo does the same over a connection that only Go can use.
func TestServedInGo(t *testing.T) {
	t.Run("pingpong", func(t *testing.T) {
		for _, o := range []proxyservice.ServiceOptions{hostOnly, direct} {
			pingPong(t, inGo(t, newPair(t, o)), 4, 256, 20)
		}
	})
	t.Run("flush", func(t *testing.T) {
		ranks := inGo(t, newPair(t, proxyservice.ServiceOptions{Direct: channel.HostOnly, RingSize: 16}))
		d := newDuo(t, ranks, 128)
		flushAll(t, ranks[0], d.channels[0], d.send[0], ranks[0].share(t, d.receive[1]).Buffer(), 2, 64)
	})
	t.Run("with C", func(t *testing.T) {
		ranks := newPair(t, hostOnly)
		plain, _ := relay.New(t, ranks[0].reg, 1, ranks[0].connect(t), nil)
		t.Cleanup(func() { plain.Close() })
		one, _, _ := ranks[0].channelOver(t, ranks[0].conn, 64)
		other, _, _ := ranks[0].channelOver(t, plain, 64)
		for range 20 {
			ranks[0].must(t, one, putWithSignalAndFlush, 0, 0, 64)
			ranks[0].must(t, other, putWithSignalAndFlush, 0, 0, 64)
		}
	})
}

// flushAll has every thread of a grid put a byte of its own and flush.
func flushAll(t *testing.T, r *rank, c *channel.PortChannel, local, remote *gpu.Buffer, grid, block int) {
	t.Helper()
	results := r.alloc(t, uint64(4*grid*block))
	r.launch(t, "flushAll", grid, block, c.Handle(), local, remote, uint32(4), results)
	r.wait(t)
	for thread, outcome := range read[uint32](t, results, grid*block) {
		if outcome != 0 {
			t.Fatalf("thread %d: outcome %d (%v)", thread, outcome, r.service.Err())
		}
	}
}

// TestServedAlike does the same in C and in Go, and compares the peers' memory,
// signals and counters.
func TestServedAlike(t *testing.T) {
	type result struct {
		Memory   []byte
		Triggers map[uint8]uint64
		Bytes    map[registeredmem.Transports]uint64
		Flushes  uint64
	}
	play := func(ranks [2]*rank) result {
		const size = 4096
		d := newDuo(t, ranks, size)
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 7)
		}
		testerr.Check(t, gpu.CopyIn(d.send[0], data))
		signals := 0
		for i := range uint64(39) {
			what := []Action{
				put, putWithSignal, putWithSignalAndFlush, get, getAndFlush, store, storeAndFlush, signal, flush, add, exchange, addAndFlush, exchangeAndFlush,
			}[i%13]
			to, bytes := 11*i%97, i*i
			switch what {
			case store, storeAndFlush, add, addAndFlush, exchange, exchangeAndFlush:
				to, bytes = 8*to, 8*i
			}
			ranks[0].must(t, d.channels[0], what, to, 13*i%101, bytes)
			if what == putWithSignal || what == putWithSignalAndFlush || what == signal {
				signals++
			}
		}
		ranks[0].must(t, d.channels[0], flush, 0, 0, 0)
		if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, signals); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		if got := ranks[1].act(t, d.channels[1], poll, 0, 0, 0, 1); got == devicecode.WaitDone {
			t.Fatal("a signal too many")
		}
		s := ranks[0].service.Snapshot()
		return result{append(read[byte](t, d.receive[1], size), read[byte](t, d.send[0], size)...), s.Triggers, s.Bytes, s.Flushes.Count}
	}
	o := proxyservice.ServiceOptions{Direct: channel.HostOnly, Options: proxyservice.Options{Count: true}}
	gotC, gotGo := play(newPair(t, o)), play(inGo(t, newPair(t, o)))
	testcmp.Equal(t, "what serving in Go did, and in C", gotGo, gotC)
}

// TestMixedWithUsersTriggers checks that each call of the handler finds the put before
// its trigger done, and the one behind not begun.
func TestMixedWithUsersTriggers(t *testing.T) {
	const words = 200
	var r *rank
	var d *duo
	o := hostOnly
	o.RingSize = 32
	served := uint64(0)
	o.Handler = func(_ context.Context, x fifo.Trigger) error {
		if x.A != served {
			return fmt.Errorf("trigger %d came as number %d", x.A, served)
		}
		served++
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.conn.Flush(ctx); err != nil {
			return err
		}
		got := make([]uint32, words+1)
		if err := gpu.CopyOut(got, d.receive[1]); err != nil {
			return err
		}
		if got[x.A] != 1 || got[x.A+1] != 0 {
			return fmt.Errorf("at trigger %d its word is %d and the next %d", x.A, got[x.A], got[x.A+1])
		}
		return nil
	}
	ranks := newPair(t, o)
	r, d = ranks[0], newDuo(t, ranks, 4*(words+1))
	ones := make([]uint32, words+1)
	for i := range ones {
		ones[i] = 1
	}
	testerr.Check(t, gpu.CopyIn(d.send[0], ones))
	result := r.alloc(t, 4)
	r.launch(t, "mix", 1, 1, d.channels[0].Handle(), uint32(words), result)
	r.wait(t)
	if got := read[uint32](t, result, 1)[0]; got != 0 {
		t.Fatalf("result %d (%v)", got, r.service.Err())
	}
}

// TestPlaceIsKept has a handler take a place on the connection whose turn is used later. The puts
// behind its trigger come behind that.
func TestPlaceIsKept(t *testing.T) {
	const words = 20
	var r *rank
	var zeros, dst *registeredmem.Memory
	var late sync.WaitGroup
	o := hostOnly
	o.Handler = func(_ context.Context, x fifo.Trigger) error {
		late.Add(1)
		r.conn.Internal().Later(func(turn inside.Turn[connection.Operation, connection.Mark]) {
			defer late.Done()
			time.Sleep(time.Millisecond)
			testerr.Report(t, turn.Do(connection.Operation{Kind: connection.Write, Theirs: dst, Offset: 4 * (x.A + 1), Own: zeros, N: 4}))
		})
		return nil
	}
	ranks := newPair(t, o)
	r = ranks[0]
	from, to := r.alloc(t, 4*(words+1)), ranks[1].alloc(t, 4*(words+1))
	zeros, dst = r.register(t, r.alloc(t, 4)), r.share(t, to)
	c := testerr.Must(r.service.PortChannel(r.newSemaphore(t, r.conn), dst, r.register(t, from)))(t)
	ones := make([]uint32, words+1)
	for i := range ones {
		ones[i] = 1
	}
	testerr.Check(t, gpu.CopyIn(from, ones))
	result := r.alloc(t, 4)
	r.launch(t, "mix", 1, 1, c.Handle(), uint32(words), result)
	r.wait(t)
	if got := read[uint32](t, result, 1)[0]; got != 0 {
		t.Fatalf("result %d (%v)", got, r.service.Err())
	}
	r.must(t, c, flush, 0, 0, 0)
	late.Wait()
	testerr.Check(t, r.conn.Flush(t.Context()))
	ones[words] = 0
	testcmp.Equal(t, "the peer's words", read[uint32](t, to, words+1), ones)
}

// TestSignalsDuringTheLoop has goroutines signal and write over a connection that the
// loop works on. No signal is lost or seen twice.
func TestSignalsDuringTheLoop(t *testing.T) {
	for _, where := range []func(testing.TB, [2]*rank) [2]*rank{inC, inGo} {
		ranks := where(t, newPair(t, hostOnly))
		r := ranks[0]
		src, dst := r.register(t, r.alloc(t, 64)), r.share(t, ranks[1].alloc(t, 64))
		sem := r.newSemaphore(t, r.conn)
		c := testerr.Must(r.service.PortChannel(sem, dst, src))(t)
		back := testerr.Must(ranks[1].service.PortChannel(ranks[1].newSemaphore(t, ranks[1].conn), ranks[1].share(t, r.alloc(t, 64)), ranks[1].register(t, ranks[1].alloc(t, 64))))(t)
		const goroutines, each, kernels = 3, 100, 500
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range each {
					if err := errors.Join(r.conn.Write(dst, 0, src, 0, 8), sem.Signal()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		if got := r.act(t, c, putWithSignal, 8, 8, 8, kernels); got != devicecode.WaitDone {
			t.Fatalf("%v (%v)", got, r.service.Err())
		}
		wg.Wait()
		if got := ranks[1].act(t, back, wait, 0, 0, 0, goroutines*each+kernels); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		r.must(t, c, flush, 0, 0, 0)
		if got := ranks[1].act(t, back, poll, 0, 0, 0, 1); got == devicecode.WaitDone {
			t.Fatal("a signal too many")
		}
	}
}

// underLoad has a kernel put without end, takes away what that uses, and expects an
// error with the parts.
func underLoad(t *testing.T, take func(t *testing.T, dst, src *registeredmem.Memory, from *gpu.Buffer, conn *connection.Connection), parts ...string) {
	t.Helper()
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	from := r.alloc(t, 1<<16)
	src, dst := r.register(t, from), r.share(t, ranks[1].alloc(t, 1<<16))
	conn := r.connect(t)
	t.Cleanup(func() { conn.Close() })
	c := testerr.Must(r.service.PortChannel(r.newSemaphore(t, conn), dst, src))(t)
	result := r.alloc(t, 4)
	r.launch(t, "act", 1, 1, c.Handle(), int32(putWithSignal), uint64(0), uint64(0), uint64(1<<16), 1<<30, result)
	time.Sleep(5 * time.Millisecond)
	take(t, dst, src, from, conn)
	r.wait(t)
	if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitAborted {
		t.Errorf("the kernel's put ended with %v", got)
	}
	r.expectFailure(t, mscclgo.ErrInvalid, append(parts, "closed", "channel 0", "rank 0, peer 1")...)
}

func TestClosedUnderLoad(t *testing.T) {
	t.Run("peer's memory", func(t *testing.T) {
		underLoad(t, func(t *testing.T, dst, _ *registeredmem.Memory, _ *gpu.Buffer, _ *connection.Connection) {
			testerr.Report(t, dst.Close())
		}, "of rank 1")
	})
	t.Run("own memory", func(t *testing.T) {
		underLoad(t, func(t *testing.T, _, src *registeredmem.Memory, from *gpu.Buffer, _ *connection.Connection) {
			testerr.Report(t, errors.Join(src.Close(), from.Close()))
		}, "of rank 0")
	})
	t.Run("own buffer", func(t *testing.T) {
		if testdev.CUDA() {
			t.Skip("a GPU's buffer must not be closed while copies use it, and they do as long as it is registered")
		}
		underLoad(t, func(t *testing.T, _, _ *registeredmem.Memory, from *gpu.Buffer, _ *connection.Connection) {
			testerr.Report(t, from.Close())
		}, "buffer")
	})
	t.Run("connection", func(t *testing.T) {
		underLoad(t, func(t *testing.T, _, _ *registeredmem.Memory, _ *gpu.Buffer, conn *connection.Connection) {
			testerr.Report(t, conn.Close())
		}, "connection")
	})
}

// TestTablesGrowUnderLoad adds memories and channels while the loop works.
func TestTablesGrowUnderLoad(t *testing.T) {
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	d := newDuo(t, ranks, 64)
	result := r.alloc(t, 4)
	r.launch(t, "act", 1, 1, d.channels[0].Handle(), int32(putWithSignal), uint64(0), uint64(0), uint64(64), 5000, result)
	own, theirs := r.alloc(t, 4096), ranks[1].alloc(t, 4096)
	var last *channel.PortChannel
	for i := range uint64(1000) {
		part := testerr.Must(own.Slice(i%64*64, 64))(t)
		last = testerr.Must(r.service.PortChannel(r.newSemaphore(t, r.conn), r.share(t, theirs), r.register(t, part)))(t)
	}
	testerr.Check(t, gpu.CopyIn(own, bytes.Repeat([]byte{9}, 4096)))
	r.wait(t)
	if got := read[uint32](t, result, 1)[0]; got != 0 {
		t.Fatalf("result %d (%v)", got, r.service.Err())
	}
	r.must(t, last, putWithSignalAndFlush, 100, 0, 64)
	testcmp.Equal(t, "what the newest channel put", read[byte](t, theirs, 164)[100:], bytes.Repeat([]byte{9}, 64))
}

// TestFullRingForLong has threads wait for room while nobody serves.
func TestFullRingForLong(t *testing.T) {
	o := hostOnly
	o.RingSize = 2
	ranks := newPair(t, o)
	r := ranks[0]
	d := newDuo(t, ranks, 128)
	testerr.Check(t, r.service.Stop(t.Context()))
	remote := r.share(t, d.receive[1]).Buffer()
	time.AfterFunc(50*time.Millisecond, func() { r.service.Start(context.Background()) })
	flushAll(t, r, d.channels[0], d.send[0], remote, 2, 64)
}

// TestStopAndStartWhilePushing checks that no trigger is lost or served twice.
func TestStopAndStartWhilePushing(t *testing.T) {
	o := hostOnly
	o.RingSize = 8
	ranks := newPair(t, o)
	r := ranks[0]
	d := newDuo(t, ranks, 64)
	const count = 20000
	result := r.alloc(t, 4)
	r.launch(t, "act", 1, 1, d.channels[0].Handle(), int32(putWithSignal), uint64(0), uint64(0), uint64(64), count, result)
	for done := false; !done; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := r.service.Stop(ctx)
		cancel()
		testerr.Check(t, err)
		r.start(t)
		time.Sleep(time.Millisecond)
		done = testerr.Must(r.stream.Query())(t)
	}
	if got := read[uint32](t, result, 1)[0]; got != 0 {
		t.Fatalf("result %d (%v)", got, r.service.Err())
	}
	r.must(t, d.channels[0], flush, 0, 0, 0)
	if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, count); got != devicecode.WaitDone {
		t.Fatal(got)
	}
	if got := ranks[1].act(t, d.channels[1], poll, 0, 0, 0, 1); got == devicecode.WaitDone {
		t.Fatal("a signal too many")
	}
}

// eventually waits for what another goroutine or kernel does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("never:", what)
		}
	}
}

// TestFlushHoldsUpNobody has more flushes under way on one connection than a queue has
// marks, while another's go on.
func TestFlushHoldsUpNobody(t *testing.T) {
	o := hostOnly
	o.Count = true
	ranks := newPair(t, o)
	r := ranks[0]
	held := r.fake(t)
	slow, from, to := r.channelOver(t, held.conn, 256)
	quick, _, _ := r.channelOver(t, r.conn, 64)
	const grid, block = 2, 3 * nativetest.Marks
	results := r.alloc(t, 4*grid*block)
	held.queue.Hold(true)
	r.launch(t, "flushAll", grid, block, slow.Handle(), from, to, uint32(1), results)
	eventually(t, "all flushes are under way", func() bool { return held.queue.Done(native.Mark) == grid*block })

	other := testerr.Must(r.dev.NewStream())(t)
	defer other.Close()
	own := r.stream
	r.stream = other
	for range 10 {
		r.must(t, quick, putWithSignalAndFlush, 0, 0, 64)
	}
	r.stream = own
	if done, err := own.Query(); done || err != nil {
		t.Fatalf("flushes ended that are held: %v, %v", done, err)
	}
	if n := r.service.Snapshot().Flushes.Count; n != 10 {
		t.Errorf("%d flushes are counted of 10", n)
	}
	held.queue.Hold(false)
	r.wait(t)
	for thread, outcome := range read[uint32](t, results, grid*block) {
		if outcome != 0 {
			t.Fatalf("thread %d: outcome %d (%v)", thread, outcome, r.service.Err())
		}
	}
	eventually(t, "all flushes are counted", func() bool { return r.service.Snapshot().Flushes.Count == 10+grid*block })
	if reached := held.queue.Done(native.Reach); reached != nativetest.Marks {
		t.Errorf("%d marks were reached of %d", reached, nativetest.Marks)
	}
	if calls := held.relay.Calls(); calls != 0 {
		t.Errorf("%d calls went through Go", calls)
	}
}

// TestBusyQueue checks that Go serves what finds the queue in use.
func TestBusyQueue(t *testing.T) {
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	conn := r.fake(t)
	c, _, _ := r.channelOver(t, conn.conn, 64)
	conn.queue.Busy(true)
	r.must(t, c, putWithSignalAndFlush, 0, 0, 64)
	if calls := conn.relay.Calls(); calls != 3 {
		t.Errorf("%d calls went through Go, not 3", calls)
	}
	conn.queue.Busy(false)
	r.must(t, c, putWithSignalAndFlush, 0, 0, 64)
	if calls := conn.relay.Calls(); calls != 3 {
		t.Errorf("%d calls went through Go though the queue is free", calls)
	}
	if got := read[uint64](t, ranks[1].slab, 1)[0]; got != 2 {
		t.Errorf("%d signals arrived, not 2", got)
	}
}

// TestNativeFailures checks that each failure in C has the connection's error, with
// channel and ranks.
func TestNativeFailures(t *testing.T) {
	for op, what := range map[native.Op]string{native.Begin: "serve", native.Write: "put", native.Update: "signal", native.Mark: "flush", native.Reach: ""} {
		t.Run(fmt.Sprintf("operation %d", op), func(t *testing.T) {
			ranks := newPair(t, hostOnly)
			r := ranks[0]
			conn := r.fake(t)
			c, _, _ := r.channelOver(t, conn.conn, 64)
			r.must(t, c, putWithSignalAndFlush, 0, 0, 64)
			conn.queue.Fail(op, 719)
			if got := r.act(t, c, putWithSignalAndFlush, 0, 0, 64, 1); got != devicecode.WaitAborted {
				t.Errorf("the kernel's put ended with %v", got)
			}
			parts := []string{fmt.Sprintf("operation %d has code 719", op), "rank 0, peer 1"}
			if what != "" {
				parts = append(parts, "trigger 1 of kind 7", ": "+what+" (peer 1)", "channel 0")
			}
			r.expectFailure(t, mscclgo.ErrRemote, parts...)
		})
	}
}

// TestParked has the queue take a signal that must wait. The service asks until it is queued, and
// does not stop before.
func TestParked(t *testing.T) {
	for _, code := range []int{0, 719} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			ranks := newPair(t, hostOnly)
			r := ranks[0]
			conn := r.fake(t)
			c, _, _ := r.channelOver(t, conn.conn, 64)
			r.must(t, c, putWithSignalAndFlush, 0, 0, 64)
			conn.queue.Fail(native.Update, nativetest.Pending)
			conn.queue.Fail(native.Progress, nativetest.Pending)
			r.must(t, c, signal, 0, 0, 0)
			r.must(t, c, signal, 0, 0, 0)
			stopped := make(chan error, 1)
			go func() { stopped <- r.service.Stop(t.Context()) }()
			select {
			case err := <-stopped:
				t.Error("it stopped though a signal waits:", err)
			case <-time.After(50 * time.Millisecond):
			}
			conn.queue.Fail(native.Progress, code)
			err := <-stopped
			if code != 0 {
				r.expectFailure(t, mscclgo.ErrRemote, fmt.Sprintf("operation %d has code %d", native.Progress, code), "rank 0, peer 1")
				return
			}
			if n := conn.queue.Done(native.Progress); err != nil || n != 1 {
				t.Errorf("it stopped after %d ends of the wait: %v", n, err)
			}
		})
	}
}

// TestFlushBehindParked has signals wait all the time, each behind a flush of what came before. A flush
// ends when that is done, though what came later waits.
func TestFlushBehindParked(t *testing.T) {
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	conn := r.fake(t)
	c, _, _ := r.channelOver(t, conn.conn, 64)
	conn.queue.Fail(native.Update, nativetest.Pending)
	conn.queue.Fail(native.Progress, nativetest.Pending)
	for range 3 {
		r.must(t, c, signal, 0, 0, 0)
		r.must(t, c, flush, 0, 0, 0)
	}
	conn.queue.Fail(native.Progress, 0)
	testerr.Report(t, r.service.Stop(t.Context()))
}

// newParked returns a rank with a channel, over a queue that is not real, of which a signal waits.
func newParked(t *testing.T) (*rank, *faked, *channel.PortChannel) {
	t.Helper()
	r := newPair(t, hostOnly)[0]
	conn := r.fake(t)
	c, _, _ := r.channelOver(t, conn.conn, 64)
	conn.queue.Fail(native.Update, nativetest.Pending)
	conn.queue.Fail(native.Progress, nativetest.Pending)
	r.must(t, c, signal, 0, 0, 0)
	eventually(t, "the signal waits", func() bool { return conn.queue.Done(native.Begin) > 1 })
	return r, conn, c
}

// TestParkedBehindTurn has a flush wait behind somebody's turn, and a signal that was queued before the turn: it
// is posted all the same, as who has the turn may wait for the peer's answer to it.
func TestParkedBehindTurn(t *testing.T) {
	r, conn, c := newParked(t)
	turn := conn.conn.Internal().Turn()
	result := r.alloc(t, 4)
	r.launch(t, "act", 1, 1, c.Handle(), int32(flush), uint64(0), uint64(0), uint64(0), 1, result)
	eventually(t, "the flush waits for the turn", func() bool { return r.service.Snapshot().Deferred == 1 })
	before := conn.queue.Done(native.Progress)
	conn.queue.Fail(native.Progress, 0)
	eventually(t, "the signal is posted", func() bool { return conn.queue.Done(native.Progress) > before })
	turn.End()
	r.wait(t)
	testcmp.Equal(t, "the flush", devicecode.WaitResult(read[uint32](t, result, 1)[0]), devicecode.WaitDone)
}

// TestParkedOfOthers has a signal of another service wait behind one of this, which stops once its own is
// queued.
func TestParkedOfOthers(t *testing.T) {
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	conn := r.fake(t)
	c, _, _ := r.channelOver(t, conn.conn, 64)
	conn.queue.Park(true)
	r.must(t, c, signal, 0, 0, 0)
	eventually(t, "the signal waits", func() bool { return conn.queue.Done(native.Update) == 1 })
	if rc := nativetest.Do(conn.queue.Queue, native.Update, uint64(r.alloc(t, 8).Ptr()), 1, 0); rc != nativetest.Pending {
		t.Fatal(rc)
	}
	conn.queue.Unpark(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	testerr.Report(t, r.service.Stop(ctx))
}

// TestClosedWhileParked closes a connection of which a signal waits. To close it is to queue that, and
// the service goes on.
func TestClosedWhileParked(t *testing.T) {
	r, conn, _ := newParked(t)
	testerr.Report(t, conn.conn.Close())
	testerr.Report(t, r.service.Stop(t.Context()))
}

// TestClosedDuringFlush checks that closing a connection ends the waits for its flushes.
func TestClosedDuringFlush(t *testing.T) {
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	conn := r.fake(t)
	c, _, _ := r.channelOver(t, conn.conn, 64)
	conn.queue.Hold(true)
	result := r.alloc(t, 4)
	r.launch(t, "act", 1, 1, c.Handle(), int32(putWithSignalAndFlush), uint64(0), uint64(0), uint64(64), 1, result)
	eventually(t, "the flush is under way", func() bool { return conn.queue.Done(native.Mark) == 1 })
	conn.queue.Close()
	r.wait(t)
	if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitAborted {
		t.Errorf("the flush ended with %v", got)
	}
	r.expectFailure(t, mscclgo.ErrInvalid, "flush", "the connection was closed", "peer 1")
}

// TestStopTimesOutDuringFlush checks that a flush that does not end keeps Stop from
// draining.
func TestStopTimesOutDuringFlush(t *testing.T) {
	ranks := newPair(t, hostOnly)
	r := ranks[0]
	conn := r.fake(t)
	c, _, _ := r.channelOver(t, conn.conn, 64)
	conn.queue.Hold(true)
	r.launch(t, "act", 1, 1, c.Handle(), int32(putWithSignalAndFlush), uint64(0), uint64(0), uint64(64), 1, r.alloc(t, 4))
	eventually(t, "the flush is under way", func() bool { return conn.queue.Done(native.Mark) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.service.Stop(ctx); !errors.Is(err, mscclgo.ErrTimeout) {
		t.Errorf("stopping returned %v", err)
	}
}
