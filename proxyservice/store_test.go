package proxyservice_test

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestStore stores values of all kinds, and looks at every word of the peer's memory.
func TestStore(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const words = 16
		d := newDuo(t, ranks, 8*words)
		testerr.Check(t, gpu.CopyIn(d.receive[1], make([]uint64, words)))
		want := make([]uint64, words)
		for i, value := range []uint64{1, 1 << 63, 1<<64 - 1, 0, 1 << 52, 0xfedcba9876543210} {
			for _, at := range []uint64{0, uint64(i + 1), words - 1} {
				ranks[0].must(t, d.channels[0], store, 8*at, value, 0)
				want[at] = value
			}
			ranks[0].must(t, d.channels[0], storeAndFlush, 8*5, value, 0)
			want[5] = value
			testcmp.Equal(t, "the peer's words behind a flush", read[uint64](t, d.receive[1], words), want)
		}
	})
}

// TestStoreAmongPuts stores to words that are put and got too, with no flush between, and
// signals.
func TestStoreAmongPuts(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const words, rounds = 1 << 12, 50
		d := newDuo(t, ranks, 8*words)
		values := make([]uint64, words)
		for i := range values {
			values[i] = 1000 + uint64(i)
		}
		testerr.Check(t, gpu.CopyIn(d.send[0], values))
		result := ranks[0].alloc(t, 4)
		ranks[0].launch(t, "storeAmong", 1, 1, d.channels[0].Handle(), uint32(rounds), uint64(words), result)
		ranks[0].wait(t)
		if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitDone {
			t.Fatalf("%v (%v)", got, ranks[0].service.Err())
		}
		if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, rounds); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		// What kernel storeAmong does.
		peer := make([]uint64, words)
		for i := range uint64(rounds) {
			copy(peer[:words/4], values)
			peer[i] = i
			values[words-1-i] = peer[i]
			peer[words-1-i] = ^i
		}
		got := read[uint64](t, d.receive[1], words)
		testcmp.Equal(t, "the first words at the peer", got[:words/4], peer[:words/4])
		testcmp.Equal(t, "the last words at the peer", got[words-rounds:], peer[words-rounds:])
		testcmp.Equal(t, "this rank's words", read[uint64](t, d.send[0], words), values)
	})
}

// TestStoreOutside stores outside the peer's memory, and to no word, also where threads store
// themselves.
func TestStoreOutside(t *testing.T) {
	for name, c := range map[string]struct {
		to   uint64
		says string
	}{"outside": {4092, "offset 4092"}, "not aligned": {12, "not aligned"}, "beyond its field": {1 << 48, "2^48"}} {
		t.Run(name, func(t *testing.T) {
			ranks := newPair(t, direct)
			d := newDuo(t, ranks, 4096)
			if got := ranks[0].act(t, d.channels[0], storeAndFlush, c.to, 1, 0, 1); got != devicecode.WaitAborted {
				t.Errorf("the store ended with %v", got)
			}
			ranks[0].expectFailure(t, mscclgo.ErrInvalid, c.says)
		})
	}
}
