package communicator

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func sampleOffer() *offer {
	return &offer{
		perPeer: 2,
		slabs:   []description{{[]byte("one slab")}, {[]byte("another")}},
		places:  []place{{0, 0}, {0, 128}, {1, 256}, {0, 384}, {1, 0}, {0, 64}},
	}
}

func TestOffer(t *testing.T) {
	good := sampleOffer()
	b := offerWire.Marshal(good)
	got := testerr.Must(decodeOffer(b, 3))(t)
	if diff := cmp.Diff(good, got, cmp.AllowUnexported(offer{}, place{}, description{})); diff != "" {
		t.Errorf("decoded offer (-want +got):\n%s", diff)
	}
	for n := range b {
		if _, err := decodeOffer(b[:n], 3); err == nil {
			t.Errorf("cut short to %d bytes: no error", n)
		}
	}
}

func TestMalformedOffer(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*offer)
		ranks int
		want  string
	}{
		"no channels":       {func(o *offer) { o.perPeer = 0 }, 3, "0 channels"},
		"too many channels": {func(o *offer) { o.perPeer = maxPerPeer + 1 }, 3, "4097 channels"},
		"a small group":     {func(o *offer) {}, 2, "6 places for the semaphores of 4 channels"},
		"a large group":     {func(o *offer) {}, 4, "6 places for the semaphores of 8 channels"},
		"too many slabs":    {func(o *offer) { o.slabs = make([]description, 7) }, 3, "7 slabs"},
		"no such slab":      {func(o *offer) { o.places[3].slab = 2 }, 3, "slab 2 of 2"},
		"off its alignment": {func(o *offer) { o.places[3].offset = 8 }, 3, "offset 8"},
	} {
		o := sampleOffer()
		c.spoil(o)
		if _, err := decodeOffer(offerWire.Marshal(o), c.ranks); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

func FuzzDecodeOffer(f *testing.F) {
	f.Add(offerWire.Marshal(sampleOffer()), uint8(3))
	f.Add(offerWire.Marshal(&offer{perPeer: 1, places: []place{}}), uint8(1))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, uint8(72))
	f.Fuzz(func(t *testing.T, b []byte, ranks uint8) {
		o, err := decodeOffer(b, int(ranks)+1)
		if err != nil {
			return
		}
		if len(o.places) != o.perPeer*(int(ranks)+1) {
			t.Fatalf("%d places for %d channels to each of %d ranks", len(o.places), o.perPeer, int(ranks)+1)
		}
		for _, p := range o.places {
			if int(p.slab) >= len(o.slabs) {
				t.Fatalf("a place in slab %d of %d", p.slab, len(o.slabs))
			}
		}
		if diff := cmp.Diff(b, offerWire.Marshal(o)); diff != "" {
			t.Fatalf("decoded and encoded again (-want +got):\n%s", diff)
		}
	})
}
