package ethernet

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestFrame(t *testing.T) {
	b := make([]byte, frameSize)
	for _, f := range []frame{
		{kind: kindData, memory: 1, op: 2, offset: 3, length: 4, total: 5},
		{kind: kindUpdate, memory: 1, op: 2, offset: 8, length: 4, total: 5},
		{kind: kindAck, op: 1 << 60},
		{kind: kindBye},
	} {
		f.encode(b)
		if got, err := decodeFrame(b); err != nil || got != f {
			t.Errorf("%+v became %+v, %v", f, got, err)
		}
	}
	for says, change := range map[string]func(){
		"version 2": func() { b[0]++ },
		"bits":      func() { b[3] = 1 },
		"fields":    func() { b[39] = 1 },
		"40":        func() { b = b[:39] },
	} {
		(&frame{kind: kindAck}).encode(b[:frameSize])
		b = b[:frameSize]
		change()
		if _, err := decodeFrame(b); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, not one that says %q", err, says)
		}
	}
}

func FuzzFrame(f *testing.F) {
	b := make([]byte, frameSize)
	for _, one := range []frame{{kind: kindData, length: 4, total: 5}, {kind: kindUpdate, total: 1}, {kind: kindAck, op: 3}, {kind: kindBye}} {
		one.encode(b)
		f.Add(bytes.Clone(b))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decodeFrame(data)
		if err != nil {
			return
		}
		again := make([]byte, frameSize)
		got.encode(again)
		testcmp.Equal(t, "the frame encoded again", again, data)
	})
}
