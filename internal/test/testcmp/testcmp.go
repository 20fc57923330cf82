// Package testcmp compares values in tests and shows how they differ.
package testcmp

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test, which goes on, unless got equals want. what names the value.
func Equal[T any](t testing.TB, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	if diff := Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Diff is cmp.Diff, in little time also for megabytes: that looks at each element of slices that are
// equal too.
func Diff[T any](want, got T, options ...cmp.Option) string {
	if g, ok := any(got).([]byte); ok {
		return diffBytes(any(want).([]byte), g)
	}
	if len(options) == 0 && reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, options...)
}

// diffBytes is cmp.Diff for bytes. That takes a second for megabytes that are equal, and
// minutes where they differ, so it gets those around the first difference.
func diffBytes(want, got []byte) string {
	if bytes.Equal(want, got) {
		return ""
	}
	const shown = 2048 // on either side
	at := 0
	for at < min(len(want), len(got)) && want[at] == got[at] {
		at++
	}
	from := max(at-shown, 0)
	part := func(b []byte) []byte { return b[from:min(at+shown, len(b))] }
	return fmt.Sprintf("%d bytes became %d, and differ from byte %d on:\n%s", len(want), len(got), at, cmp.Diff(part(want), part(got)))
}
