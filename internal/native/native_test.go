package native_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
)

// blocked checks that f does not end before release is called, and then does.
func blocked(t *testing.T, f, release func()) {
	t.Helper()
	var released atomic.Bool
	early := make(chan bool, 1)
	go func() {
		f()
		early <- !released.Load()
	}()
	select {
	case <-early:
		t.Fatal("it did not wait")
	case <-time.After(10 * time.Millisecond):
	}
	released.Store(true)
	release()
	select {
	case e := <-early:
		if e {
			t.Error("it ended before the thread left")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for ever")
	}
}

func TestGate(t *testing.T) {
	g := native.NewGate()
	first, ok := nativetest.EnterGate(g)
	if !ok {
		t.Fatal("an open gate is closed")
	}
	second, ok := nativetest.EnterGate(g)
	if !ok {
		t.Fatal("a gate let in one only")
	}
	first()
	blocked(t, g.Close, second)
	if _, ok := nativetest.EnterGate(g); ok {
		t.Error("a closed gate is open")
	}
	g.Close()
}

func TestRange(t *testing.T) {
	g := native.NewGate()
	one, other := native.NewRange(g, native.RangeInfo{}), native.NewRange(g, native.RangeInfo{})
	leave, ok := nativetest.EnterRange(one)
	if !ok {
		t.Fatal("an open range is closed")
	}
	blocked(t, one.Close, leave)
	if _, ok := nativetest.EnterRange(one); ok {
		t.Error("a closed range is open")
	}
	if leave, ok = nativetest.EnterRange(other); !ok {
		t.Fatal("closing a range closed another one")
	}
	blocked(t, g.Close, leave)
	if _, ok := nativetest.EnterRange(other); ok {
		t.Error("a range is open whose gate is closed")
	}
}

func TestCount(t *testing.T) {
	n := native.NewCount()
	if sent := n.Claim(); sent != 0 {
		t.Fatalf("%d were sent before the first", sent)
	}
	if _, ok := nativetest.ClaimCount(n); ok {
		t.Error("two claimed the count")
	}
	n.Release(7)
	release, ok := nativetest.ClaimCount(n)
	if !ok {
		t.Fatal("nobody can claim the count")
	}
	var sent uint64
	blocked(t, func() { sent = n.Claim() }, release)
	if sent != 7 {
		t.Errorf("%d were sent, not 7", sent)
	}
}

func TestQueue(t *testing.T) {
	q := nativetest.NewQueue()
	do := func() int { return nativetest.Do(q.Queue, native.Mark, 0, 0, 0) }
	if rc := do(); rc != nativetest.Pending {
		t.Errorf("a mark returned %d", rc)
	}
	q.Busy(true)
	if rc := do(); rc != nativetest.Busy {
		t.Errorf("a queue in use returned %d", rc)
	}
	q.Busy(false)
	q.Fail(native.Begin, 3)
	if rc := do(); rc != 3 {
		t.Errorf("a queue that fails returned %d", rc)
	}
	q.Close() // nobody was left inside
	q.Close()
	if rc := do(); rc != nativetest.Closed || !(native.Failure{Code: rc}).Closed() {
		t.Errorf("a closed queue returned %d", rc)
	}
}
