package elements_test

import (
	"bytes"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/elements"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestChecker compares what the device fills and finds wrong with the host's.
func TestChecker(t *testing.T) {
	d := testdev.Open(t, 0)
	stream := testerr.Must(d.NewStream())(t)
	defer stream.Close()
	for _, known := range collective.Types() {
		typ := testerr.Must(elements.Of(known))(t)
		t.Run(typ.String(), func(t *testing.T) { compare(t, d, stream, typ) })
	}
}

func compare(t *testing.T, d *gpu.Device, stream *gpu.Stream, typ elements.Type) {
	const count, offset = 5003, 3
	c, err := elements.NewChecker(t.Context(), d, typ)
	testerr.Check(t, err)
	defer c.Close()
	seeds := []uint64{5, 1 << 63, 7}
	data := make([]*gpu.Buffer, len(seeds)) // unaligned, between bytes that must stay
	host := make([][]byte, len(seeds))
	for i, seed := range seeds {
		want := bytes.Repeat([]byte{'~'}, offset+count*typ.Size()+5)
		data[i] = testerr.Must(gpu.Upload(d, want))(t)
		testerr.Check(t, c.Fill(stream, data[i], offset, count, seed))
		testerr.Check(t, stream.Synchronize(t.Context()))
		typ.Fill(want[offset:offset+count*typ.Size()], seed)
		got := make([]byte, len(want))
		testerr.Check(t, gpu.CopyOut(got, data[i]))
		if diff := testcmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: the device fills otherwise than the host (-host +device):\n%.2000s", seed, diff)
		}
		host[i] = want[offset : offset+count*typ.Size()]
	}
	sums := map[uint64]bool{}
	for _, op := range collective.Ops() {
		for n := 1; n <= len(seeds); n++ {
			// The first data are right for themselves, and for some elements of a
			// reduction's.
			want := typ.WrongReduced(host[0], op, seeds[:n], 2)
			got, sum, err := c.Check(t.Context(), stream, data[0], offset, count, op, seeds[:n], 2)
			if err != nil || got != want || n == 1 && got != 0 {
				t.Errorf("%s of %d: %d wrong, %v; the host finds %d", op, n, got, err, want)
			}
			sums[sum] = true
		}
	}
	_, other, err := c.Check(t.Context(), stream, data[1], offset, count, collective.Sum, seeds[1:2], 1)
	if err != nil || len(sums) != 1 || sums[other] {
		t.Errorf("%d checksums of the same data, and %v for others, %v", len(sums), sums[other], err)
	}
}
