package proxyservice_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// slow is the driver of a connection whose peer takes nothing until it is released. Its
// queue has room for a few operations, and a call that finds it full waits.
type slow struct {
	mu       sync.Mutex
	changed  sync.Cond
	released bool
	fails    error // what calls return once it is released
	queued   int
	log      []string
	conn     *connection.Connection // the driver's
}

const slowRoom = 8

func newSlow() *slow {
	d := &slow{}
	d.changed.L = &d.mu
	return d
}

// Ready reports false for an exchange, which always waits for the peer, as over InfiniBand.
func (d *slow) Ready(k connection.Kind, _ uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return k != connection.Exchange && (d.released || d.queued+2 <= slowRoom)
}

func (d *slow) add(format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.released && d.queued == slowRoom {
		d.changed.Wait()
	}
	if d.fails != nil {
		return d.fails
	}
	d.queued++
	d.log = append(d.log, fmt.Sprintf(format, args...))
	return nil
}

func (d *slow) Submit(o connection.Operation) error {
	switch o.Kind {
	case connection.WriteBytes:
		return d.add("put %x to %d", o.Data, o.Offset)
	case connection.Update:
		return d.add("from %d to %d", o.From, o.To)
	case connection.Add:
		return d.add("add %d to %d", o.To, o.Offset)
	case connection.Exchange:
		d.mu.Lock()
		for !d.released {
			d.changed.Wait()
		}
		d.mu.Unlock()
		return d.add("exchange %d for %d into %d", o.Offset, o.To, o.OwnOffset)
	}
	return d.add("put %d to %d from %d", o.N, o.Offset, o.OwnOffset)
}

func (d *slow) InlineLimit() uint64 { return 64 }

func (d *slow) NewMark() (connection.DriverMark, error) { return &slowMark{d}, nil }

func (d *slow) Close() error {
	d.release()
	return nil
}

func (d *slow) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.released = true
	d.changed.Broadcast()
}

func (d *slow) calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log
}

type slowMark struct{ d *slow }

func (m *slowMark) Set() error { return nil }
func (m *slowMark) Reached() (bool, error) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	return m.d.released, nil
}
func (m *slowMark) Close() error { return nil }

// newSlowChannel returns a channel of rank 0 that shares its service with a duo's, over a
// slow connection of its own.
func newSlowChannel(t *testing.T, ranks [2]*rank, d *duo) (*channel.PortChannel, *slow) {
	t.Helper()
	driver := newSlow()
	conn := testerr.Must(connection.New(ranks[0].reg, 1, registeredmem.Ethernet, driver))(t)
	driver.conn = conn
	t.Cleanup(func() { conn.Close() })
	t.Cleanup(driver.release)
	sem := ranks[0].newSemaphore(t, conn)
	ranks[1].newSemaphore(t, ranks[1].conn)
	c := testerr.Must(ranks[0].service.PortChannel(sem, ranks[0].share(t, d.receive[1]), ranks[0].register(t, d.send[0])))(t)
	return c, driver
}

// TestSlowPeer has a peer that takes nothing. The channel to it takes hundreds of puts
// all the same, and the channel over another connection is served as if there was no
// slow one. What waited is done in order.
func TestSlowPeer(t *testing.T) {
	ranks := newFarPair(t, proxyservice.ServiceOptions{})
	d := newDuo(t, ranks, 4096)
	held, driver := newSlowChannel(t, ranks, d)
	const puts = 400
	if got := ranks[0].act(t, held, putWithSignal, 128, 0, 1000, puts); got != devicecode.WaitDone {
		t.Fatal(got)
	}
	for range 20 {
		ranks[0].must(t, d.channels[0], putWithSignalAndFlush, 0, 0, 64)
		ranks[1].must(t, d.channels[1], wait, 0, 0, 0)
	}
	if n := len(driver.calls()); n > slowRoom {
		t.Errorf("%d operations were queued, there is room for %d", n, slowRoom)
	}
	driver.release()
	eventually(t, "all is done", func() bool { return len(driver.calls()) == 2*puts })
	for i := range puts {
		testcmp.Equal(t, "the put and signal", driver.calls()[2*i:2*i+2], []string{"put 1000 to 128 from 0", fmt.Sprintf("from %d to %d", i, i+1)})
	}
}

// TestExchangesOfSlowPeer: an exchange that waits for the peer keeps nobody waiting, and what is
// behind it comes after it.
func TestExchangesOfSlowPeer(t *testing.T) {
	ranks := newFarPair(t, proxyservice.ServiceOptions{})
	d := newDuo(t, ranks, 4096)
	held, driver := newSlowChannel(t, ranks, d)
	const rounds = 100
	var want []string
	for i := range uint64(rounds) {
		ranks[0].must(t, held, add, 8*i, i, 0)
		ranks[0].must(t, held, exchange, 16, i, 8*i)
		ranks[0].must(t, held, put, 128, 0, 1000)
		want = append(want, fmt.Sprintf("add %d to %d", i, 8*i), fmt.Sprintf("exchange 16 for %d into %d", i, 8*i), "put 1000 to 128 from 0")
	}
	for range 20 {
		ranks[0].must(t, d.channels[0], putWithSignalAndFlush, 0, 0, 64)
		ranks[1].must(t, d.channels[1], wait, 0, 0, 0)
	}
	testcmp.Equal(t, "what is done before the exchange", driver.calls(), want[:1])
	driver.release()
	eventually(t, "all is done", func() bool { return len(driver.calls()) == len(want) })
	testcmp.Equal(t, "what is done", driver.calls(), want)
}

