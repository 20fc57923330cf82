package testdriver

import (
	"errors"
	"testing"
	"time"
)

// ClosedTogether closes a transport twice at a time, while something holds it up until release is
// called: both calls wait, and return the error want, as a third does.
func ClosedTogether(t *testing.T, transport interface{ Close() error }, release func(), want error) {
	t.Helper()
	closed := make(chan error, 2)
	for range cap(closed) {
		go func() { closed <- transport.Close() }()
	}
	select {
	case err := <-closed:
		t.Errorf("a call of Close returned before the transport was closed: %v", err)
		closed <- err
	case <-time.After(50 * time.Millisecond):
	}
	release()
	for range cap(closed) {
		select {
		case err := <-closed:
			if !errors.Is(err, want) {
				t.Errorf("Close: %v; want %v", err, want)
			}
		case <-time.After(time.Minute):
			t.Fatal("Close does not return")
		}
	}
	if err := transport.Close(); !errors.Is(err, want) {
		t.Errorf("Close again: %v; want %v", err, want)
	}
}
