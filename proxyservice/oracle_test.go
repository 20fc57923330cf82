package proxyservice

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// verdict is the proxy_verdict of job.h.
type verdict uint32

const (
	inC verdict = iota
	move
	forUser
	badKind
	badField
	noPort
	noMemory
	badDst
	badSrc
	badBytes
)

// decision is what a proxy makes of an entry's words.
type decision struct {
	Trigger              fifo.Trigger
	DstOffset, SrcOffset uint64
	Dst, Src             uint16
	Verdict              verdict
	Payload              int // where the bytes of an inlined put begin among the ring's payloads, or -1
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
	const offset = 1<<48 - 1
	d.Dst, d.DstOffset = uint16(d.Trigger.A>>48), d.Trigger.A&offset
	d.Src, d.SrcOffset = uint16(d.Trigger.B>>48), d.Trigger.B&offset
	d.Verdict = o.check(&d, position)
	return d
}

func (o *oracle) check(d *decision, position uint64) verdict {
	const others = layout.PortSignal | layout.PortFlush
	t := d.Trigger
	put, inlined := t.Kind&layout.PortPut != 0, t.Kind&layout.PortInline != 0
	get := t.Kind&^layout.PortFlush == layout.PortGet
	exchange := t.Kind&^layout.PortFlush == layout.PortExchange
	store := t.Kind&^layout.PortFlush == layout.PortStore || t.Kind&^layout.PortFlush == layout.PortAdd
	switch {
	case int(t.Kind) >= o.firstUser:
		return forUser
	case !get && !store && !exchange && !put && (t.Kind == 0 || t.Kind&^others != 0), put && t.Kind&^(layout.PortPut|layout.PortInline|others) != 0:
		return badKind
	case (put || get) && t.C >= 1<<48, store && t.C != 8:
		return badField
	case t.Detail >= uint64(len(o.ports)):
		return noPort
	case !put && !get && !store && !exchange:
		return move
	}
	conn := o.connections[o.ports[t.Detail]]
	path := conn.Internal().Path()
	to, from := path.Peer, path.Rank
	if get {
		to, from = from, to
	}
	bytes := t.C
	if exchange {
		bytes = 8
	}
	if v := o.checkMemory(path.Registry, to, d.Dst, d.DstOffset, bytes, badDst); v != move {
		return v
	}
	if store {
		return move
	}
	if !inlined {
		return o.checkMemory(path.Registry, from, d.Src, d.SrcOffset, bytes, badSrc)
	}
	if t.B <= 15 && t.C > 0 && t.C <= o.ring.Payload {
		d.Payload = int(position%o.ring.Size*o.ring.PayloadStride + t.B)
	}
	if d.Payload < 0 || t.C > conn.InlineLimit() {
		return badBytes
	}
	return move
}

// checkMemory returns move for a range of a rank's memory, else what is wrong.
func (o *oracle) checkMemory(registry uint64, rank int, id uint16, offset, n uint64, bad verdict) verdict {
	if int(id) >= len(o.memories) {
		return noMemory
	}
	m := o.memories[id]
	if m.Registry().Internal().Instance() != registry || m.Rank() != rank || offset > m.Size() || m.Size()-offset < n {
		return bad
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
		testerr.Check(t, err)
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
			sem, err := semaphore.NewHost2Device(conn, end, far, 0, newWatch(t, reg.Device()))
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
func (p *pool) tables(firstUser int, ports, memories []byte) (*loop, *oracle) {
	l := newLoop(Options{Spin: 1, Sleep: 1}, firstUser)
	o := &oracle{ring: p.ring.Internal().State(), firstUser: firstUser, connections: p.connections}
	words, _ := p.ring.Internal().Words()
	for i, c := range p.connections {
		l.addConnection(c, &words[i], nil)
	}
	for _, b := range ports {
		i := int(b) % len(p.connections)
		l.addPort(i, p.semaphores[i].Internal())
		o.ports = append(o.ports, i)
	}
	for _, b := range memories {
		m := p.memories[int(b)%len(p.memories)]
		l.addMemory(m)
		o.memories = append(o.memories, m)
	}
	return l, o
}

// FuzzDecide puts any entry into the ring of a loop with any tables. What the loop
// decides about it must be what the oracle does. Nothing is served in C, since all
// queues are busy.
func FuzzDecide(f *testing.F) {
	const put, signal, flush, inline = layout.PortPut, layout.PortSignal, layout.PortFlush, layout.PortInline
	ports, memories := []byte{0, 1, 2, 3, 4, 5}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	add := func(x fifo.Trigger) {
		w := entry(x, true)
		f.Add(w[0], w[1], w[2], w[3], uint16(fifo.FirstUserKind), ports, memories)
	}
	for kind := range uint8(fifo.FirstUserKind) {
		for port := range uint64(len(ports) + 1) {
			add(fifo.Trigger{A: 5<<48 | 4000, B: 4<<48 | 96, C: 96, Detail: port, Kind: kind})
		}
	}
	for _, c := range []uint64{0, 64, 65, 1 << 48} {
		for _, b := range []uint64{5<<48 | 4001, 4 << 48, 11 << 48, 12 << 48, 5 << 48} {
			add(fifo.Trigger{A: 4 << 48, B: b, C: c, Kind: layout.PortGet})
			add(fifo.Trigger{A: b, B: 5 << 48, C: c, Kind: layout.PortGet | flush})
			add(fifo.Trigger{A: b, B: 1 << 63, C: 8 | c>>48, Kind: layout.PortStore})
			add(fifo.Trigger{A: b, B: 1 << 63, C: 8 | c>>48, Kind: layout.PortAdd})
			add(fifo.Trigger{A: 5 << 48, B: b, C: c, Kind: layout.PortExchange})
			add(fifo.Trigger{A: b, B: 4 << 48, C: c, Kind: layout.PortExchange | flush})
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
	ring := p.ring.Internal().State()
	f.Fuzz(func(t *testing.T, a, b, c, d uint64, firstUser uint16, ports, memories []byte) {
		l, o := p.tables(int(firstUser), ports[:min(len(ports), 64)], memories[:min(len(memories), 64)])
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
		th, r := newThread(), &run{proxy: &Proxy{ring: p.ring, loop: l}}
		th.add(r)
		defer th.remove(r)
		if _, why := th.next(); l.c.taken != 1 {
			t.Fatalf("the loop returned for reason %d with %d jobs", why, l.c.taken)
		}
		testerr.Check(t, p.ring.Pop(1))
		j := &l.c.jobs[0]
		got := decision{
			Trigger: triggerOf(j), DstOffset: uint64(j.dst_offset), SrcOffset: uint64(j.src_offset), Dst: uint16(j.dst), Src: uint16(j.src),
			Verdict: verdict(j.verdict), Payload: -1,
		}
		if j.payload != nil {
			got.Payload = int(uintptr(unsafe.Pointer(j.payload)) - uintptr(ring.Payloads))
		}
		if diff := cmp.Diff(o.decide(words, position), got); diff != "" {
			t.Errorf("%#x is decided otherwise (-oracle +C):\n%s", words, diff)
		}
		if uint64(j.position) != position {
			t.Errorf("position %d is taken for %d", position, j.position)
		}
	})
}
