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

// Check ends the test if err is not nil.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must ends the test if a call has failed, and returns its result:
//
//	f := testerr.Must(os.Open(name))(t)
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Check(t, err)
		return v
	}
}

// Report fails the test, which goes on, if err is not nil.
func Report(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
