package communicator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// blamed is in errors by which a group failed, or with which its calls ended. It tells other groups of the tree who is to
// blame.
type blamed struct {
	of      *branch
	culprit int    // its number in the outer group, or NoRank
	text    string // contains the text of err, or quotes it
	err     error  // or nil
}

func (b *blamed) Error() string { return b.text }
func (b *blamed) Unwrap() error { return b.err }

// Outside is for watch.Blamed, by which the other ranks of the group hear of it.
func (b *blamed) Outside() int {
	if slices.Contains(b.of.numbers, b.culprit) {
		return mscclgo.NoRank
	}
	return b.culprit
}

// groupFailure is why a group failed.
type groupFailure struct {
	culprit int // its number in the outer group, or NoRank
	text    string
	at      time.Time
}

// judged returns an error with a text that has a verdict's. Where that names no culprit, it is
// due to the rank that was awaited.
func (o *observer) judged(v watch.Verdict, awaited int, text string, err error) *blamed {
	culprit := o.branch.number(v.Culprit)
	if v.Outside {
		culprit = v.Outer
	} else if v.Culprit == mscclgo.NoRank {
		culprit = o.branch.number(awaited)
	}
	return &blamed{o.branch, culprit, text, err}
}

// number returns the number in the outer group of a rank of this one, or NoRank.
func (br *branch) number(rank int) int {
	if rank < 0 || rank >= len(br.numbers) {
		return mscclgo.NoRank
	}
	return br.numbers[rank]
}

// mostRenumbered is how many ranks a text has with both their numbers.
const mostRenumbered = 8

// renumbered says which ranks another group's ranks are in this group, unless the numbers are the same or many.
func (br *branch) renumbered(other *branch) string {
	if slices.Equal(br.numbers, other.numbers) || len(other.numbers) > mostRenumbered {
		return ""
	}
	var all []string
	for i, number := range other.numbers {
		if here := slices.Index(br.numbers, number); here >= 0 {
			all = append(all, fmt.Sprintf("%d is rank %d here", i, here))
		}
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// blame returns the number of an error's culprit in the outer group, and the error with a blamed in it. culprit is
// the rank to blame, if it is known; otherwise is the one to blame if the error names none. Both may be NoRank. Blame
// is called without locks, since methods of the program's errors may call anything.
func (br *branch) blame(err error, culprit, otherwise int) (number int, ours error) {
	b := (*blamed)(nil)
	if errors.As(err, &b) && b.of.tree == br.tree {
		if b.of == br {
			return b.culprit, err
		}
		return b.culprit, &blamed{br, b.culprit, err.Error(), err}
	}
	number = mscclgo.NoRank
	if by := (*watch.By)(nil); culprit == mscclgo.NoRank && errors.As(err, &by) && by.Outside() < len(br.outer.numbers) {
		number = by.Outside()
	}
	if culprit == mscclgo.NoRank {
		culprit = watch.Culprit(err, mscclgo.NoRank)
	}
	if e := (*mscclgo.Error)(nil); culprit == mscclgo.NoRank && errors.As(err, &e) && e.Kind == mscclgo.ErrAborted {
		culprit = e.Rank // that gave up, or which others gave up
	}
	if culprit == mscclgo.NoRank {
		culprit = otherwise
	}
	if number == mscclgo.NoRank {
		number = br.number(culprit)
	}
	return number, &blamed{br, number, err.Error(), err}
}

// failed has the tree know why this group failed.
func (br *branch) failed(err error, culprit int, now time.Time) {
	br.tree.mu.Lock()
	defer br.tree.mu.Unlock()
	br.failure = &groupFailure{culprit, err.Error(), now}
}

// ours returns an error of this group with a blamed in it.
func (c *Communicator) ours(err error) error {
	if c.failure != nil && err != nil {
		_, err = c.failure.observer.branch.blame(err, mscclgo.NoRank, mscclgo.NoRank)
	}
	return err
}

// ofOther returns an error of another group of this rank, which names ranks by their numbers there,
// with this kind and operation, and its culprit, a rank of this group or NoRank. The error is nil if
// err is no such error.
func (c *Communicator) ofOther(kind mscclgo.Kind, op string, err error) (culprit int, ours error) {
	b := (*blamed)(nil)
	if c.failure == nil || !errors.As(err, &b) {
		return mscclgo.NoRank, nil
	}
	br := c.failure.observer.branch
	if b.of == br || b.of.tree != br.tree {
		return mscclgo.NoRank, nil
	}
	culprit = slices.Index(br.numbers, b.culprit) // which is NoRank where there is none
	text := "another group of this rank has failed; ranks have its numbers" + br.renumbered(b.of) + ": " + err.Error()
	if b.culprit != mscclgo.NoRank && culprit == mscclgo.NoRank {
		text = watch.Outsider(text, b.culprit)
	}
	peer := culprit
	if peer == c.Rank() {
		peer = mscclgo.NoRank
	}
	return culprit, mscclgo.Errorf(kind, op, "%w", &blamed{br, b.culprit, text, err}).At(c.Rank(), peer)
}
