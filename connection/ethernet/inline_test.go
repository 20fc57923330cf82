package ethernet

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

var _ connection.BytesDriver = (*conn)(nil)

// TestWriteBytes writes bytes of all sizes among writes of memory and updates, over
// each other: the last must win. The bytes are written anew as soon as they may.
func TestWriteBytes(t *testing.T) {
	variants(t, func(t *testing.T, o Options) {
		a, b := newRank(t, 0, o), newRank(t, 1, o)
		ab, _ := connect(t, a, b)
		const size, operations = 1 << 20, 400
		for _, to := range kinds {
			random := rand.New(rand.NewPCG(1, uint64(len(to))))
			src, mine := memory(t, a, onDevice, size), memory(t, b, to, 8+size)
			dst := imported(t, a, mine)
			data := noise(size)
			set(t, src, data)
			want := make([]byte, 8+size)
			buffer := make([]byte, inlineLimit)
			for i := range uint64(operations) {
				n := random.Uint64N(inlineLimit + 1)
				if i%8 == 0 {
					n = []uint64{0, 1, inlineLimit - 1, inlineLimit}[i/8%4]
				}
				large := random.IntN(16) == 0
				if large {
					n = random.Uint64N(size)
				}
				from, at := random.Uint64N(size-n), random.Uint64N(min(size-n, 8*inlineLimit))
				copy(want[8+at:8+at+n], data[from:])
				var err error
				if large || random.IntN(4) == 0 {
					err = ab.Write(dst, 8+at, src, from, n)
				} else {
					copy(buffer, data[from:from+n])
					err = ab.WriteBytes(dst, 8+at, buffer[:n])
					clear(buffer)
				}
				if err != nil {
					t.Fatal(err)
				}
				if i%3 == 0 {
					if err := ab.UpdateAndSync(dst, 0, i, i+1); err != nil {
						t.Fatal(err)
					}
					binary.NativeEndian.PutUint64(want, i+1)
				}
			}
			if err := ab.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := get(t, mine); !bytes.Equal(got, want) {
				t.Errorf("%v memory holds other bytes", to)
			}
		}
	})
}

// TestWriteBytesFillsQueue queues more bytes than there is room for.
func TestWriteBytesFillsQueue(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, _ := connect(t, a, b)
	const parts = 2*queueDepth + 1
	mine := memory(t, b, onDevice, parts*7)
	dst := imported(t, a, mine)
	data := noise(parts * 7)
	for i := range uint64(parts) {
		if err := ab.WriteBytes(dst, i*7, data[i*7:i*7+7]); err != nil {
			t.Fatal(err)
		}
	}
	if err := ab.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(get(t, mine), data) {
		t.Error("other bytes arrived")
	}
}

func TestWriteBytesMisuse(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, _ := connect(t, a, b)
	src, mine := memory(t, a, onDevice, 64), memory(t, b, onDevice, 64)
	dst := imported(t, a, mine)
	for name, err := range map[string]error{
		"nil":      ab.WriteBytes(nil, 0, make([]byte, 1)),
		"own":      ab.WriteBytes(src, 0, make([]byte, 1)),
		"registry": ab.WriteBytes(mine, 0, make([]byte, 1)),
		"past":     ab.WriteBytes(dst, 60, make([]byte, 5)),
		"far":      ab.WriteBytes(dst, 1<<63, make([]byte, 1)),
		"many":     ab.WriteBytes(dst, 0, make([]byte, ab.InlineLimit()+1)),
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1") })
	}
	if err := mine.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ab.WriteBytes(dst, 0, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	testerr.Expect(t, failed(t, ab), mscclgo.ErrRemote)
	ab.Close()
	testerr.Expect(t, ab.WriteBytes(dst, 0, nil), mscclgo.ErrInvalid, "closed")
}

// TestWriteBytesAllocatesNothing: the queue keeps the memory that it took.
func TestWriteBytesAllocatesNothing(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, _ := connect(t, a, b)
	dst := imported(t, a, memory(t, b, reachable, inlineLimit))
	data := noise(inlineLimit)
	write := func() {
		if err := ab.WriteBytes(dst, 0, data); err != nil {
			t.Fatal(err)
		}
	}
	// Places in the queue and in batches trade their memory.
	for range 4 * queueDepth {
		write()
	}
	if n := testing.AllocsPerRun(queueDepth, write); n != 0 {
		t.Errorf("%v allocations a write", n)
	}
}

// TestBytesOutliveTheirPlace: what a sender has taken stays as it is when the places in
// the queue are used again.
func TestBytesOutliveTheirPlace(t *testing.T) {
	c := &conn{t: &Transport{}}
	c.changed.L, c.work.L = &c.mu, &c.mu
	s := &sender{c: c}
	c.senders = []*sender{s}
	a := newRank(t, 0, loopback())
	dst := memory(t, a, onDevice, 8)
	c.peerInstance = a.t.instance
	queue := func(data string) {
		t.Helper()
		if err := c.enqueue(dst, op{kind: kindData, n: uint64(len(data)), data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	var batches [2]batch
	for lap := range 3 {
		queue("first")
		if !s.take(&batches[lap%2], false) {
			t.Fatal("nothing was queued")
		}
		for range queueDepth {
			queue("other")
		}
		if got := string(batches[lap%2].pieces[0].data); got != "first" {
			t.Fatalf("lap %d: a sender that has taken the first bytes has %q", lap, got)
		}
		for c.taken < c.queued.Load() {
			s.take(&batches[(lap+1)%2], false)
		}
	}
}
