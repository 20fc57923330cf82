// Package testerr checks errors in tests.
package testerr

import (
	"errors"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
)

// Expect checks an error's kind, and that its text has each of parts.
func Expect(t testing.TB, err error, kind mscclgo.Kind, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, not of kind %q", err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}
