package proxyservice

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// idle is a connection on which everything is done at once.
type idle struct{ writes, marks int }

func (*idle) Transport() registeredmem.Transports { return registeredmem.CudaIPC }

func (c *idle) Write(_ *registeredmem.Memory, _ uint64, _ *registeredmem.Memory, _, _ uint64) error {
	c.writes++
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
