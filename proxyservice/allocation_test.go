package proxyservice

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// idle is a driver on which everything is done at once.
type idle struct {
	writes, marks int
	wrote         []byte
}

func (c *idle) Write(_ *registeredmem.Memory, _ uint64, _ *registeredmem.Memory, _, _ uint64) error {
	c.writes++
	return nil
}

func (*idle) InlineLimit() uint64 { return 64 }

func (c *idle) WriteBytes(_ *registeredmem.Memory, _ uint64, data []byte) error {
	c.writes++
	c.wrote = append(c.wrote[:0], data...)
	return nil
}

func (*idle) Update(*registeredmem.Memory, uint64, uint64, uint64) error { return nil }

func (c *idle) NewMark() (connection.DriverMark, error) { return idleMark{c}, nil }

func (*idle) Close() error { return nil }

type idleMark struct{ c *idle }

func (m idleMark) Set() error {
	m.c.marks++
	return nil
}

func (idleMark) Reached() (bool, error) { return true, nil }
func (idleMark) Close() error           { return nil }

// idleConnection is one of rank 0 to itself.
func (w *twoWays) idleConnection(t *testing.T, d connection.Driver) *connection.Connection {
	t.Helper()
	c, err := connection.New(w.service.memories[0].Registry(), 0, registeredmem.CudaIPC, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestServeAllocatesNothing serves puts with flushes.
func TestServeAllocatesNothing(t *testing.T) {
	w := newTwoWays(t)
	conn := &idle{}
	var done atomic.Uint64
	s := server{counts: &counters{}}
	s.memories.Store(&w.service.memories)
	s.ports.Store(&[]port{{line: &line{conn: w.idleConnection(t, conn), done: &done}}})
	put := fifo.Trigger{A: 1 << 48, C: 64, Kind: devicecode.PortPut | devicecode.PortFlush}
	position := uint64(0)
	n := testing.AllocsPerRun(1000, func() {
		if err := s.serve(position, put); err != nil {
			t.Fatal(err)
		}
		position++
		if underWay, err := s.goOn(); underWay || err != nil {
			t.Fatalf("a flush is under way: %v, %v", underWay, err)
		}
		if done.Load() != position {
			t.Fatalf("flushes are done up to %d, want %d", done.Load(), position)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a trigger", n)
	}
	if conn.writes != conn.marks || uint64(conn.writes) != position {
		t.Errorf("%d writes and %d marks for %d triggers", conn.writes, conn.marks, position)
	}
}

// TestServeInlineAllocatesNothing serves one trigger, whose bytes are in the ring, over
// and over.
func TestServeInlineAllocatesNothing(t *testing.T) {
	w := newTwoWays(t)
	put := fifo.Trigger{B: 5, C: 64, Kind: devicecode.PortPut | devicecode.PortInline}
	w.push(put)
	ring := w.service.ring
	if _, ok := ring.Poll(); !ok {
		t.Fatal("no trigger")
	}
	bytes, ok := ring.Payload(ring.Popped(), put)
	if !ok {
		t.Fatal("no payload")
	}
	for i := range bytes {
		bytes[i] = byte(i + 1)
	}
	conn := &idle{}
	s := server{ring: ring}
	s.memories.Store(&w.service.memories)
	s.ports.Store(&[]port{{line: &line{conn: w.idleConnection(t, conn)}}})
	if n := testing.AllocsPerRun(1000, func() {
		if err := s.serve(ring.Popped(), put); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a trigger", n)
	}
	if !slices.Equal(conn.wrote, bytes) {
		t.Errorf("it wrote %v", conn.wrote)
	}
}
