package connection

import (
	"context"
	"testing"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// TestTurnsInC has threads in C give way to a turn and to each place, whether it is taken or left.
func TestTurnsInC(t *testing.T) {
	var q turnQueue
	q.init()
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
	turn, _ := q.try()
	expect("a turn", true)
	left, place := q.join(), q.join()
	q.leave(left)
	q.leave(turn)
	expect("a place", true)
	if !q.wait(context.Background(), place) {
		t.Fatal("the place's turn does not come")
	}
	expect("its turn", true)
	q.leave(place)
	expect("all have left", false)
}

// TestTurnQueue has turns taken in the order of the places, whatever the order of the calls that
// wait for them, and places that nobody waits in left out.
func TestTurnQueue(t *testing.T) {
	var q turnQueue
	q.init()
	first, ok := q.try()
	if !ok {
		t.Fatal("there is no turn on a connection that nobody uses")
	}
	places := make([]uint64, 6)
	for i := range places {
		places[i] = q.join()
	}
	took := make(chan int)
	order := []int{4, 1, 3}
	for _, i := range order {
		go func() {
			q.wait(context.Background(), places[i])
			took <- i
		}()
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if q.wait(over, places[0]) {
		t.Error("a wait that may not wait has the turn, which another has")
	}
	q.leave(places[2])
	if _, ok := q.try(); ok {
		t.Error("a turn was taken while others have it and wait for it")
	}
	q.leave(first)
	var got []int
	for range order {
		i := <-took
		got = append(got, i)
		q.leave(places[i])
	}
	testcmp.Equal(t, "the order of the turns", got, []int{1, 3, 4})
	if !q.wait(over, places[5]) {
		t.Error("the turn has come, and the wait for it fails")
	}
	q.leave(places[5])
	if _, ok := q.try(); !ok {
		t.Error("nobody has the turn or waits for it, and it cannot be taken")
	}
}
