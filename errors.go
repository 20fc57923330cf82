package mscclgo

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Kind says what sort of failure an error is. Kinds are errors themselves, so
// that errors.Is(err, mscclgo.ErrTimeout) tests for one.
type Kind uint8

// The kinds of failure.
const (
	// ErrInvalid: the caller asked for something that cannot be right, such as
	// a range outside a memory or an argument of the wrong size.
	ErrInvalid Kind = iota + 1
	// ErrTimeout: a deadline passed first.
	ErrTimeout
	// ErrAborted: the group failed or was closed while the call was under way.
	ErrAborted
	// ErrRemote: a peer failed, left, or answered with something wrong.
	ErrRemote
	// ErrUnsupported: this machine, device or build cannot do it.
	ErrUnsupported
	// ErrSystem: the operating system, the driver or a compiler refused.
	ErrSystem
)

// Error names the kind.
func (k Kind) Error() string {
	switch k {
	case ErrInvalid:
		return "invalid use"
	case ErrTimeout:
		return "timeout"
	case ErrAborted:
		return "aborted"
	case ErrRemote:
		return "remote failure"
	case ErrUnsupported:
		return "unsupported"
	case ErrSystem:
		return "system error"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// NoRank stands in Error.Rank and Error.Peer where no rank is involved.
const NoRank = -1

// Error is the error value of every package of the library.
type Error struct {
	Kind Kind   // what errors.Is tests
	Op   string // what was tried, such as "gpu: allocate 4096 bytes on emu:0"
	Rank int    // the rank that tried, or NoRank
	Peer int    // the rank at the other end, or NoRank
	Text string // what went wrong, and what to do about it
	Err  error  // the cause, or nil
}

// Error gives the text: what was tried, by which rank, with which peer, what
// went wrong and why.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	switch {
	case e.Rank != NoRank && e.Peer != NoRank:
		fmt.Fprintf(&b, " (rank %d, peer %d)", e.Rank, e.Peer)
	case e.Rank != NoRank:
		fmt.Fprintf(&b, " (rank %d)", e.Rank)
	case e.Peer != NoRank:
		fmt.Fprintf(&b, " (peer %d)", e.Peer)
	}
	b.WriteString(": ")
	b.WriteString(e.Kind.Error())
	if e.Text != "" {
		b.WriteString(": ")
		b.WriteString(e.Text)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Errorf makes an Error without ranks. The format's text follows the kind; a
// trailing %w names the cause, which errors.Is and errors.As then find.
func Errorf(kind Kind, op, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Op: op, Rank: NoRank, Peer: NoRank, Err: text{wrapped}}
}

// text is a formatted message whose chain stays reachable.
type text struct{ error }

func (t text) Unwrap() error { return errors.Unwrap(t.error) }

// At returns e with its ranks set.
func (e *Error) At(rank, peer int) *Error {
	e.Rank, e.Peer = rank, peer
	return e
}

// KindOf gives the kind of the outermost Error in err's chain, and ErrSystem where there
// is none: for a layer above that says what it tried.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ErrSystem
}

// FromContext gives the Error for a context that has ended: ErrTimeout when its
// deadline passed, ErrAborted when it was cancelled. The context's cause stays
// reachable.
func FromContext(ctx context.Context, op, text string) *Error {
	kind := ErrAborted
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = ErrTimeout
	}
	return &Error{Kind: kind, Op: op, Rank: NoRank, Peer: NoRank, Text: text, Err: context.Cause(ctx)}
}
