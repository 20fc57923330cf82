package ethernet

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestFrame(t *testing.T) {
	b := make([]byte, frameSize)
	for _, f := range []frame{
		{kind: kindData, memory: 1, op: 2, offset: 3, length: 4, total: 5},
		{kind: kindUpdate, memory: 1, op: 2, offset: 8, length: 4, total: 5},
		{kind: kindAck, op: 1 << 60},
		{kind: kindBye},
		{kind: kindGone, memory: 7},
		{kind: kindBroke},
		{kind: kindFailed},
		{kind: kindGet, memory: 1, op: 2, offset: 3, length: 5, total: 5},
		{kind: kindAnswer, op: 2, offset: 3, length: 4, total: 7},
		{kind: kindAdd, memory: 1, op: 2, offset: 8, length: 8, total: 1<<64 - 1},
		{kind: kindExchange, memory: 1, op: 2, offset: 8, length: 8},
		{kind: kindRefuse, reason: target.Range, refused: kindExchange, memory: 1, op: 2, offset: 8, length: 8, total: 5},
		{kind: kindRefuse, reason: target.Closed, refused: kindGet, memory: 1, op: 2, length: 5, total: 5},
		{kind: kindRefuse, reason: target.Closed, refused: kindData, memory: 1, op: 2, offset: 3, length: 4, total: 5},
		{kind: kindRefuse, reason: target.Failed, refused: kindUpdate, memory: 1, op: 2, offset: 8, length: 4, total: 5},
	} {
		f.encode(b)
		if got, err := decodeFrame(b); err != nil || got != f {
			t.Errorf("%+v became %+v, %v", f, got, err)
		}
	}
	const golden = "040501010700000002000000000000000300000000000000040000000000000005000000" + "00000000"
	(&frame{kind: kindRefuse, reason: target.Closed, refused: kindData, memory: 7, op: 2, offset: 3, length: 4, total: 5}).encode(b)
	if got := hex.EncodeToString(b); got != golden {
		t.Errorf("a refusal is %s, not %s", got, golden)
	}
	for says, change := range map[string]func(){
		"version 5":              func() { b[0]++ },
		"with reason 0":          func() { (&frame{kind: kindRefuse, refused: kindData, length: 1, total: 1}).encode(b) },
		"with reason 6":          func() { (&frame{kind: kindRefuse, refused: kindData, reason: 6, length: 1, total: 1}).encode(b) },
		"a frame of kind 3 with": func() { (&frame{kind: kindRefuse, refused: kindAck, reason: 1}).encode(b) },
		"0 bytes":                func() { (&frame{kind: kindRefuse, refused: kindData, reason: 1}).encode(b) },
		"a withdrawal with":      func() { (&frame{kind: kindGone, total: 1}).encode(b) },
		"a read of 3 bytes":      func() { (&frame{kind: kindGet, length: 3, total: 4}).encode(b) },
		"a read of 0 bytes":      func() { (&frame{kind: kindGet}).encode(b) },
		"5 bytes at 3 of 7":      func() { (&frame{kind: kindAnswer, offset: 3, length: 5, total: 7}).encode(b) },
		"a word of 4 bytes":      func() { (&frame{kind: kindAdd, length: 4}).encode(b) },
		"a word of 9 bytes":      func() { (&frame{kind: kindExchange, length: 9}).encode(b) },
		"from memory 1":          func() { (&frame{kind: kindAnswer, memory: 1, length: 1, total: 1}).encode(b) },
		"unknown kind 13":        func() { b[1] = 13 },
		"news of the end":        func() { (&frame{kind: kindBroke, memory: 1}).encode(b) },
		"bits":                   func() { b[3] = 1 },
		"fields":                 func() { b[39] = 1 },
		"40":                     func() { b = b[:39] },
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
	for _, one := range []frame{{kind: kindData, length: 4, total: 5}, {kind: kindUpdate, total: 1}, {kind: kindAck, op: 3}, {kind: kindBye}, {kind: kindGone, memory: 1}, {kind: kindBroke}, {kind: kindFailed}, {kind: kindGet, length: 4, total: 4}, {kind: kindAnswer, offset: 1, length: 4, total: 5},
		{kind: kindRefuse, reason: target.Range, refused: kindData, length: 4, total: 5}, {kind: kindRefuse, reason: target.Closed, refused: kindUpdate, total: 1},
	} {
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