// TestSlowPeerPayloads has more puts wait that carry their bytes than the ring has
// entries.
func TestSlowPeerPayloads(t *testing.T) {
	ranks := newFarPair(t, proxyservice.ServiceOptions{RingSize: 16})
	d := newDuo(t, ranks, 1<<13)
	held, driver := newSlowChannel(t, ranks, d)
	data := make([]byte, 1<<13)
	var list []inlinePut
	for i := range uint64(500) {
		binary.LittleEndian.PutUint64(data[16*i:], i)
		list = append(list, inlinePut{8 * i, 16 * i, 8})
	}
	testerr.Check(t, gpu.CopyIn(d.send[0], data))
	puts := testerr.Must(gpu.Upload(ranks[0].dev, list))(t)
	defer puts.Close()
	ranks[0].launch(t, "putAll", 1, 1, held.Handle(), puts, uint32(len(list)), ranks[0].alloc(t, 4))
	eventually(t, "the driver is full", func() bool { return len(driver.calls()) == slowRoom })
	driver.release()
	ranks[0].wait(t) // for its flush
	for i, p := range list {
		if got, want := driver.calls()[i], fmt.Sprintf("put %x to %d", data[p.src:p.src+8], p.dst); got != want {
			t.Fatalf("operation %d is %q, not %q", i, got, want)
		}
	}
}

// TestStuckPeer has kernels ask many times more of a peer that takes nothing than all
// queues hold, by two channels of one connection. They wait, and nobody else does: what
// others ask of a healthy peer and of the handler is served as if there was no stuck one.
// Little memory is taken, and once the peer takes it all is done in order.
func TestStuckPeer(t *testing.T) {
	const ring, backlog = 64, 1024
	const signals, payloads = 10 * (backlog + ring), 5 * (backlog + ring)
	var handled atomic.Int64
	ranks := newFarPair(t, proxyservice.ServiceOptions{RingSize: ring, Handler: func(context.Context, fifo.Trigger) error {
		handled.Add(1)
		return nil
	}})
	d := newDuo(t, ranks, 4096)
	held, driver := newSlowChannel(t, ranks, d)
	main := ranks[0].stream
	floods, results := [2]*gpu.Stream{}, [2]*gpu.Buffer{ranks[0].alloc(t, 4), ranks[0].alloc(t, 4)}
	for i := range floods {
		floods[i] = testerr.Must(ranks[0].dev.NewStream())(t)
		defer floods[i].Close()
		ranks[0].stream = floods[i]
		if i == 0 {
			ranks[0].launch(t, "act", 1, 1, held.Handle(), int32(signal), uint64(0), uint64(0), uint64(0), uint32(signals), results[i])
		} else {
			ranks[0].launch(t, "act", 1, 1, held.Handle(), int32(put), uint64(0), uint64(0), uint64(16), uint32(payloads), results[i])
		}
		ranks[0].stream = main
	}
	service := ranks[0].service
	eventually(t, "the backlog is full", func() bool { return service.Snapshot().Deferred == backlog })
	status := (*layout.GroupStatus)(unsafe.Pointer(&ranks[0].status.Bytes()[0]))
	eventually(t, "a kernel tells what it waits for", func() bool {
		for i := range status.Notes {
			channel, peer, _, _ := layout.ParseWaitNote(atomic.LoadUint64(&status.Notes[i].What))
			if channel == layout.RoomChannel && peer == 1 {
				return true
			}
		}
		return false
	})
	for i := range 100 {
		ranks[0].must(t, d.channels[0], putWithSignalAndFlush, 0, 0, 64)
		ranks[1].must(t, d.channels[1], wait, 0, 0, 0)
		result := ranks[0].alloc(t, 4)
		ranks[0].launch(t, "pushRaw", 1, 1, service.Fifo(), uint64(0), uint64(0), uint64(0), uint64(0), uint32(200), result)
		ranks[0].wait(t)
		testcmp.Equal(t, "triggers handled", handled.Load(), int64(i+1))
	}
	after := service.Snapshot()
	testcmp.Equal(t, "triggers that wait", [2]int{after.Deferred, after.Waiting}, [2]int{backlog, 0})
	testcmp.Equal(t, "operations of the slow driver", len(driver.calls()), slowRoom)
	driver.release()
	for i, s := range floods {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		testerr.Check(t, s.Synchronize(ctx))
		testcmp.Equal(t, "how the kernel ended", read[uint32](t, results[i], 1)[0], uint32(devicecode.WaitDone))
	}
	eventually(t, "all is done", func() bool { return len(driver.calls()) == signals+payloads })
	next := 0
	for i, got := range driver.calls() {
		if got == fmt.Sprintf("from %d to %d", next, next+1) {
			next++
		} else if want := fmt.Sprintf("put %x to 0", make([]byte, 16)); got != want {
			t.Fatalf("operation %d is %q, not signal %d or %q", i, got, next, want)
		}
	}
	testcmp.Equal(t, "signals", next, signals)
}

