package proxyservice

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// idle is a connection on which everything is done at once.
type idle struct {
	writes, marks int
	wrote         []byte
}

func (*idle) Transport() registeredmem.Transports { return registeredmem.CudaIPC }

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

func (*idle) UpdateAndSync(*registeredmem.Memory, uint64, uint64, uint64) error { return nil }

func (c *idle) Mark() (connection.Mark, error) {
	c.marks++
	return c, nil
}

func (*idle) Done() (bool, error)         { return true, nil }
func (*idle) Flush(context.Context) error { return nil }
func (*idle) Close() error                { return nil }

// TestServeAllocatesNothing serves puts with flushes.
func TestServeAllocatesNothing(t *testing.T) {
	conn := &idle{}
	var done atomic.Uint64
	s := server{counts: &counters{}}
	s.memories.Store(&[]*registeredmem.Memory{nil, nil})
	s.ports.Store(&[]port{{line: &line{conn: conn, done: &done}}})
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
	s.memories.Store(&[]*registeredmem.Memory{nil})
	s.ports.Store(&[]port{{line: &line{conn: conn}}})
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
