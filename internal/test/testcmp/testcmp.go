// Package testcmp compares values in tests and shows how they differ.
package testcmp

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test, which goes on, unless got equals want. what names the value.
func Equal[T any](t testing.TB, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	if g, ok := any(got).([]byte); ok && bytes.Equal(g, any(want).([]byte)) {
		return // cmp takes a second for some megabytes
	}
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
