package bootstrap

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo/internal/wire"
)

func TestFrames(t *testing.T) {
	var stream bytes.Buffer
	want := []frame{
		{kind: frameOpen},
		{kind: frameData, tag: 1<<63 + 5, payload: []byte("data")},
		{kind: frameData, payload: bytes.Repeat([]byte{7}, 3<<20+1)},
		{kind: frameLeft, tag: 12},
	}
	for _, f := range want {
		stream.Write(f.encode())
	}
	var got []frame
	f, err := readFrame(&stream)
	for ; err == nil; f, err = readFrame(&stream) {
		got = append(got, f)
	}
	if err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(frame{}), quickly); diff != "" {
		t.Errorf("the frames changed on the way (-want +got):\n%s", diff)
	}
}

func TestMalformedFrames(t *testing.T) {
	head := func(kind byte, zeros byte, size uint32) []byte {
		var w wire.Writer
		w.Raw([]byte{kind, zeros, 0, 0})
		w.U32(size)
		w.U64(0)
		return w.Bytes()
	}
	for want, b := range map[string][]byte{
		"kind 0":                  head(0, 0, 0),
		"kind 10":                 head(10, 0, 0),
		"reserved":                head(byte(frameData), 1, 0),
		"67108865 bytes, at most": head(byte(frameData), 0, MaxMessage+1),
		"1 bytes, at most 0":      head(byte(frameGoodbye), 0, 1),
		"0 of 67108864 bytes":     head(byte(frameData), 0, MaxMessage),
		"3 of 4 bytes":            append(head(byte(frameData), 0, 4), 1, 2, 3),
		"unexpected EOF":          head(byte(frameData), 0, 0)[:7],
		"its end is missing":      append(head(byte(frameData), 0, 1), 1),
		"ends with 2":             append(head(byte(frameData), 0, 1), 1, 2),
	} {
		if _, err := readFrame(bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// A member that sends what no member does fails the group rather than this
// process.
func TestMalformedFrameFailsTheGroup(t *testing.T) {
	for name, b := range map[string][]byte{
		"noise":       bytes.Repeat([]byte{0xee}, 64),
		"join":        frame{kind: frameJoin}.encode(),
		"second open": frame{kind: frameOpen}.encode(),
		"rank":        frame{kind: frameLeft, tag: 1 << 40}.encode(),
		"failure":     frame{kind: frameFailed, tag: 0, payload: []byte{1}}.encode(),
		"collective":  frame{kind: frameCollective, tag: 0, payload: []byte{1}}.encode(),
	} {
		t.Run(name, func(t *testing.T) {
			bs := group(t, 2)
			bs[0].mu.Lock()
			bs[0].peers[1].out.nc.Write(b)
			bs[0].mu.Unlock()
			if name == "collective" {
				go bs[1].Barrier(testContext(t))
			}
			awaitDone(t, bs[1])
			if !strings.Contains(bs[1].Err().Error(), "frame") && !strings.Contains(bs[1].Err().Error(), "malformed") &&
				!strings.Contains(bs[1].Err().Error(), "news of rank") {
				t.Errorf("%v", bs[1].Err())
			}
		})
	}
}

// same checks that what was decoded from want encodes to it again.
func same(t *testing.T, want, got []byte) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("it reads as something else (-want +got):\n%s", diff)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(frame{kind: frameData, tag: 3, payload: []byte("data")}.encode())
	f.Add(frame{kind: frameGoodbye}.encode())
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if fr, whole, err := readOne(bytes.NewReader(b)); err == nil && whole {
			again := fr.encode()
			same(t, b[:min(len(b), len(again))], again)
		}
	})
}

func FuzzJoin(f *testing.F) {
	f.Add(joinMessage{size: 4, left: time.Second, process: [16]byte{1}, addr: "[::1]:80"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeJoin(b); err == nil {
			again, err := decodeJoin(m.encode())
			if diff := cmp.Diff(m, again, cmp.AllowUnexported(joinMessage{})); diff != "" || err != nil {
				t.Fatalf("it reads as another join: %v (-want +got):\n%s", err, diff)
			}
		}
	})
}

func FuzzTable(f *testing.F) {
	f.Add(encodeTable([]string{"10.0.0.1:1", "[::1]:2"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if addrs, err := decodeTable(b, 2); err == nil {
			same(t, b, encodeTable(addrs))
		}
	})
}

func FuzzBlocks(f *testing.F) {
	f.Add(treeCodec.Marshal(&treeMessage{kind: allGather, blocks: []block{{0, []byte("a")}, {1, nil}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := treeCodec.Unmarshal(b)
		if err != nil {
			return
		}
		same(t, b, treeCodec.Marshal(&m))
		all, err := inOrder(m.blocks, 2)
		if err != nil {
			return
		}
		if total := treeOverhead + len(all[0]) + len(all[1]) + 8; total != len(b) {
			t.Fatalf("blocks of %d bytes from %d", total, len(b))
		}
	})
}
