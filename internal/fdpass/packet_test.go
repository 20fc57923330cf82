package fdpass

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPackets(t *testing.T) {
	want := content{files: 1, value: 7, body: []byte("body")}
	got, err := decodeAnswer(want.encode())
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(content{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	request := encodeRequest([]byte("body"))
	if body, err := decodeRequest(request); err != nil || string(body) != "body" {
		t.Errorf("%q, %v", body, err)
	}
	long := strings.Repeat("x", MaxBody+1)
	for name, packet := range map[string][]byte{
		"empty": {}, "cut short": request[:len(request)-1], "with more": append(request, 0), "long": encodeRequest([]byte(long)),
	} {
		if _, err := decodeRequest(packet); err == nil {
			t.Errorf("a request that is %s was taken", name)
		}
	}
	for name, packet := range map[string][]byte{
		"empty": {}, "cut short": want.encode()[:8], "of two files": content{files: 2}.encode(), "long": content{body: []byte(long)}.encode(),
	} {
		if _, err := decodeAnswer(packet); err == nil {
			t.Errorf("an answer that is %s was taken", name)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(encodeRequest([]byte("body")))
	f.Add(encodeRequest(nil))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if body, err := decodeRequest(packet); err == nil {
			if diff := cmp.Diff(packet, encodeRequest(body)); diff != "" {
				t.Errorf("it reads as another request (-want +got):\n%s", diff)
			}
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(content{files: 1, value: 7, body: []byte("body")}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packet []byte) {
		if c, err := decodeAnswer(packet); err == nil {
			if diff := cmp.Diff(packet, c.encode()); diff != "" {
				t.Errorf("it reads as another answer (-want +got):\n%s", diff)
			}
		}
	})
}
