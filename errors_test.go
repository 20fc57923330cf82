package mscclgo_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

func ExampleError() {
	err := error(mscclgo.Errorf(mscclgo.ErrInvalid, "put", "offset %d is past the end", 4096).At(0, 3))
	fmt.Println(err)
	fmt.Println(errors.Is(err, mscclgo.ErrInvalid), errors.Is(err, mscclgo.ErrTimeout))
	// Output:
	// put (rank 0, peer 3): invalid use: offset 4096 is past the end
	// true false
}

func TestErrorfKeepsItsCause(t *testing.T) {
	err := mscclgo.Errorf(mscclgo.ErrSystem, "read", "socket: %w", io.ErrUnexpectedEOF)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, mscclgo.ErrSystem) {
		t.Fatalf("chain of %v lost its kind or cause", err)
	}
	outer := fmt.Errorf("outer: %w", err)
	var e *mscclgo.Error
	if !errors.As(outer, &e) || e.Op != "read" {
		t.Fatalf("As did not find the Error in %v", outer)
	}
}

func TestKindOf(t *testing.T) {
	inner := mscclgo.Errorf(mscclgo.ErrRemote, "inner", "it left")
	for err, want := range map[error]mscclgo.Kind{
		inner:                          mscclgo.ErrRemote,
		fmt.Errorf("plain: %w", inner): mscclgo.ErrRemote,
		mscclgo.Errorf(mscclgo.ErrTimeout, "outer", "%w", inner): mscclgo.ErrTimeout,
		errors.New("plain"): mscclgo.ErrSystem,
	} {
		if got := mscclgo.KindOf(err); got != want {
			t.Errorf("%v is of kind %v, want %v", err, got, want)
		}
	}
}

func TestFromContext(t *testing.T) {
	timed, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	<-timed.Done()
	if err := mscclgo.FromContext(timed, "wait", ""); !errors.Is(err, mscclgo.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	cause := errors.New("rank 2 died")
	cancelled, stop := context.WithCancelCause(context.Background())
	stop(cause)
	if err := mscclgo.FromContext(cancelled, "wait", ""); !errors.Is(err, mscclgo.ErrAborted) || !errors.Is(err, cause) {
		t.Errorf("cancel: %v", err)
	}
}
