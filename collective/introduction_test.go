package collective

import (
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// FuzzMessages decodes what ranks tell each other of runners, links and memories: what can be decoded is
// encoded to the same again.
func FuzzMessages(f *testing.F) {
	c := introduction{
		details: "4096 bytes of scratch", carried: true, number: 2, memories: 3, preparedV: 4,
		calls: []callKey{{kind: AllReduce, typ: F16, op: Max, count: 1 << 40}, {kind: Broadcast, count: 1, root: 7}},
	}
	f.Add([]byte(c.encode()))
	links := fabricOf(f, "switches", 0, 2)
	w := wire.NewWriter(fabricBytes)
	encodeFabric(w, &links)
	f.Add(w.Bytes())
	f.Add(make([]byte, 3*8))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeIntroduction(string(b)); err == nil {
			again, err := decodeIntroduction(c.encode())
			if err != nil {
				t.Fatal(err)
			}
			testcmp.Equal(t, "an introduction", again.encode(), c.encode())
		}
		r := wire.NewReader(b)
		if f := decodeFabric(r); r.End() == nil {
			w := wire.NewWriter(fabricBytes)
			encodeFabric(w, f)
			r := wire.NewReader(w.Bytes())
			decodeFabric(r)
			if err := r.End(); err != nil {
				t.Fatal(err)
			}
		}
		for rank := range 3 {
			if _, at, err := readAddresses(string(b), rank, 3); err == nil && len(b) != 32 {
				t.Fatalf("%#x of %d bytes", at, len(b))
			}
		}
	})
}