// TestFullBacklog pushes more triggers of a channel than the driver and the backlog take, but
// not as the channel's handle does, so that nothing has the kernel wait. Then the ring
// stops, but a flush on another channel that was under way ends, and all is done in order
// once the peer takes it.
func TestFullBacklog(t *testing.T) {
	const ring, backlog = 64, 1024
	ranks := newFarPair(t, proxyservice.ServiceOptions{RingSize: ring})
	d := newDuo(t, ranks, 4096)
	_, driver := newSlowChannel(t, ranks, d)
	const signals = slowRoom + backlog + 3*ring
	const number, kind = 1, layout.PortSignal
	result := ranks[0].alloc(t, 4)
	ranks[0].launch(t, "pushMany", 1, 1, ranks[0].service.Fifo(), uint64(number), uint32(kind), uint32(signals), result)
	eventually(t, "the ring has stopped", func() bool {
		s := ranks[0].service.Snapshot()
		return s.Deferred == backlog && s.Waiting == ring
	})
	driver.release()
	ranks[0].wait(t)
	eventually(t, "all is done", func() bool { return len(driver.calls()) == signals })
	for i, got := range driver.calls() {
		if want := fmt.Sprintf("from %d to %d", i, i+1); got != want {
			t.Fatalf("operation %d is %q, not %q", i, got, want)
		}
	}
}

// TestHandlerAndBacklog has the handler queue on a connection whose peer is slow: behind
// what kernels asked of it before, though that waits in a backlog, and before what they ask
// of it later.
func TestHandlerAndBacklog(t *testing.T) {
	var conn *connection.Connection
	var dst *registeredmem.Memory
	done := make(chan error, 1)
	ranks := newFarPair(t, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error {
		conn.Internal().Later(func(turn inside.Turn[connection.Operation, connection.Mark]) {
			done <- turn.Do(connection.Operation{Kind: connection.WriteBytes, Theirs: dst, N: 3, Data: []byte{1, 2, 3}})
		})
		return nil
	}})
	d := newDuo(t, ranks, 4096)
	held, driver := newSlowChannel(t, ranks, d)
	conn, dst = driver.conn, ranks[0].share(t, d.receive[1])
	const signals = 100
	for range 2 {
		if got := ranks[0].act(t, held, signal, 0, 0, 0, signals); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		ranks[0].launch(t, "pushRaw", 1, 1, ranks[0].service.Fifo(), uint64(0), uint64(0), uint64(0), uint64(0), uint32(200), ranks[0].alloc(t, 4))
		ranks[0].wait(t)
	}
	driver.release()
	var want []string
	for i := range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
		for s := range signals {
			want = append(want, fmt.Sprintf("from %d to %d", i*signals+s, i*signals+s+1))
		}
		want = append(want, "put 010203 to 0")
	}
	testcmp.Equal(t, "the driver's calls", driver.calls(), want)
}

// TestStopWithBacklog stops a service while triggers wait in a backlog: Stop waits for
// them, and not longer than it may.
func TestStopWithBacklog(t *testing.T) {
	for _, releases := range []bool{true, false} {
		ranks := newFarPair(t, proxyservice.ServiceOptions{})
		d := newDuo(t, ranks, 4096)
		held, driver := newSlowChannel(t, ranks, d)
		const signals = 100
		if got := ranks[0].act(t, held, signal, 0, 0, 0, signals); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		limit := patience
		if releases {
			time.AfterFunc(50*time.Millisecond, driver.release)
		} else {
			limit = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err := ranks[0].service.Stop(ctx)
		if releases {
			if n := len(driver.calls()); err != nil || n != signals {
				t.Errorf("Stop returned %v when %d of %d signals were sent", err, n, signals)
			}
			continue
		}
		testerr.Expect(t, err, mscclgo.ErrTimeout, "rank 0")
	}
}

// TestBacklogFails has the transport fail for a trigger in a backlog: the error names it.
func TestBacklogFails(t *testing.T) {
	ranks := newFarPair(t, proxyservice.ServiceOptions{})
	d := newDuo(t, ranks, 4096)
	held, driver := newSlowChannel(t, ranks, d)
	if got := ranks[0].act(t, held, signal, 0, 0, 0, 100); got != devicecode.WaitDone {
		t.Fatal(got)
	}
	eventually(t, "the driver is full", func() bool { return len(driver.calls()) == slowRoom })
	driver.mu.Lock()
	driver.fails = mscclgo.Errorf(mscclgo.ErrRemote, "slow", "the peer is gone")
	driver.mu.Unlock()
	driver.release()
	eventually(t, "the service fails", func() bool { return ranks[0].service.Err() != nil })
	testerr.Expect(t, ranks[0].service.Err(), mscclgo.ErrRemote, "rank 0, peer 1", "serve trigger 8 of kind 2", "channel 1", "the peer is gone")
}
