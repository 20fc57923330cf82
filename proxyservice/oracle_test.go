package proxyservice

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// decision is what a proxy makes of an entry's words.
type decision struct {
	Trigger fifo.Trigger
	Request request
	Verdict verdict
	Payload int // where the bytes of an inlined put begin among the ring's payloads, or -1
}

// oracle decides as the loop in C must, in Go.
type oracle struct {
	ring        *native.Ring
	firstUser   int
	connections []*connection.Connection
	ports       []int // numbers of connections
	memories    []*registeredmem.Memory
}

func (o *oracle) decide(words [4]uint64, position uint64) decision {
	const low = 1<<63 - 1
	last := words[3]
	d := decision{Payload: -1, Trigger: fifo.Trigger{
		A:      words[0]&low | last>>52<<63,
		B:      words[1]&low | last>>53<<63,
		C:      words[2]&low | last>>54<<63,
		Detail: last & (1<<52 - 1),
		Kind:   uint8(last >> 55),
	}}
	t := d.Trigger
	d.Request = request{
		put:       t.Kind&devicecode.PortPut != 0,
		signal:    t.Kind&devicecode.PortSignal != 0,
		flush:     t.Kind&devicecode.PortFlush != 0,
		inlined:   t.Kind&devicecode.PortInline != 0,
		port:      t.Detail,
		dst:       uint16(t.A >> 48),
		src:       uint16(t.B >> 48),
		dstOffset: t.A & (1<<48 - 1),
		srcOffset: t.B & (1<<48 - 1),
		bytes:     t.C,
	}
	d.Verdict = o.check(&d, position)
	return d
}

func (o *oracle) check(d *decision, position uint64) verdict {
	const all = devicecode.PortPut | devicecode.PortSignal | devicecode.PortFlush | devicecode.PortInline
	r, t := d.Request, d.Trigger
	switch {
	case int(t.Kind) >= o.firstUser:
		return forUser
	case t.Kind == 0 || t.Kind&^all != 0 || r.inlined && !r.put:
		return unknownKind
	case r.put && r.bytes >= 1<<48:
		return fieldOverflow
	case r.port >= uint64(len(o.ports)):
		return unknownPort
	case !r.put:
		return move
	}
	conn := o.connections[o.ports[r.port]]
	path := native.PathOf(conn)
	if v := o.checkMemory(path.Registry, path.Peer, r.dst, r.dstOffset, r.bytes, unknownDst, foreignDst, dstRange); v != move {
		return v
	}
	if !r.inlined {
		return o.checkMemory(path.Registry, path.Rank, r.src, r.srcOffset, r.bytes, unknownSrc, foreignSrc, srcRange)
	}
	switch {
	case r.bytes > conn.InlineLimit():
		return noInline
	case t.B > 15 || t.C == 0 || t.C > o.ring.Payload:
		return noPayload
	}
	d.Payload = int(position%o.ring.Size*o.ring.PayloadStride + t.B)
	return move
}

// checkMemory returns move for a range of a rank's memory, else what is wrong.
func (o *oracle) checkMemory(registry uint64, rank int, id uint16, offset, n uint64, unknown, foreign, outside verdict) verdict {
	if int(id) >= len(o.memories) {
		return unknown
	}
	m := o.memories[id]
	switch {
	case native.InstanceOf(m.Registry()) != registry || m.Rank() != rank:
		return foreign
	case offset > m.Size() || m.Size()-offset < n:
		return outside
	}
	return move
}

// pool is what the tables of FuzzDecide are made of.
type pool struct {
	ring        *fifo.Ring
	connections []*connection.Connection
	semaphores  []*semaphore.Host2Device // of each connection
	memories    []*registeredmem.Memory
}

// newPool returns connections of two registries, with and without a queue for threads
// in C, which is busy, and with and without inlining, and memories of both and of
// their peer, of several sizes.
func newPool(t testing.TB) *pool {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &pool{}
	peer := newRegistry(t, registeredmem.Options{Rank: 1})
	for range 2 {
		reg := newRegistry(t, registeredmem.Options{})
		imported := func(m *registeredmem.Memory) *registeredmem.Memory {
			data, err := m.MarshalBinary()
			check(err)
			m, err = reg.Import(t.Context(), data)
			check(err)
			return m
		}
		for _, size := range []int{8, 64, 4096} {
			_, mine := own(t, reg, make([]byte, size))
			_, theirs := own(t, peer, make([]byte, size))
			p.memories = append(p.memories, mine, imported(theirs))
		}
		_, words := own(t, peer, make([]byte, semaphore.Host2DeviceBytes))
		far := imported(words)
		for _, d := range []connection.Driver{&idle{queue: busyQueue()}, &idle{}, struct{ connection.Driver }{&idle{}}} {
			conn, err := connection.New(reg, 1, registeredmem.Ethernet, d)
			check(err)
			t.Cleanup(func() { conn.Close() })
			end, err := gpu.Upload(reg.Device(), make([]byte, semaphore.Host2DeviceBytes))
			check(err)
			t.Cleanup(func() { end.Close() })
			sem, err := semaphore.NewHost2Device(conn, end, far, 0, devicecode.Watch{})
			check(err)
			p.connections, p.semaphores = append(p.connections, conn), append(p.semaphores, sem)
		}
	}
	var err error
	p.ring, err = fifo.New(peer.Device(), fifo.Options{Size: 4, Payload: 100, Words: len(p.connections)})
	check(err)
	t.Cleanup(func() { p.ring.Close() })
	return p
}

