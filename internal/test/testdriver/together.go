package testdriver

import (
	"errors"
	"testing"
	"time"
)

// ClosedTogether closes something twice at a time, while it is held up until release is called: both
// calls wait, and return the error want, as a third does.
func ClosedTogether(t *testing.T, what interface{ Close() error }, release func(), want error) {
	t.Helper()
	closed := make(chan error, 2)
	for range cap(closed) {
		go func() { closed <- what.Close() }()
	}
	select {
	case err := <-closed:
		t.Errorf("a call of Close returned before that was done: %v", err)
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
	if err := what.Close(); !errors.Is(err, want) {
		t.Errorf("Close again: %v; want %v", err, want)
	}
}
