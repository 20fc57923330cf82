package proxyservice

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
)

// plugged is an idle driver that takes nothing until it is opened.
type plugged struct {
	idle
	queue *nativetest.Queue
	open  chan struct{}
	ready atomic.Bool
}

func (d *plugged) NativeQueue() *native.Queue         { return d.queue.Queue }
func (d *plugged) Ready(connection.Kind, uint64) bool { return d.ready.Load() }

func (d *plugged) Submit(connection.Operation) error {
	<-d.open
	return nil
}

// TestServingStalled has a trigger wait that neither its connection nor the backlog takes. It is
// served, until it is done, or dropped with its group, or the proxy ends.
func TestServingStalled(t *testing.T) {
	for name, release := range map[string]func(*bed, *plugged){
		"done":    func(_ *bed, d *plugged) { d.queue.Busy(false) },
		"dropped": func(b *bed, _ *plugged) { b.conn.Internal().Path().Failed.Set() },
		"ended": func(b *bed, _ *plugged) {
			why := errors.New("the test ends it")
			b.thread.runs[0].quit.Store(&why)
			b.service.loop.quit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &plugged{queue: nativetest.NewQueue(), open: make(chan struct{})}
			d.queue.Busy(true)
			b := newBed(t, over(d))
			open := sync.OnceFunc(func() { close(d.open) })
			t.Cleanup(open) // which what closes the connection waits for
			put := fifo.Trigger{Kind: layout.PortPut, C: 8}
			within := func(what string, ok func() bool) {
				t.Helper()
				for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Error("never:", what) // the proxy, which the test's end frees, has to end first
						return
					}
				}
			}
			ended := make(chan error, 1)
			for left := backlogSize; left > 0; {
				n := min(left, b.service.ring.Size())
				b.push(put, n)
				if left == backlogSize {
					go func() { ended <- b.serve() }()
				}
				within("the backlog takes them", func() bool { return b.service.ring.Len() == 0 })
				left -= n
			}
			if position, _, ok := b.service.Serving(); ok {
				t.Errorf("it serves trigger %d, and none stalls", position)
			}
			b.push(put, 1)
			within("the trigger is served", func() bool {
				position, kind, ok := b.service.Serving()
				return ok && position == backlogSize && kind == layout.PortPut
			})
			release(b, d)
			if name == "done" {
				d.ready.Store(true)
				open()
			}
			within("no trigger is served", func() bool { _, _, ok := b.service.Serving(); return !ok })
			open()
			select {
			case err := <-ended:
				if (err != nil) != (name == "ended") {
					t.Errorf("the proxy ended with %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the proxy has not ended")
			}
		})
	}
}

// TestDroppedGivesNoRoom has a group fail while a kernel puts and never waits: what it asks for is dropped
// and gives it no room, so that it comes to a wait, which has ended.
func TestDroppedGivesNoRoom(t *testing.T) {
	b := newBed(t, overGo)
	b.conn.Internal().Path().Failed.Set()
	b.push(fifo.Trigger{Kind: layout.PortPut, C: 8}, 3)
	ended := make(chan error, 1)
	go func() { ended <- b.serve() }()
	for end := time.Now().Add(10 * time.Second); b.service.ring.Len() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	why := errors.New("the test ends it")
	b.thread.runs[0].quit.Store(&why)
	b.service.loop.quit()
	<-ended
	if left, taken := b.service.ring.Len(), b.service.tables.Load().links[0].taken.Load(); left != 0 || taken != 0 {
		t.Errorf("%d triggers are left, and kernels got room for %d more", left, taken)
	}
}
