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
