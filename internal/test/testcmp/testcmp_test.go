package testcmp_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// recorder takes the errors of a test.
type recorder struct {
	testing.TB
	text string
}

func (r *recorder) Helper()                        {}
func (r *recorder) Errorf(format string, a ...any) { r.text += fmt.Sprintf(format, a...) }

func TestEqual(t *testing.T) {
	var r recorder
	testcmp.Equal(&r, "numbers", []int{1, 2}, []int{1, 2})
	testcmp.Equal(&r, "bytes", []byte{1}, []byte{1})
	testcmp.Equal(&r, "nil bytes", nil, []byte{})
	if r.text != "" {
		t.Errorf("equal values differ: %s", r.text)
	}
	testcmp.Equal(&r, "numbers", []int{1, 2}, []int{1, 3})
	testcmp.Equal(&r, "bytes", []byte{1}, []byte{2})
	for _, part := range []string{"numbers (-want +got)", "bytes (-want +got)", "-", "3", "+", "2"} {
		if !strings.Contains(r.text, part) {
			t.Errorf("%q does not say %q", r.text, part)
		}
	}
}

// TestLong compares bytes of which cmp would take minutes.
func TestLong(t *testing.T) {
	const n = 64 << 20
	long, other := make([]byte, n), make([]byte, n)
	for i := 5000; i < n; i += 2 {
		other[i] = byte(i%251 + 1)
	}
	for name, c := range map[string]struct {
		got, want []byte
		says      string
	}{
		"in the middle":     {long, other, "67108864 bytes became 67108864, and differ from byte 5000 on"},
		"at the end":        {long[:n-1], long, "67108864 bytes became 67108863, and differ from byte 67108863 on"},
		"nothing is wanted": {long, nil, "0 bytes became 67108864, and differ from byte 0 on"},
		"nothing is there":  {nil, long, "67108864 bytes became 0, and differ from byte 0 on"},
	} {
		var r recorder
		testcmp.Equal(&r, "bytes", c.got, c.want)
		if !strings.Contains(r.text, c.says) || !strings.Contains(r.text, "0x00") {
			t.Errorf("%s: %q does not say %q and what differs", name, r.text, c.says)
		}
	}
}
