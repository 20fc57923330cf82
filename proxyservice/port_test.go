package proxyservice_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// hostOnly leaves all puts to the host. direct lets the threads make small ones.
var (
	hostOnly = proxyservice.ServiceOptions{Direct: channel.HostOnly}
	direct   = proxyservice.ServiceOptions{}
)

func each(t *testing.T, test func(t *testing.T, o proxyservice.ServiceOptions)) {
	t.Run("host", func(t *testing.T) { test(t, hostOnly) })
	t.Run("direct", func(t *testing.T) { test(t, direct) })
}

// TestPut puts at all alignments and many sizes, and looks at every byte of the
// peer's memory.
func TestPut(t *testing.T) {
	each(t, func(t *testing.T, o proxyservice.ServiceOptions) {
		ranks := newPair(t, o)
		size := uint64(1 << 16)
		if testdev.CUDA() {
			size = 1 << 20
		}
		d := newDuo(t, ranks, size)
		data := make([]byte, size)
		random := rand.NewChaCha8([32]byte{1})
		random.Read(data)
		testerr.Check(t, gpu.CopyIn(d.send[0], data))
		want := make([]byte, size)
		check := func(dst, src, n uint64, a Action) {
			t.Helper()
			ranks[0].must(t, d.channels[0], a, dst, src, n)
			ranks[1].must(t, d.channels[1], wait, 0, 0, 0)
			copy(want[dst:dst+n], data[src:src+n])
			testcmp.Equal(t, fmt.Sprintf("the peer's memory behind %d bytes from %d to %d", n, src, dst), read[byte](t, d.receive[1], int(size)), want)
			if t.Failed() {
				t.FailNow()
			}
		}
		for src := range uint64(4) {
			for dst := range uint64(4) {
				check(16+5*dst, 3*src, 1+7*src+dst, putWithSignal)
			}
		}
		for _, n := range []uint64{0, 1, 15, 16, 128, 129, 255, 256, 2047, 2048, 2049, 5000, size} {
			check(0, 0, n, putWithSignal)
			if n < size {
				check(1, 0, n, putWithSignalAndFlush)
			}
		}
	})
}

// TestOrder mixes puts that a thread makes itself with puts of the host, with no flush
// between them. The last must win, and each signal must find its put.
func TestOrder(t *testing.T) {
	ranks := newPair(t, direct)
	d := newDuo(t, ranks, 1<<20)
	for round := range 20 {
		large, small := bytes.Repeat([]byte{byte(2*round + 1)}, 1<<20), bytes.Repeat([]byte{byte(2*round + 2)}, 1024)
		testerr.Check(t, gpu.CopyIn(d.send[0], large))
		ranks[0].must(t, d.channels[0], put, 0, 0, 1<<20)
		if round%2 == 0 {
			ranks[0].must(t, d.channels[0], flush, 0, 0, 0)
			testerr.Check(t, gpu.CopyIn(d.send[0], small))
			copy(large, small)
		}
		ranks[0].must(t, d.channels[0], putWithSignal, 0, 0, 1024)
		ranks[1].must(t, d.channels[1], wait, 0, 0, 0)
		testcmp.Equal(t, fmt.Sprintf("the bytes of round %d", round), read[byte](t, d.receive[1], 1<<20), large)
		if t.Failed() {
			return
		}
	}
}

func TestSignalsAreCounted(t *testing.T) {
	each(t, func(t *testing.T, o proxyservice.ServiceOptions) {
		ranks := newPair(t, o)
		d := newDuo(t, ranks, 64)
		if got := ranks[1].act(t, d.channels[1], poll, 0, 0, 0, 1); got == devicecode.WaitDone {
			t.Fatal("poll consumed a signal that was not sent")
		}
		if got := ranks[0].act(t, d.channels[0], signal, 0, 0, 0, 5); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		ranks[0].must(t, d.channels[0], flush, 0, 0, 0)
		if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, 4); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		ranks[1].must(t, d.channels[1], poll, 0, 0, 0)
		if got := ranks[1].act(t, d.channels[1], poll, 0, 0, 0, 1); got == devicecode.WaitDone {
			t.Fatal("there were more signals than were sent")
		}
	})
}

