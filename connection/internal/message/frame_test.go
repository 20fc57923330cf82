package message

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestFrame(t *testing.T) {
	b := make([]byte, FrameSize)
	for _, f := range []Frame{
		{Kind: Data, Memory: 1, Op: 2, Offset: 3, Length: 4, Total: 5},
		{Kind: Update, Memory: 1, Op: 2, Offset: 8, Length: 4, Total: 5},
		{Kind: Ack, Op: 1 << 60},
		{Kind: Bye},
		{Kind: Gone, Memory: 7},
		{Kind: Broke},
		{Kind: Failed},
		{Kind: Wake},
		{Kind: Refuse, Reason: target.Protocol, Op: 3},
		{Kind: Read, Memory: 1, Op: 2, Offset: 3, Length: 5, Total: 5},
		{Kind: Answer, Op: 2, Offset: 3, Length: 4, Total: 7},
		{Kind: Add, Memory: 1, Op: 2, Offset: 8, Length: 8, Total: 1<<64 - 1},
		{Kind: Exchange, Memory: 1, Op: 2, Offset: 8, Length: 8},
		{Kind: Refuse, Reason: target.Range, Refused: Exchange, Memory: 1, Op: 2, Offset: 8, Length: 8, Total: 5},
		{Kind: Refuse, Reason: target.Closed, Refused: Read, Memory: 1, Op: 2, Length: 5, Total: 5},
		{Kind: Refuse, Reason: target.Closed, Refused: Data, Memory: 1, Op: 2, Offset: 3, Length: 4, Total: 5},
		{Kind: Refuse, Reason: target.Failed, Refused: Update, Memory: 1, Op: 2, Offset: 8, Length: 4, Total: 5},
	} {
		f.Encode(b)
		if got, err := Decode(b); err != nil || got != f {
			t.Errorf("%+v became %+v, %v", f, got, err)
		}
	}
	const golden = "040501010700000002000000000000000300000000000000040000000000000005000000" + "00000000"
	(&Frame{Kind: Refuse, Reason: target.Closed, Refused: Data, Memory: 7, Op: 2, Offset: 3, Length: 4, Total: 5}).Encode(b)
	if got := hex.EncodeToString(b); got != golden {
		t.Errorf("a refusal is %s, not %s", got, golden)
	}
	for says, change := range map[string]func(){
		"version 5":              func() { b[0]++ },
		"with reason 0":          func() { (&Frame{Kind: Refuse, Refused: Data, Length: 1, Total: 1}).Encode(b) },
		"with reason 6":          func() { (&Frame{Kind: Refuse, Refused: Data, Reason: 6, Length: 1, Total: 1}).Encode(b) },
		"a frame of kind 3 with": func() { (&Frame{Kind: Refuse, Refused: Ack, Reason: 1}).Encode(b) },
		"0 bytes":                func() { (&Frame{Kind: Refuse, Refused: Data, Reason: 1}).Encode(b) },
		"a withdrawal with":      func() { (&Frame{Kind: Gone, Total: 1}).Encode(b) },
		"a read of 3 bytes":      func() { (&Frame{Kind: Read, Length: 3, Total: 4}).Encode(b) },
		"a read of 0 bytes":      func() { (&Frame{Kind: Read}).Encode(b) },
		"5 bytes at 3 of 7":      func() { (&Frame{Kind: Answer, Offset: 3, Length: 5, Total: 7}).Encode(b) },
		"a word of 4 bytes":      func() { (&Frame{Kind: Add, Length: 4}).Encode(b) },
		"a word of 9 bytes":      func() { (&Frame{Kind: Exchange, Length: 9}).Encode(b) },
		"from memory 1":          func() { (&Frame{Kind: Answer, Memory: 1, Length: 1, Total: 1}).Encode(b) },
		"unknown kind 14":        func() { b[1] = 14 },
		"news with fields":       func() { (&Frame{Kind: Broke, Memory: 1}).Encode(b) },
		"bits":                   func() { b[3] = 1 },
		"fields":                 func() { b[39] = 1 },
		"40":                     func() { b = b[:39] },
	} {
		(&Frame{Kind: Ack}).Encode(b[:FrameSize])
		b = b[:FrameSize]
		change()
		if _, err := Decode(b); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, not one that says %q", err, says)
		}
	}
}

func FuzzFrame(f *testing.F) {
	b := make([]byte, FrameSize)
	for _, one := range []Frame{{Kind: Data, Length: 4, Total: 5}, {Kind: Update, Total: 1}, {Kind: Ack, Op: 3}, {Kind: Bye}, {Kind: Gone, Memory: 1}, {Kind: Broke}, {Kind: Failed}, {Kind: Read, Length: 4, Total: 4}, {Kind: Answer, Offset: 1, Length: 4, Total: 5},
		{Kind: Refuse, Reason: target.Range, Refused: Data, Length: 4, Total: 5}, {Kind: Refuse, Reason: target.Closed, Refused: Update, Total: 1},
	} {
		one.Encode(b)
		f.Add(bytes.Clone(b))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Decode(data)
		if err != nil {
			return
		}
		again := make([]byte, FrameSize)
		got.Encode(again)
		testcmp.Equal(t, "the frame encoded again", again, data)
	})
}
