package ethernet

import (
	"testing"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

var _ connection.BytesDriver = (*conn)(nil)

// TestWriteBytesAllocatesNothing: the queue keeps the memory that it took.
func TestWriteBytesAllocatesNothing(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, _ := connect(t, a, b)
	dst := imported(t, a, memory(t, b, reachable, ab.InlineLimit()))
	data := testlink.Noise(ab.InlineLimit())
	write := func() {
		testerr.Check(t, ab.WriteBytes(dst, 0, data))
	}
	// Places in the queue and in batches trade their memory.
	for range 4 * message.Depth {
		write()
	}
	if n := testing.AllocsPerRun(message.Depth, write); n != 0 {
		t.Errorf("%v allocations a write", n)
	}
}

// TestBytesOutliveTheirPlace: what a sender has taken stays as it is when the places in
// the queue are used again.
func TestBytesOutliveTheirPlace(t *testing.T) {
	a := newRank(t, 0, loopback())
	c := &conn{t: a.t}
	c.Open(&a.t.rank, c, 1, c.wake)
	c.Init(&c.End, c, false)
	s := &sender{c: c}
	c.senders = []*sender{s}
	dst := memory(t, a, onDevice, 8)
	c.PeerInstance = a.t.rank.Instance
	queue := func(data string) {
		t.Helper()
		testerr.Check(t, c.Submit(connection.Operation{Kind: connection.WriteBytes, Theirs: dst, N: uint64(len(data)), Data: []byte(data)}))
	}
	var batches [2]batch
	for lap := range 3 {
		queue("first")
		if !s.take(&batches[lap%2], false) {
			t.Fatal("nothing was queued")
		}
		for range message.Depth {
			queue("other")
		}
		if got := string(batches[lap%2].pieces[0].data); got != "first" {
			t.Fatalf("lap %d: a sender that has taken the first bytes has %q", lap, got)
		}
		for c.Taken < c.Queued.Load() {
			s.take(&batches[(lap+1)%2], false)
		}
	}
}
