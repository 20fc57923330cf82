package gpu_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestStreamAtomics has several streams add to one word and exchange another. Nothing is lost.
func TestStreamAtomics(t *testing.T) {
	d := testdev.Open(t, 0)
	check(t, d.Internal().PrepareAtomics())
	check(t, d.Internal().PrepareAtomics())
	const streams, rounds = 4, 200
	b, olds := alloc(t, d, 24), allocHost(t, d, 8*streams*rounds)
	check(t, gpu.CopyIn(b, []uint64{math.MaxUint64, 0, 7}))
	var all sync.WaitGroup
	for i := range uint64(streams) {
		s := newStream(t, d)
		all.Go(func() {
			for k := range uint64(rounds) {
				at := i*rounds + k
				testerr.Report(t, s.Internal().Add64(b, 0, 1<<40+1))
				testerr.Report(t, s.Internal().Exchange64(b, 8, at+1, olds, 8*at))
			}
			testerr.Report(t, s.Synchronize(t.Context()))
		})
	}
	all.Wait()
	words := contents[uint64](t, b, 3)
	testcmp.Equal(t, "the sum", words[0], uint64(streams*rounds*(1<<40+1)-1))
	testcmp.Equal(t, "the word beside them", words[2], uint64(7))
	times := map[uint64]int{words[1]: 1}
	for _, old := range contents[uint64](t, olds, streams*rounds) {
		times[old]++
	}
	for value := range uint64(streams*rounds + 1) {
		if times[value] != 1 {
			t.Errorf("%d was taken out or left %d times", value, times[value])
		}
	}
}

// TestStreamAtomicsInOrder: an addition follows the work of the stream before it, and comes
// before that behind it, in a graph too.
func TestStreamAtomicsInOrder(t *testing.T) {
	d := testdev.Open(t, 0)
	check(t, d.Internal().PrepareAtomics())
	s, b, out := newStream(t, d), alloc(t, d, 8), allocHost(t, d, 24)
	check(t, s.BeginCapture())
	check(t, s.Fill(b, 0, 1, 8))
	check(t, s.Internal().Add64(b, 0, math.MaxUint64))
	check(t, s.Copy(out, 0, b, 0, 8))
	check(t, s.Internal().Exchange64(b, 0, 5, out, 8))
	check(t, s.Copy(out, 16, b, 0, 8))
	g, err := s.EndCapture()
	check(t, err)
	defer g.Close()
	const sum = 0x0101010101010100
	for range 2 {
		for i := range 3 {
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&out.Bytes()[8*i])), 0)
		}
		check(t, g.Launch(s))
		synchronize(t, s)
		testcmp.Equal(t, "what was there in between", contents[uint64](t, out, 3), []uint64{sum, sum, 5})
	}
}

func TestStreamAtomicsRefuse(t *testing.T) {
	d := testdev.Open(t, 0)
	s, b := newStream(t, d), alloc(t, d, 100)
	other := alloc(t, testdev.Open(t, 1), 100)
	closed, err := d.Alloc(100)
	check(t, err)
	check(t, closed.Close())
	for _, offset := range []uint64{93, 96, 100, math.MaxUint64, math.MaxUint64 - 7} {
		invalid(t, s.Internal().Add64(b, offset, 1), "stream add", name(t))
		invalid(t, s.Internal().Exchange64(b, offset, 1, b, 8), "stream exchange", name(t))
		invalid(t, s.Internal().Exchange64(b, 8, 1, b, offset), "stream exchange", name(t))
	}
	invalid(t, s.Internal().Add64(b, 4, 1), "offset 4", "aligned")
	invalid(t, s.Internal().Exchange64(b, 9, 1, b, 0), "offset 9", "aligned")
	invalid(t, s.Internal().Exchange64(b, 0, 1, b, 9), "offset 9", "aligned")
	for _, bad := range []struct {
		b    *gpu.Buffer
		says string
	}{{other, "Access"}, {closed, "closed"}, {nil, "nil"}} {
		invalid(t, s.Internal().Add64(bad.b, 0, 1), bad.says)
		invalid(t, s.Internal().Exchange64(bad.b, 0, 1, b, 0), bad.says)
		invalid(t, s.Internal().Exchange64(b, 0, 1, bad.b, 0), bad.says)
	}
	synchronize(t, s)
	check(t, s.Close())
	invalid(t, s.Internal().Add64(b, 0, 1), "closed")
	invalid(t, s.Internal().Exchange64(b, 0, 1, b, 8), "closed")
	check(t, d.Close())
	invalid(t, d.Internal().PrepareAtomics(), "closed")
}
