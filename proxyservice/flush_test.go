package proxyservice

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// holding is an idle driver whose marks are reached once a test says so, each behind
// those before it.
type holding struct {
	idle
	queue   *nativetest.Queue
	set     atomic.Int64 // marks
	reached atomic.Int64 // of them, so many
}

func (d *holding) NativeQueue() *native.Queue { return d.queue.Queue }

func (d *holding) NewMark() (connection.DriverMark, error) { return &heldMark{d: d}, nil }

type heldMark struct {
	d      *holding
	number int64
}

func (m *heldMark) Set() error {
	m.number = m.d.set.Add(1)
	return nil
}

func (m *heldMark) Reached() (bool, error) { return m.number <= m.d.reached.Load(), nil }
func (m *heldMark) Close() error           { return nil }

// TestManyFlushes has more flushes under way on one connection than a queue has marks,
// on marks that C made, then Go while the queue is busy, then C again.
func TestManyFlushes(t *testing.T) {
	const each = 2*nativetest.Marks + 8
	d := &holding{queue: nativetest.NewQueue()}
	b := newBed(t, over(d))
	b.handle = func(x fifo.Trigger) { d.queue.Busy(x.A != 0) }
	d.queue.Hold(true)
	flush := fifo.Trigger{Kind: layout.PortFlush}
	b.push(flush, each)
	b.push(fifo.Trigger{A: 1, Kind: 200}, 1)
	b.push(flush, each)
	b.push(fifo.Trigger{A: 0, Kind: 200}, 1)
	b.push(flush, each)
	ended := make(chan error, 1)
	go func() { ended <- b.serve() }()
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("never:", what)
			}
		}
	}
	words, _ := b.service.ring.Internal().Words()
	eventually("all triggers are served", func() bool { return b.service.ring.Len() == 0 })
	if inC, inGo := d.queue.Done(native.Mark), d.set.Load(); words[0].Load() != 0 || inC != 2*each || inGo != each {
		t.Fatalf("flushes are done up to %d though all are held; C set %d marks and Go %d", words[0].Load(), inC, inGo)
	}
	// The newest mark of C's is behind all of Go's.
	d.queue.Hold(false)
	eventually("the flushes are done", func() bool { return words[0].Load() == 3*each+2 })
	select {
	case err := <-ended:
		t.Fatalf("the proxy has drained before Go's marks were reached: %v", err)
	default:
	}
	d.reached.Store(math.MaxInt64)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := b.service.Snapshot().Flushes.Count; n != 3*each {
		t.Errorf("%d of %d flushes are counted", n, 3*each)
	}
}

// TestFlushBesideBusyRing keeps the ring from ever being empty, with triggers that are
// for Go. The flush before them ends all the same.
func TestFlushBesideBusyRing(t *testing.T) {
	for name, d := range map[string]connection.Driver{"mark of Go's": &idle{}, "mark of C's": &holding{queue: nativetest.NewQueue()}} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, over(d))
			words, _ := b.service.ring.Internal().Words()
			if d, ok := d.(*holding); ok {
				d.queue.Hold(true)
				d.reached.Store(math.MaxInt64)
			}
			const enough = 1000
			user, ended := fifo.Trigger{Kind: 200}, 0
			b.handle = func(fifo.Trigger) {
				if d, ok := d.(*holding); ok && b.handled == 20 {
					d.queue.Hold(false)
				}
				if ended == 0 && words[0].Load() != 0 {
					ended = b.handled
				}
				if b.handled < enough {
					b.push(user, 1)
				}
			}
			b.push(fifo.Trigger{Kind: layout.PortFlush}, 1)
			b.push(user, 2)
			testerr.Check(t, b.serve())
			if ended == 0 {
				t.Errorf("the flush had not ended when %d triggers behind it were served", enough)
			}
		})
	}
}
