package connection

import (
	"context"
	"testing"

	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// TestTurnsInC has threads in C give way to a turn and to all that wait for one.
func TestTurnsInC(t *testing.T) {
	q := turnQueue{begin: func() turn { return turn{} }}
	queue := nativetest.NewQueue()
	q.native = queue.Queue
	expect := func(when string, busy bool) {
		t.Helper()
		want := 0
		if busy {
			want = nativetest.Busy
		}
		if got := nativetest.Do(queue.Queue, native.Begin, 0, 0, 0); got != want {
			t.Errorf("%s: the queue is entered with %d, not %d", when, got, want)
		}
		if got := nativetest.Do(queue.Queue, native.Reach, 0, 0, 0); got != 0 {
			t.Errorf("%s: a mark is asked for with %d", when, got)
		}
	}
	expect("nobody has a turn", false)
	q.try()
	expect("a turn", true)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if q.wait(over) {
		t.Fatal("a wait that may not wait has the turn")
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	q.later(func(inside.Turn[Operation, Mark]) {
		close(begun)
		<-goOn
	})
	q.end()
	<-begun
	expect("a later turn", true)
	close(goOn)
	if !q.wait(context.Background()) {
		t.Fatal("the turn does not come")
	}
	expect("a turn that was waited for", true)
	q.end()
	expect("all have ended", false)
}

// TestTurnQueue has turns come in the order in which they are asked for, whoever asks, and those left out who
// wait no more.
func TestTurnQueue(t *testing.T) {
	q := turnQueue{begin: func() turn { return turn{} }}
	if !q.try() {
		t.Fatal("there is no turn on a connection that nobody uses")
	}
	var got []int
	done := make(chan struct{})
	over, cancel := context.WithCancel(context.Background())
	const turns, given = 8, 5
	for i := range turns {
		switch {
		case i%2 == 0:
			q.later(func(inside.Turn[Operation, Mark]) { got = append(got, i) })
			continue
		case i == given:
			go func() {
				if q.wait(over) {
					t.Error("a wait that was given up has the turn")
				}
				done <- struct{}{}
			}()
		default:
			go func() {
				q.wait(context.Background())
				got = append(got, i)
				q.end()
				done <- struct{}{}
			}()
		}
		for n := 0; n != i+1; {
			q.mu.Lock()
			n = len(q.waiting)
			q.mu.Unlock()
		}
	}
	cancel()
	<-done
	if q.try() {
		t.Error("a turn was taken while others have it and wait for it")
	}
	q.end()
	for range turns/2 - 1 {
		<-done
	}
	testcmp.Equal(t, "the order of the turns", got, []int{0, 1, 2, 3, 4, 6, 7})
	if !q.wait(over) {
		t.Error("nobody has the turn, and the wait for it fails")
	}
	q.end()
	if !q.try() {
		t.Error("nobody has the turn or waits for it, and it cannot be taken")
	}
}
