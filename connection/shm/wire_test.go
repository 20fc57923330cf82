package shm

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

const testRoom = 1 << 20

var goodEntries = []entry{
	{kind: message.Data, memory: 1, offset: 2, length: 3, place: 64},
	{kind: message.Data, memory: 1<<32 - 1, offset: 1<<64 - 1, length: testRoom},
	{kind: message.Read, memory: 1, offset: 2, length: 3, place: 64},
	{kind: message.Update, memory: 1, offset: 8, from: 4, to: 1<<64 - 1},
	{kind: message.Add, memory: 1, offset: 8, to: 1<<64 - 1},
	{kind: message.Exchange, memory: 1, offset: 8, to: 3, length: 8, place: testRoom - 8},
}

func TestEntries(t *testing.T) {
	for _, e := range goodEntries {
		got, err := decodeEntry(e.encode(), testRoom)
		if diff := cmp.Diff(e, got, cmp.AllowUnexported(entry{})); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	for name, e := range map[string]entry{
		"kind 0":             {length: 1},
		"kind 6":             {kind: 6, length: 8},
		"addition of data":   {kind: message.Add, length: 8, to: 1},
		"addition from":      {kind: message.Add, from: 1, to: 1},
		"wide exchange":      {kind: message.Exchange, length: 16, to: 1},
		"narrow exchange":    {kind: message.Exchange, length: 4, to: 1},
		"odd exchange":       {kind: message.Exchange, length: 8, place: 4},
		"exchange from":      {kind: message.Exchange, length: 8, from: 1},
		"exchange past end":  {kind: message.Exchange, length: 8, place: testRoom},
		"empty read":         {kind: message.Read},
		"read past the end":  {kind: message.Read, length: 2, place: testRoom - 1},
		"read with a value":  {kind: message.Read, length: 1, from: 1, to: 1},
		"empty":              {kind: message.Data},
		"longer than a ring": {kind: message.Data, length: testRoom + 1},
		"past the end":       {kind: message.Data, length: 2, place: testRoom - 1},
		"far away":           {kind: message.Data, length: 2, place: 1<<64 - 1},
		"of all there is":    {kind: message.Data, length: 1<<64 - 1, place: 2},
		"data with a value":  {kind: message.Data, length: 1, to: 1},
		"update with data":   {kind: message.Update, length: 1, to: 1},
		"update at a place":  {kind: message.Update, place: 1, to: 1},
		"falling word":       {kind: message.Update, from: 2, to: 1},
	} {
		if _, err := decodeEntry(e.encode(), testRoom); err == nil {
			t.Errorf("an entry that is wrong was taken: %s", name)
		}
	}
	words := goodEntries[0].encode()
	words[7] = 1
	if _, err := decodeEntry(words, testRoom); err == nil {
		t.Error("an entry with a bit too much was taken")
	}
	if got := goodEntries[3].encode()[toWord]; got != goodEntries[3].to {
		t.Errorf("the value is in another word: %#x there", got)
	}
}

func FuzzEntry(f *testing.F) {
	for _, e := range goodEntries {
		w := e.encode()
		f.Add(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
	}
	f.Fuzz(func(t *testing.T, a, b, c, d, e, g, h, i uint64) {
		words := [entryWords]uint64{a, b, c, d, e, g, h, i}
		got, err := decodeEntry(words, testRoom)
		if err != nil {
			return
		}
		testcmp.Equal(t, "the entry again", got.encode(), words)
		if placed(got.kind) && (got.place > testRoom || got.length > testRoom-got.place || got.length == 0) {
			t.Errorf("%v at %d is outside the ring", &got, got.place)
		}
	})
}

var goodMessages = []note{
	{kind: messageWake},
	{kind: messageBye},
	{kind: messageFailed},
	{kind: messageGone, memory: 7},
	{kind: messageRefuse, reason: target.Closed, refused: message.Update, memory: 1, offset: 2, length: 3, number: 4},
}

func TestMessages(t *testing.T) {
	for _, m := range goodMessages {
		got, err := decodeMessage(m.encode())
		if diff := cmp.Diff(m, got, cmp.AllowUnexported(note{})); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	for name, b := range map[string][]byte{
		"empty":                      {},
		"short":                      make([]byte, messageSize-1),
		"long":                       append(goodMessages[0].encode(), 0),
		"of version 0":               make([]byte, messageSize),
		"of kind 0":                  (&note{}).encode(),
		"of kind 6":                  (&note{kind: 6}).encode(),
		"a wake with a memory":       (&note{kind: messageWake, memory: 1}).encode(),
		"a bye with a number":        (&note{kind: messageBye, number: 1}).encode(),
		"a failure with an offset":   (&note{kind: messageFailed, offset: 1}).encode(),
		"news of an offset":          (&note{kind: messageGone, offset: 1}).encode(),
		"a refusal without a reason": (&note{kind: messageRefuse}).encode(),
		"a refusal with reason 6":    (&note{kind: messageRefuse, reason: 6}).encode(),
	} {
		if _, err := decodeMessage(b); err == nil {
			t.Errorf("a packet was taken that is %s", name)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range goodMessages {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMessage(b); err == nil && !bytes.Equal(m.encode(), b) {
			t.Errorf("%x reads as %+v", b, m)
		}
	})
}

func FuzzRequest(f *testing.F) {
	q := request{from: 1, to: 2, endpoint: [idSize]byte{3}}
	f.Add(q.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeRequest(b); err == nil && !bytes.Equal(q.encode(), b) {
			t.Errorf("%x reads as %+v", b, q)
		}
	})
}

func FuzzEndpoint(f *testing.F) {
	d := description{group: [16]byte{1}, rank: 2, transport: [idSize]byte{3}, id: [idSize]byte{4}, host: "host", socket: "mscclgo-00112233445566778899aabbccddeeff"}
	f.Add(d.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := decode(b); err == nil && !bytes.Equal(d.encode(), b) {
			t.Errorf("%x reads as %+v", b, d)
		}
	})
}
