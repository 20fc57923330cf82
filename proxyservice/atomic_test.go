package proxyservice_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestAddAndExchange adds and exchanges values of all kinds, and looks at every word of both
// memories.
func TestAddAndExchange(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const words = 16
		d := newDuo(t, ranks, 8*words)
		testerr.Check(t, errors.Join(gpu.CopyIn(d.receive[1], make([]uint64, words)), gpu.CopyIn(d.send[0], make([]uint64, words))))
		want, olds := make([]uint64, words), make([]uint64, words)
		for i, value := range []uint64{1, 1 << 63, 1<<64 - 1, 0, 1 << 52, 0xfedcba9876543210} {
			for _, at := range []uint64{0, uint64(i + 1), words - 1} {
				ranks[0].must(t, d.channels[0], add, 8*at, value, 0)
				want[at] += value
			}
			ranks[0].must(t, d.channels[0], addAndFlush, 8*5, value, 0)
			want[5] += value
			ranks[0].must(t, d.channels[0], exchange, 8*words-8, value, 8*uint64(i))
			olds[i], want[words-1] = want[words-1], value
			ranks[0].must(t, d.channels[0], exchangeAndFlush, 0, ^value, 8*words-8)
			olds[words-1], want[0] = want[0], ^value
			testcmp.Equal(t, "the peer's words behind a flush", read[uint64](t, d.receive[1], words), want)
			testcmp.Equal(t, "what they were", read[uint64](t, d.send[0], words), olds)
		}
	})
}

// TestChangeAmongPuts adds and exchanges among puts of the same words, with no flush between,
// and signals.
func TestChangeAmongPuts(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const words, rounds = 1 << 12, 50
		d := newDuo(t, ranks, 8*words)
		values := make([]uint64, words)
		for i := range values {
			values[i] = 1000 + uint64(i)
		}
		testerr.Check(t, gpu.CopyIn(d.send[0], values))
		result := ranks[0].alloc(t, 4)
		ranks[0].launch(t, "changeAmong", 1, 1, d.channels[0].Handle(), uint32(rounds), uint64(words), result)
		ranks[0].wait(t)
		if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitDone {
			t.Fatalf("%v (%v)", got, ranks[0].service.Err())
		}
		if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, rounds); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		// What kernel changeAmong does.
		peer := make([]uint64, words)
		for i := range uint64(rounds) {
			copy(peer[:words/4], values)
			values[words-1-i] = peer[i] + i<<40
			peer[i], peer[words-1-i] = ^i, values[words-1-i]+1
		}
		got := read[uint64](t, d.receive[1], words)
		testcmp.Equal(t, "the first words at the peer", got[:words/4], peer[:words/4])
		testcmp.Equal(t, "the last words at the peer", got[words-rounds:], peer[words-rounds:])
		testcmp.Equal(t, "this rank's words", read[uint64](t, d.send[0], words), values)
	})
}

// TestChangeBase adds and exchanges in memories that a kernel names.
func TestChangeBase(t *testing.T) {
	ranks := newPair(t, hostOnly)
	d := newDuo(t, ranks, 64)
	testerr.Check(t, gpu.CopyIn(d.receive[1], []uint64{0, 40}))
	h, result := d.channels[0].Handle(), ranks[0].alloc(t, 4)
	ranks[0].launch(t, "changeBase", 1, 1, h.Internal().Base, h.Internal().Dst, uint64(8), h.Internal().Src, uint64(16), result)
	ranks[0].wait(t)
	testcmp.Equal(t, "how it ended", devicecode.WaitResult(read[uint32](t, result, 1)[0]), devicecode.WaitDone)
	testcmp.Equal(t, "the peer's words", read[uint64](t, d.receive[1], 2), []uint64{0, 5})
	testcmp.Equal(t, "what the word was", read[uint64](t, d.send[0], 3)[2], uint64(43))
}

// TestChangesOfMany has blocks add to one word and exchange another, in two launches. Nothing is
// lost.
func TestChangesOfMany(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const blocks, rounds = 4, 40
		d := newDuo(t, ranks, 8*2*blocks*rounds)
		testerr.Check(t, gpu.CopyIn(d.receive[1], make([]uint64, 2)))
		for i := range uint64(2) {
			results := ranks[0].alloc(t, 4*blocks)
			h := d.channels[0].Handle()
			ranks[0].launch(t, "addAll", blocks, 1, h, d.send[0], i*blocks*rounds+1, uint32(rounds), results)
			ranks[0].wait(t)
			for block, got := range read[uint32](t, results, blocks) {
				if got := devicecode.WaitResult(got); got != devicecode.WaitDone {
					t.Fatalf("block %d: %v (%v)", block, got, ranks[0].service.Err())
				}
			}
			words := read[uint64](t, d.receive[1], 2)
			testcmp.Equal(t, "the sum", words[0], uint64((i+1)*blocks*rounds*(1<<40+1)))
			olds := append(read[uint64](t, d.send[0], blocks*rounds), words[1])
			slices.Sort(olds)
			for k, value := range olds[1:] {
				if want := i*blocks*rounds + 1 + uint64(k); value != want {
					t.Fatalf("%d was not exchanged once: %v", want, olds)
				}
			}
		}
	})
}

// TestChangeOutside adds and exchanges outside the peer's memory and of this rank's, and of no
// word, also where threads do so themselves.
func TestChangeOutside(t *testing.T) {
	for name, c := range map[string]struct {
		action            Action
		to, value, placed uint64
		says              string
	}{
		"add outside":               {addAndFlush, 4092, 1, 0, "offset 4092"},
		"add not aligned":           {addAndFlush, 12, 1, 0, "not aligned"},
		"add beyond its field":      {addAndFlush, 1 << 48, 1, 0, "2^48"},
		"exchange outside":          {exchangeAndFlush, 4092, 1, 0, "8 bytes at offset 4092"},
		"exchange not aligned":      {exchangeAndFlush, 12, 1, 0, "not aligned"},
		"exchange beyond its field": {exchangeAndFlush, 1 << 48, 1, 0, "outside the peer's memory"},
		"into outside":              {exchangeAndFlush, 8, 1, 4096, "8 bytes at offset 4096"},
		"into not aligned":          {exchangeAndFlush, 8, 1, 20, "not aligned"},
		"into beyond its field":     {exchangeAndFlush, 8, ^uint64(0), 1 << 60, "outside this rank's memory"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := newPair(t, direct)
			d := newDuo(t, ranks, 4096)
			if got := ranks[0].act(t, d.channels[0], c.action, c.to, c.value, c.placed, 1); got != devicecode.WaitAborted {
				t.Errorf("it ended with %v", got)
			}
			ranks[0].expectFailure(t, mscclgo.ErrInvalid, c.says)
		})
	}
}
