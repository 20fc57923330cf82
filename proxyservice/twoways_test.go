package proxyservice

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// twoWays is a service that is not started, of a rank with a connection to itself:
// triggers are served by its loop in C or by its server in Go, as told. Memory 0 is
// what puts go to, memory 1 what they come from.
type twoWays struct {
	service *ProxyService
	conn    *connection.Connection
	to      *gpu.Buffer
	words   *gpu.Buffer // the semaphore's
	reached bool        // the user's handler
}

const twoWaysBytes = 4096

func newTwoWays(t testing.TB) *twoWays {
	t.Helper()
	w := &twoWays{}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dev := testdev.Open(t, 0)
	reg, err := registeredmem.NewRegistry(registeredmem.Options{Device: dev})
	check(err)
	t.Cleanup(func() { reg.Close() })
	own := func(b *gpu.Buffer, err error) (*gpu.Buffer, *registeredmem.Memory) {
		t.Helper()
		check(err)
		t.Cleanup(func() { b.Close() })
		m, err := reg.Register(b)
		check(err)
		return b, m
	}
	pattern := make([]byte, twoWaysBytes)
	for i := range pattern {
		pattern[i] = byte(1 + i%251)
	}
	var dst, words *registeredmem.Memory
	w.to, dst = own(gpu.Upload(dev, make([]byte, twoWaysBytes)))
	_, src := own(gpu.Upload(dev, pattern))
	w.words, words = own(dev.Alloc(semaphore.Host2DeviceBytes))

	e, err := cudaipc.NewEndpoint(reg)
	check(err)
	b, err := e.MarshalBinary()
	check(err)
	w.conn, err = e.Connect(t.Context(), b)
	check(err)
	t.Cleanup(func() { w.conn.Close() })
	if native.PathOf(w.conn) == nil {
		t.Skip("the connection is not native here")
	}

	status, err := dev.AllocHost(uint64(unsafe.Sizeof(devicecode.GroupStatus{})))
	check(err)
	t.Cleanup(func() { status.Close() })
	watch := devicecode.Watch{Status: status.Ptr()}
	w.service, err = New(dev, ServiceOptions{RingSize: fifo.MinSize, Watch: watch, Handler: func(fifo.Trigger) error {
		w.reached = true
		return nil
	}})
	check(err)
	t.Cleanup(func() { w.service.Close() })
	s, err := semaphore.NewHost2Device(w.conn, w.words, words, 0, watch)
	check(err)
	_, err = w.service.AddSemaphore(s)
	check(err)
	for _, m := range []*registeredmem.Memory{dst, src} {
		_, err = w.service.AddMemory(m)
		check(err)
	}
	return w
}

// push writes a trigger into the ring, as a kernel does, and gives its words.
func (w *twoWays) push(x fifo.Trigger) [4]uint64 {
	r := native.RingOf(w.service.ring)
	const payload = 1<<63 - 1
	tag := uint64(1 << 63)
	if r.Polled&r.Size != 0 {
		tag = 0
	}
	words := [4]uint64{
		tag | x.A&payload, tag | x.B&payload, tag | x.C&payload,
		tag | uint64(x.Kind)<<55 | x.C>>63<<54 | x.B>>63<<53 | x.A>>63<<52 | x.Detail,
	}
	*(*[4]uint64)(unsafe.Add(r.Entries, r.Polled%r.Size*32)) = words
	return words
}

// outcome is what serving a trigger changed.
type outcome struct {
	memory  []byte
	signals uint64
	flushed bool
}

// observe gives what serve, which says whether it did so, changed.
func (w *twoWays) observe(t testing.TB, serve func(position uint64) bool) (outcome, bool) {
	t.Helper()
	read := func() (memory []byte, signals uint64) {
		t.Helper()
		if err := w.conn.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		memory = make([]byte, twoWaysBytes)
		word := make([]uint64, 1)
		if err := gpu.CopyOut(memory, w.to); err != nil {
			t.Fatal(err)
		}
		if err := gpu.CopyOut(word, w.words); err != nil {
			t.Fatal(err)
		}
		return memory, word[0]
	}
	if err := gpu.CopyIn(w.to, make([]byte, twoWaysBytes)); err != nil {
		t.Fatal(err)
	}
	_, before := read()
	position := w.service.ring.Popped()
	ok := serve(position)
	memory, signals := read()
	done, _ := w.service.ring.Words()
	return outcome{memory, signals - before, done[0].Load() == position+1}, ok
}

// inC has the loop serve the ring's trigger, if it does.
func (w *twoWays) inC(t testing.TB) (outcome, bool) {
	t.Helper()
	return w.observe(t, func(position uint64) bool {
		stop := &orders{}
		stop.stop.Store(1)
		why := w.service.loop.serve(native.RingOf(w.service.ring), stop, nil, false)
		if why != endDrained && why != endYours {
			t.Fatalf("the loop ended for reason %d", why)
		}
		return why == endDrained
	})
}

// inGo has the server serve the ring's trigger, and gives it and its error.
func (w *twoWays) inGo(t testing.TB) (o outcome, x fifo.Trigger, err error) {
	t.Helper()
	o, _ = w.observe(t, func(position uint64) bool {
		var ok bool
		if x, ok = w.service.ring.Poll(); !ok {
			t.Fatal("the ring is empty")
		}
		err = w.service.server.serve(position, x)
		for underWay := err == nil; underWay; {
			if underWay, err = w.service.server.goOn(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.service.ring.Pop(1); err != nil {
			t.Fatal(err)
		}
		return err == nil
	})
	return o, x, err
}

func (a outcome) equal(b outcome) bool {
	return slices.Equal(a.memory, b.memory) && a.signals == b.signals && a.flushed == b.flushed
}
