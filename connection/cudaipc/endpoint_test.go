package cudaipc

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/wire"
)

func newEndpoint(t testing.TB, rank int) (*endpoint, []byte) {
	t.Helper()
	e := testerr.Must(NewEndpoint(newRegistry(t, config(testdev.Open(t, rank), rank))))(t)
	data := testerr.Must(e.MarshalBinary())(t)
	return e.(*endpoint), data
}

func TestConnect(t *testing.T) {
	mine, own := newEndpoint(t, 0)
	_, theirs := newEndpoint(t, 1)
	for _, data := range [][]byte{theirs, own, theirs} {
		c := testerr.Must(mine.Connect(t.Context(), data))(t)
		for range 2 {
			testerr.Report(t, c.Close())
		}
	}
	_, err := NewEndpoint(nil)
	testerr.Expect(t, err, mscclgo.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = mine.Connect(ctx, theirs)
	testerr.Expect(t, err, mscclgo.ErrAborted, "rank 0")
	testerr.Report(t, errors.Join(mine.Close(), mine.Close()))
	_, err = mine.Connect(t.Context(), theirs)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1", "closed")
}

func TestAlteredBytes(t *testing.T) {
	e, data := newEndpoint(t, 0)
	for i := range data {
		_, err := e.Connect(t.Context(), data[:i])
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0")
		altered := bytes.Clone(data)
		altered[i] ^= 0x20
		_, err = e.Connect(t.Context(), altered)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0")
	}
	body, err := wire.Open(formatKind, formatVersion, data)
	testerr.Check(t, err)
	_, err = e.Connect(t.Context(), wire.Seal(formatKind, formatVersion+1, body))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "version 2")
}

func TestWrongPeers(t *testing.T) {
	e, _ := newEndpoint(t, 0)
	peer := e.about
	peer.rank = 7
	for name, c := range map[string]struct {
		change func(*description)
		kind   mscclgo.Kind
		says   string
	}{
		"rank":   {func(d *description) { d.rank = 1 << 31 }, mscclgo.ErrInvalid, "rank 0"},
		"host":   {func(d *description) { d.host = "" }, mscclgo.ErrInvalid, "rank 0"},
		"group":  {func(d *description) { d.group[0]++ }, mscclgo.ErrInvalid, "rank 0, peer 7"},
		"other":  {func(d *description) { d.host = "elsewhere" }, mscclgo.ErrUnsupported, "elsewhere"},
		"device": {func(d *description) { d.device = [16]byte{0xab} }, mscclgo.ErrUnsupported, "rank 0, peer 7"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := peer
			c.change(&wrong)
			_, err := e.Connect(t.Context(), wrong.encode())
			testerr.Expect(t, err, c.kind, c.says)
		})
	}
}

func FuzzEndpoint(f *testing.F) {
	some := description{group: [16]byte{1}, rank: 2, host: "host", device: [16]byte{3}}
	f.Add(some.encode())
	f.Add([]byte("MGCI\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		// A fuzzer does not find checksums, so it also gets to write bodies.
		for _, data := range [][]byte{data, wire.Seal(formatKind, formatVersion, data)} {
			d, err := decode(data)
			if err == nil {
				testcmp.Equal(t, "the bytes encoded again", d.encode(), data)
			}
		}
	})
}
