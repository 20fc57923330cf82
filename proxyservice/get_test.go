package proxyservice_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// eachWay runs a test with ports that the host serves in C and in Go, whose puts and gets the
// threads make, and that lead over Ethernet.
func eachWay(t *testing.T, test func(t *testing.T, ranks [2]*rank)) {
	t.Run("in C", func(t *testing.T) { test(t, newPair(t, hostOnly)) })
	t.Run("in Go", func(t *testing.T) { test(t, inGo(t, newPair(t, hostOnly))) })
	t.Run("direct", func(t *testing.T) { test(t, newPair(t, direct)) })
	t.Run("far", func(t *testing.T) { test(t, newFarPair(t, proxyservice.ServiceOptions{})) })
}

// TestGet gets at all alignments and many sizes, and looks at every byte of this rank's
// memory, and at the peer's.
func TestGet(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const size = 1 << 16
		d := newDuo(t, ranks, size)
		data := make([]byte, size)
		rand.NewChaCha8([32]byte{1}).Read(data)
		testerr.Check(t, gpu.CopyIn(d.receive[1], data))
		testerr.Check(t, gpu.CopyIn(d.send[0], make([]byte, size)))
		want := make([]byte, size)
		check := func(from, to, n uint64, a Action) {
			t.Helper()
			ranks[0].must(t, d.channels[0], a, from, to, n)
			if a == get {
				ranks[0].must(t, d.channels[0], flush, 0, 0, 0)
			}
			copy(want[to:to+n], data[from:from+n])
			testcmp.Equal(t, fmt.Sprintf("this rank's memory behind %d bytes from %d to %d", n, from, to), read[byte](t, d.send[0], size), want)
		}
		for from := range uint64(4) {
			for to := range uint64(4) {
				check(16+5*from, 3*to, 1+7*to+from, getAndFlush)
			}
		}
		for _, n := range []uint64{0, 1, 15, 16, 128, 129, 255, 256, 2047, 2048, 2049, 5000, size} {
			check(0, 0, n, get)
			if n < size {
				check(1, 0, n, getAndFlush)
			}
		}
		testcmp.Equal(t, "the peer's memory", read[byte](t, d.receive[1], size), data)
	})
}

// TestGetAmongPuts gets what was just put, puts where was just got, and signals, with no
// flush between them.
func TestGetAmongPuts(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const size, rounds = 1 << 18, 20
		d := newDuo(t, ranks, size)
		result := ranks[0].alloc(t, 4)
		testerr.Check(t, gpu.CopyIn(d.receive[1], make([]byte, size)))
		data := make([]byte, size)
		rand.NewChaCha8([32]byte{2}).Read(data)
		testerr.Check(t, gpu.CopyIn(d.send[0], data))
		ranks[0].launch(t, "rotate", 1, 1, d.channels[0].Handle(), uint64(size), uint32(rounds), result)
		ranks[0].wait(t)
		if got := devicecode.WaitResult(read[uint32](t, result, 1)[0]); got != devicecode.WaitDone {
			t.Fatalf("%v (%v)", got, ranks[0].service.Err())
		}
		if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, rounds); got != devicecode.WaitDone {
			t.Fatal(got)
		}
		// What kernel rotate does.
		peer, mine := make([]byte, size), bytes.Clone(data)
		for i := range rounds {
			n, at := []int{16, 2000, 8000, size / 4}[i%4], 64*i
			copy(peer[:n], mine[size/2+at:])
			copy(mine[:n], peer[:n])
			copy(peer[size/2+at:], mine[:16])
			copy(mine[size/4+at:], peer[size/2+at:size/2+at+16])
		}
		for what, c := range map[string][2][]byte{"this rank's": {read[byte](t, d.send[0], size), mine}, "the peer's": {read[byte](t, d.receive[1], size), peer}} {
			for i := range c[0] {
				if c[0][i] != c[1][i] {
					t.Fatalf("%s memory is not as if all was done in order: byte %d is %d, not %d", what, i, c[0][i], c[1][i])
				}
			}
		}
	})
}

// TestGetBase gets between memories that the trigger names.
func TestGetBase(t *testing.T) {
	ranks := newPair(t, hostOnly)
	d := newDuo(t, ranks, 64)
	r := ranks[0]
	c := testerr.Must(r.service.BasePortChannel(r.newSemaphore(t, r.conn)))(t)
	mine := testerr.Must(r.service.AddMemory(r.register(t, d.send[0])))(t)
	theirs := testerr.Must(r.service.AddMemory(r.share(t, d.receive[1])))(t)
	testerr.Check(t, gpu.CopyIn(d.receive[1], []byte("0123456789")))
	testerr.Check(t, gpu.CopyIn(d.send[0], make([]byte, 64)))
	result := r.alloc(t, 4)
	r.launch(t, "getBase", 1, 1, c.Handle(), uint32(theirs), uint64(3), uint32(mine), uint64(2), uint64(5), result)
	r.wait(t)
	if got := read[uint32](t, result, 1)[0]; got != 0 {
		t.Fatalf("result %d (%v)", got, r.service.Err())
	}
	if got := string(read[byte](t, d.send[0], 10)); got != "\x00\x0034567\x00\x00\x00" {
		t.Fatalf("%q arrived", got)
	}
}

// TestManyGets has blocks get their own parts at once, over one channel, and each check what
// it has after its flush.
func TestManyGets(t *testing.T) {
	eachWay(t, func(t *testing.T, ranks [2]*rank) {
		const blocks, rounds = 4, 40
		d := newDuo(t, ranks, blocks*rounds*8)
		values := make([]uint64, blocks*rounds)
		for i := range values {
			values[i] = uint64(i + 1)
		}
		testerr.Check(t, gpu.CopyIn(d.receive[1], values))
		results := ranks[0].alloc(t, 4*blocks)
		ranks[0].launch(t, "getAll", blocks, 1, d.channels[0].Handle(), d.send[0], uint32(rounds), results)
		ranks[0].wait(t)
		testcmp.Equal(t, fmt.Sprintf("how the blocks ended (%v)", ranks[0].service.Err()), read[uint32](t, results, blocks), make([]uint32, blocks))
	})
}

// TestGetOutside gets from outside the memories, also where threads make small gets
// themselves.
func TestGetOutside(t *testing.T) {
	for name, c := range map[string]struct {
		from, to, n uint64
		says        string
	}{
		"of the peer": {4090, 0, 8, "offset 4090"}, "of this rank": {0, 4090, 8, "offset 4090"}, "beyond its field": {1 << 48, 0, 8, "2^48"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := newPair(t, proxyservice.ServiceOptions{Direct: channel.DefaultDirect})
			d := newDuo(t, ranks, 4096)
			if got := ranks[0].act(t, d.channels[0], getAndFlush, c.from, c.to, c.n, 1); got != devicecode.WaitAborted {
				t.Errorf("the get ended with %v", got)
			}
			ranks[0].expectFailure(t, mscclgo.ErrInvalid, c.says)
		})
	}
}
