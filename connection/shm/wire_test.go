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
	{Frame: message.Frame{Kind: message.Data, Memory: 1, Offset: 2, Length: 3, Total: 3}, place: 64},
	{Frame: message.Frame{Kind: message.Data, Memory: 1<<32 - 1, Offset: 1<<64 - 1, Length: testRoom, Total: testRoom}},
	{Frame: message.Frame{Kind: message.Read, Memory: 1, Offset: 2, Length: 3, Total: 3}, place: 64},
	{Frame: message.Frame{Kind: message.Update, Memory: 1, Offset: 8, Length: 4, Total: 1<<64 - 1}},
	{Frame: message.Frame{Kind: message.Add, Memory: 1, Offset: 8, Total: 1<<64 - 1, Length: 8}},
	{Frame: message.Frame{Kind: message.Exchange, Memory: 1, Offset: 8, Total: 3, Length: 8}, place: testRoom - 8},
}

func TestEntries(t *testing.T) {
	for _, e := range goodEntries {
		got, err := decodeEntry(e.encode(), testRoom)
		if diff := cmp.Diff(e, got, cmp.AllowUnexported(entry{})); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	for name, e := range map[string]entry{
		"kind 0":              {Frame: message.Frame{Length: 1}},
		"a refusal":           {Frame: message.Frame{Kind: message.Refuse, Reason: target.Protocol}},
		"an answer":           {Frame: message.Frame{Kind: message.Answer, Length: 8, Total: 8}},
		"addition at a place": {Frame: message.Frame{Kind: message.Add, Length: 8, Total: 1}, place: 8},
		"wide exchange":       {Frame: message.Frame{Kind: message.Exchange, Length: 16, Total: 1}},
		"odd exchange":        {Frame: message.Frame{Kind: message.Exchange, Length: 8}, place: 4},
		"exchange past end":   {Frame: message.Frame{Kind: message.Exchange, Length: 8}, place: testRoom},
		"empty read":          {Frame: message.Frame{Kind: message.Read}},
		"read past the end":   {Frame: message.Frame{Kind: message.Read, Length: 2, Total: 2}, place: testRoom - 1},
		"empty":               {Frame: message.Frame{Kind: message.Data}},
		"longer than a ring":  {Frame: message.Frame{Kind: message.Data, Length: testRoom + 1, Total: testRoom + 1}},
		"past the end":        {Frame: message.Frame{Kind: message.Data, Length: 2, Total: 2}, place: testRoom - 1},
		"far away":            {Frame: message.Frame{Kind: message.Data, Length: 2, Total: 2}, place: 1<<64 - 1},
		"of all there is":     {Frame: message.Frame{Kind: message.Data, Length: 1<<64 - 1, Total: 1<<64 - 1}, place: 2},
		"update at a place":   {Frame: message.Frame{Kind: message.Update, Total: 1}, place: 1},
		"falling word":        {Frame: message.Frame{Kind: message.Update, Length: 2, Total: 1}},
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
	if got := goodEntries[3].encode()[message.TotalWord]; got != goodEntries[3].Total {
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
		if placed(got.Kind) && (got.place > testRoom || got.Length > testRoom-got.place || got.Length == 0) {
			t.Errorf("%v at %d is outside the ring", &got, got.place)
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
