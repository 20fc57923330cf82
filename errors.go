package mscclgo

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Kind is the kind of a failure. A Kind is itself an error, so that
// errors.Is(err, mscclgo.ErrTimeout) tests for it.
type Kind uint8

// The kinds of failure.
const (
	// ErrInvalid: the call is wrong, such as one with a range outside a memory
	// or an argument of the wrong size.
	ErrInvalid Kind = iota + 1
	// ErrTimeout: a deadline passed.
	ErrTimeout
	// ErrAborted: a rank aborted the group, this rank closed it during the call, or the call's
	// context was cancelled.
	ErrAborted
	// ErrRemote: a peer failed, left, or sent something wrong.
	ErrRemote
	// ErrUnsupported: this machine, device or build cannot do what was asked.
	ErrUnsupported
	// ErrSystem: the operating system, the driver or a compiler failed.
	ErrSystem
)

// Error returns the name of the kind.
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

// NoRank is the value of Error.Rank and Error.Peer if no rank is involved.
const NoRank = -1

// Error is the error of every package of this module.
type Error struct {
	Kind Kind   // for errors.Is
	Op   string // what failed, such as "gpu: allocate 4096 bytes on emu:0"
	Rank int    // the rank that reports it, usually this one, or NoRank; in a launcher's error the rank to blame
	Peer int    // the rank to blame or at the other end; NoRank if that is Rank, or not known
	Text string // why it failed, and what to do about it
	Err  error  // the cause, or nil
}

// Error returns the operation, the rank and the peer, the kind, the text and the
// cause.
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

// Errorf returns an Error without ranks. The format is fmt.Errorf's: an error
// formatted by %w is in the chain that errors.Is and errors.As examine.
func Errorf(kind Kind, op, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Op: op, Rank: NoRank, Peer: NoRank, Err: text{wrapped}}
}

// text is a formatted message that unwraps to what its %w formatted.
type text struct{ error }

func (t text) Unwrap() error { return errors.Unwrap(t.error) }

// At sets the ranks of e and returns e.
func (e *Error) At(rank, peer int) *Error {
	e.Rank, e.Peer = rank, peer
	return e
}

// KindOf returns the kind of the first Error in err's chain, or ErrSystem if there is
// none. It is for errors that wrap err.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ErrSystem
}

// FromContext returns the Error of a context that has ended: ErrTimeout if its
// deadline passed, ErrAborted if it was cancelled. The Error wraps the context's
// cause.
func FromContext(ctx context.Context, op, text string) *Error {
	kind := ErrAborted
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = ErrTimeout
	}
	return &Error{Kind: kind, Op: op, Rank: NoRank, Peer: NoRank, Text: text, Err: context.Cause(ctx)}
}
