package communicator

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func samplePipeOffer() *pipeOffer {
	return &pipeOffer{
		size: pipe.Size{Slots: 8, SlotBytes: 4096}, open: true, shared: true, lazy: true, lots: lotSize{1024, 4}, perPeer: 2, ports: true,
		pool: []byte("a pool"), buffer: []byte("a buffer"), semaphores: offerWire.Marshal(sampleOffer()),
		ends: []offeredEnd{{peer: 1, i: 1, sends: true, offset: 128, endpoint: []byte("a socket")}, {peer: 2, offset: 1 << 40, endpoint: []byte{0}}},
	}
}

func TestPipeOffer(t *testing.T) {
	good := samplePipeOffer()
	b := pipeOfferWire.Marshal(good)
	got := testerr.Must(decodePipeOffer(b, 3))(t)
	if diff := cmp.Diff(good, got, cmp.AllowUnexported(pipeOffer{}, offeredEnd{}, lotSize{})); diff != "" {
		t.Errorf("decoded offer (-want +got):\n%s", diff)
	}
	if e := got.end(1, true, 1); e != &got.ends[0] {
		t.Errorf("the end is %+v", e)
	}
	if e := got.end(1, false, 1); e != nil {
		t.Errorf("there is an end %+v", e)
	}
	if _, err := decodePipeOffer(b, 2); err == nil || !strings.Contains(err.Error(), "rank 2 of 2") {
		t.Errorf("in a small group: %v", err)
	}
	for n := range b {
		if _, err := decodePipeOffer(b[:n], 3); err == nil {
			t.Errorf("cut short to %d bytes: no error", n)
		}
	}
}

func FuzzDecodePipeOffer(f *testing.F) {
	f.Add(pipeOfferWire.Marshal(samplePipeOffer()), uint8(2))
	f.Add(pipeOfferWire.Marshal(&pipeOffer{}), uint8(0))
	f.Add(pipeOfferWire.Marshal(&pipeOffer{size: pipe.Size{LotSlots: 1}}), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, ranks uint8) {
		o, err := decodePipeOffer(b, int(ranks)+1)
		if err != nil {
			return
		}
		for _, e := range o.ends {
			if e.peer > int(ranks) {
				t.Fatalf("an end to rank %d of %d", e.peer, int(ranks)+1)
			}
		}
		again, err := decodePipeOffer(pipeOfferWire.Marshal(o), int(ranks)+1)
		if diff := cmp.Diff(o, again, cmp.AllowUnexported(pipeOffer{}, offeredEnd{}, lotSize{})); err != nil || diff != "" {
			t.Fatalf("%v; decoded again (-want +got):\n%s", err, diff)
		}
	})
}

// TestOtherLots compares offers of ranks that share memory, of which one counts otherwise in lots.
func TestOtherLots(t *testing.T) {
	comm := &Communicator{boot: sizedBootstrap{size: 2}}
	k := &call{c: comm, op: "make pipes"}
	for _, c := range []struct {
		shared bool
		lots   lotSize
		want   string
	}{
		{true, lotSize{lotBytes, pipe.MaxLot}, ""},
		{true, lotSize{2 * lotBytes, pipe.MaxLot}, "rank 0, peer 1"},
		{true, lotSize{2 * lotBytes, pipe.MaxLot}, "lots of its memory for shared pipes have 1048576 bytes and lend 16 slots at most, this rank's 524288 and 16"},
		{true, lotSize{lotBytes, 32}, "lots of its memory for shared pipes have 524288 bytes and lend 32 slots at most"},
		{false, lotSize{}, ""},
	} {
		p := newPipes(comm, PipeOptions{To: []int{1}, Shared: c.shared})
		offer := &pipeOffer{size: p.size, shared: c.shared, lots: c.lots, perPeer: 1, ends: []offeredEnd{{peer: 0}}}
		err := p.compare(k, 1, offer, offer.size)
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.lots, err, c.want)
		}
	}
}