func busyQueue() *native.Queue {
	q := nativetest.NewQueue()
	q.Busy(true)
	return q.Queue
}

// tables returns a loop, and an oracle that knows the same: each byte of ports stands
// for a port of one of the pool's connections, each of memories for one of its
// memories.
func (p *pool) tables(t *testing.T, firstUser int, ports, memories []byte) (*loop, *oracle) {
	t.Helper()
	l, err := newLoop(1, 1, firstUser)
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{ring: native.RingOf(p.ring), firstUser: firstUser, connections: p.connections}
	words, _ := p.ring.Words()
	for i, c := range p.connections {
		if err := l.addConnection(c, &words[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range ports {
		i := int(b) % len(p.connections)
		if err := l.addPort(i, native.CountOf(p.semaphores[i])); err != nil {
			t.Fatal(err)
		}
		o.ports = append(o.ports, i)
	}
	for _, b := range memories {
		m := p.memories[int(b)%len(p.memories)]
		if err := l.addMemory(m); err != nil {
			t.Fatal(err)
		}
		o.memories = append(o.memories, m)
	}
	return l, o
}

// FuzzDecide puts any entry into the ring of a loop with any tables. What the loop
// decides about it must be what the oracle does. Nothing is served in C, since all
// queues are busy.
func FuzzDecide(f *testing.F) {
	const put, signal, flush, inline = devicecode.PortPut, devicecode.PortSignal, devicecode.PortFlush, devicecode.PortInline
	ports, memories := []byte{0, 1, 2, 3, 4, 5}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	add := func(x fifo.Trigger) {
		w := entry(x, true)
		f.Add(w[0], w[1], w[2], w[3], uint16(fifo.FirstUserKind), ports, memories)
	}
	for kind := range uint8(put|signal|flush|inline) + 1 {
		for port := range uint64(len(ports) + 1) {
			add(fifo.Trigger{A: 5<<48 | 4000, B: 4<<48 | 96, C: 96, Detail: port, Kind: kind})
		}
	}
	for _, kind := range []uint8{put, put | inline} {
		for _, a := range []uint64{5<<48 | 4001, 4 << 48, 11 << 48, 12 << 48, 5<<48 | 1<<47} {
			add(fifo.Trigger{A: a, C: 96, Kind: kind})
		}
		for _, b := range []uint64{4<<48 | 4001, 5 << 48, 10 << 48, 1 << 63, 15, 16} {
			add(fifo.Trigger{A: 5 << 48, B: b, C: 60, Kind: kind})
		}
		for _, c := range []uint64{0, 64, 65, 101, 1 << 48, ^uint64(0)} {
			add(fifo.Trigger{A: 5 << 48, C: c, Kind: kind})
		}
	}
	add(fifo.Trigger{Detail: 1 << 51, Kind: signal})
	add(fifo.Trigger{A: ^uint64(0), B: ^uint64(0), C: ^uint64(0), Detail: 1<<52 - 1, Kind: 255})
	p := newPool(f)
	ring := native.RingOf(p.ring)
	stop := &orders{}
	stop.stop.Store(1)
	f.Fuzz(func(t *testing.T, a, b, c, d uint64, firstUser uint16, ports, memories []byte) {
		l, o := p.tables(t, int(firstUser), ports[:min(len(ports), 64)], memories[:min(len(memories), 64)])
		words := [4]uint64{a, b, c, d}
		position := ring.Polled
		for i := range words {
			const tag = 1 << 63
			words[i] &^= tag
			if position&ring.Size == 0 {
				words[i] |= tag
			}
		}
		*(*[4]uint64)(unsafe.Add(ring.Entries, position%ring.Size*native.EntryBytes)) = words
		if why := l.serve(ring, stop, nil); why != endJobs || len(l.jobs()) != 1 {
			t.Fatalf("the loop returned for reason %d with %d jobs", why, len(l.jobs()))
		}
		if err := p.ring.Pop(1); err != nil {
			t.Fatal(err)
		}
		j := &l.jobs()[0]
		got := decision{j.Trigger, j.request, j.verdict, -1}
		if j.payload != nil {
			got.Payload = int(uintptr(unsafe.Pointer(j.payload)) - uintptr(ring.Payloads))
		}
		if diff := cmp.Diff(o.decide(words, position), got, cmp.AllowUnexported(request{})); diff != "" {
			t.Errorf("%#x is decided otherwise (-oracle +C):\n%s", words, diff)
		}
		if j.position != position {
			t.Errorf("position %d is taken for %d", position, j.position)
		}
	})
}
