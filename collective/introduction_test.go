package collective

import (
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// FuzzMessages decodes what ranks tell each other of runners, links and memories: what can be decoded is
// encoded to the same again.
func FuzzMessages(f *testing.F) {
	c := introduction{
		details: "4096 bytes of scratch", proposal: proposal{true, 2}, memories: 3, preparedV: 4,
		calls: []callKey{{kind: AllReduce, typ: F16, op: Max, count: 1 << 40}, {kind: Broadcast, count: 1, root: 7}},
	}
	c.links = linkMessage{NVLink, true, true, fabricOf(f, "switches", 0, 2)}
	f.Add(introductions.Marshal(&c))
	f.Add(sharedAts.Marshal(&sharedAt{proposal{false, 1}, make([]gpu.Ptr, 3)}))
	f.Add(make([]byte, 3*8))
	f.Fuzz(func(t *testing.T, b []byte) {
		again(t, introductions, b)
		again(t, sharedAts, b)
		again(t, preparations, b)
		again(t, proposals, b)
	})
}

// again encodes what can be decoded, and compares.
func again[T any](t *testing.T, codec *wire.Codec[T], b []byte) {
	v, err := codec.Unmarshal(b)
	if err != nil {
		return
	}
	encoded := codec.Marshal(&v)
	v = testerr.Must(codec.Unmarshal(encoded))(t)
	testcmp.Equal(t, "a message", codec.Marshal(&v), encoded)
}