// TestPingPong has blocks of two kernels answer each other, on several channels
// over several connections of one service.
func TestPingPong(t *testing.T) {
	for _, words := range []int{1, 256, 4096} {
		t.Run(fmt.Sprintf("%d words", words), func(t *testing.T) {
			each(t, func(t *testing.T, o proxyservice.ServiceOptions) {
				pingPong(t, newPair(t, o), 4, words, 20)
			})
		})
	}
}

func pingPong(t *testing.T, ranks [2]*rank, blocks, words, rounds int) {
	t.Helper()
	bytes := uint64(blocks * words * 4)
	var send, receive, handles, results [2]*gpu.Buffer
	for i, r := range ranks {
		send[i], receive[i], results[i] = r.alloc(t, bytes), r.alloc(t, bytes), r.alloc(t, uint64(blocks*4))
	}
	for i, r := range ranks {
		dst, src := r.share(t, receive[1-i]), r.register(t, send[i])
		list := make([]layout.PortChannel, blocks)
		for b := range list {
			conn := r.conn
			if b%2 == 1 {
				conn = r.connect(t)
				t.Cleanup(func() { conn.Close() })
			}
			c := testerr.Must(r.service.PortChannel(r.newSemaphore(t, conn), dst, src))(t)
			list[b] = c.Handle().Internal()
		}
		handles[i] = testerr.Must(gpu.Upload(r.dev, list))(t)
		t.Cleanup(func() { handles[i].Close() })
	}
	for i, r := range ranks {
		r.launch(t, "pingPong", blocks, 32, handles[i], send[i], receive[i], uint32(words), uint32(rounds), i == 0, results[i])
	}
	for i, r := range ranks {
		r.wait(t)
		for b, outcome := range read[uint32](t, results[i], blocks) {
			if outcome != 0 {
				t.Fatalf("rank %d, block %d: outcome %d (%v)", i, b, outcome, r.service.Err())
			}
		}
	}
}

// TestFlushFromManyThreads has many threads put and flush on one channel at once.
func TestFlushFromManyThreads(t *testing.T) {
	each(t, func(t *testing.T, o proxyservice.ServiceOptions) {
		o.RingSize = 16
		ranks := newPair(t, o)
		const grid, block, rounds = 2, 64, 4
		d := newDuo(t, ranks, grid*block)
		remote := ranks[0].share(t, d.receive[1])
		results := ranks[0].alloc(t, grid*block*4)
		ranks[0].launch(t, "flushAll", grid, block, d.channels[0].Handle(), d.send[0], remote.Buffer(), uint32(rounds), results)
		ranks[0].wait(t)
		for thread, outcome := range read[uint32](t, results, grid*block) {
			if outcome != 0 {
				t.Fatalf("thread %d: outcome %d (%v)", thread, outcome, ranks[0].service.Err())
			}
		}
	})
}

func TestBasePortChannel(t *testing.T) {
	ranks := newPair(t, direct)
	d := newDuo(t, ranks, 4096)
	r := ranks[0]
	c := testerr.Must(r.service.BasePortChannel(r.newSemaphore(t, r.conn)))(t)
	src, dst := r.register(t, d.send[0]), r.share(t, d.receive[1])
	srcID := testerr.Must(r.service.AddMemory(src))(t)
	dstID := testerr.Must(r.service.AddMemory(dst))(t)
	if again, err := r.service.AddMemory(dst); err != nil || again != dstID || again == srcID {
		t.Fatalf("the memory has ids %d and %d, %v", dstID, again, err)
	}
	testerr.Check(t, gpu.CopyIn(d.send[0], []byte("0123456789")))
	result := r.alloc(t, 4)
	r.launch(t, "putBase", 1, 1, c.Handle(), uint32(dstID), uint64(3), uint32(srcID), uint64(2), uint64(5), result)
	r.wait(t)
	if got := read[uint32](t, result, 1)[0]; got != 0 {
		t.Fatalf("result %d (%v)", got, r.service.Err())
	}
	if got := string(read[byte](t, d.receive[1], 10)); got != "\x00\x00\x0023456\x00\x00" {
		t.Fatalf("%q arrived", got)
	}
}

// TestStopAndStart checks that what is pushed while the service is stopped waits for it.
func TestStopAndStart(t *testing.T) {
	ranks := newPair(t, hostOnly)
	d := newDuo(t, ranks, 1024)
	r := ranks[0]
	for range 3 {
		r.must(t, d.channels[0], putWithSignalAndFlush, 0, 0, 1024)
		testerr.Check(t, r.service.Stop(t.Context()))
		result := r.alloc(t, 4)
		r.launch(t, "act", 1, 1, d.channels[0].Handle(), int32(putWithSignalAndFlush), uint64(0), uint64(0), uint64(1024), 1, result)
		time.Sleep(10 * time.Millisecond)
		if done, err := r.stream.Query(); done || err != nil {
			t.Fatalf("a flush ended with nobody to serve it: %v, %v", done, err)
		}
		r.start(t)
		r.wait(t)
		if got := read[uint32](t, result, 1)[0]; got != 0 {
			t.Fatalf("result %d (%v)", got, r.service.Err())
		}
	}
	if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, 6); got != devicecode.WaitDone {
		t.Fatal(got)
	}
}

// TestThousandsOfChannels makes and uses them on one service.
func TestThousandsOfChannels(t *testing.T) {
	ranks := newPair(t, direct)
	d := newDuo(t, ranks, 1024)
	const channels = 10000
	dst, src := ranks[0].share(t, d.receive[1]), ranks[0].register(t, d.send[0])
	semaphores := map[string]bool{}
	for i := range channels {
		c := testerr.Must(ranks[0].service.PortChannel(ranks[0].newSemaphore(t, ranks[0].conn), dst, src))(t)
		h := c.Handle().Internal()
		semaphores[fmt.Sprint(h.Base.Number, h.Base.State)] = true
		if i%2500 == 0 {
			h.Direct = 0
			result := ranks[0].alloc(t, 4)
			ranks[0].launch(t, "act", 1, 1, h, int32(putWithSignalAndFlush), uint64(0), uint64(0), uint64(512), 1, result)
			ranks[0].wait(t)
			if got := read[uint32](t, result, 1)[0]; got != 0 {
				t.Fatalf("channel %d: result %d (%v)", i, got, ranks[0].service.Err())
			}
		}
	}
	if len(semaphores) != channels {
		t.Errorf("%d channels have %d numbers", channels, len(semaphores))
	}
}

// TestSignalsOfSeveralBlocks has blocks signal over one channel at the same time: none is
// lost, whether kernels count the signals or the host does.
func TestSignalsOfSeveralBlocks(t *testing.T) {
	const blocks = 2
	for _, c := range []struct {
		direct channel.Direct
		count  uint32 // of each block
	}{{0, 300000}, {channel.HostOnly, 500}} {
		ranks := newPair(t, proxyservice.ServiceOptions{Direct: c.direct})
		d := newDuo(t, ranks, 64)
		results, begun := ranks[0].alloc(t, 4*blocks), ranks[0].alloc(t, 4)
		testerr.Check(t, gpu.CopyIn(begun, []uint32{0}))
		ranks[0].launch(t, "signals", blocks, 1, d.channels[0].Handle(), c.count, begun, results)
		ranks[0].wait(t)
		for i, r := range read[uint32](t, results, blocks) {
			if r != 0 {
				t.Fatalf("block %d: result %d (%v)", i, r, ranks[0].service.Err())
			}
		}
		arrived := ranks[1].alloc(t, 4)
		total := uint32(0)
		eventually(t, "all signals have arrived", func() bool {
			ranks[1].launch(t, "consume", 1, 1, d.channels[1].Handle(), arrived)
			ranks[1].wait(t)
			total += read[uint32](t, arrived, 1)[0]
			return total >= blocks*c.count
		})
		if total != blocks*c.count {
			t.Errorf("%d signals arrived, want %d", total, blocks*c.count)
		}
	}
}
