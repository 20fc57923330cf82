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

// blamed is in errors by which a group failed, or with which its calls ended. It tells other groups of the family who is to
// blame.
type blamed struct {
	of      *kin
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
	culprit := o.kin.number(v.Culprit)
	if v.Outside {
		culprit = v.Outer
	} else if v.Culprit == mscclgo.NoRank {
		culprit = o.kin.number(awaited)
	}
	return &blamed{o.kin, culprit, text, err}
}

// number returns the number in the outer group of a rank of this one, or NoRank.
func (k *kin) number(rank int) int {
	if rank < 0 || rank >= len(k.numbers) {
		return mscclgo.NoRank
	}
	return k.numbers[rank]
}

// mostRenumbered is how many ranks a text has with both their numbers.
const mostRenumbered = 8

// renumbered says which ranks of this group those of another are, unless they are the same or many.
func (k *kin) renumbered(other *kin) string {
	if slices.Equal(k.numbers, other.numbers) || len(other.numbers) > mostRenumbered {
		return ""
	}
	var all []string
	for i, number := range other.numbers {
		if here := slices.Index(k.numbers, number); here >= 0 {
			all = append(all, fmt.Sprintf("%d is rank %d here", i, here))
		}
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// blame returns the number of an error's culprit in the outer group, and the error with a blamed in it. culprit is
// the rank to blame, if it is known; otherwise is the one to blame if the error names none. Both may be NoRank. Blame
// is called without locks, since methods of the program's errors may call anything.
func (k *kin) blame(err error, culprit, otherwise int) (number int, ours error) {
	b := (*blamed)(nil)
	if errors.As(err, &b) && b.of.family == k.family {
		if b.of == k {
			return b.culprit, err
		}
		return b.culprit, &blamed{k, b.culprit, err.Error(), err}
	}
	number = mscclgo.NoRank
	if by := (*watch.By)(nil); culprit == mscclgo.NoRank && errors.As(err, &by) && by.Outside() < len(k.outer.numbers) {
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
		number = k.number(culprit)
	}
	return number, &blamed{k, number, err.Error(), err}
}

// failed has the family know why this group failed.
func (k *kin) failed(err error, culprit int, now time.Time) {
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	k.failure = &groupFailure{culprit, err.Error(), now}
}

// ours returns an error of this group with a blamed in it.
func (c *Communicator) ours(err error) error {
	if c.failure != nil && err != nil {
		_, err = c.failure.observer.kin.blame(err, mscclgo.NoRank, mscclgo.NoRank)
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
	k := c.failure.observer.kin
	if b.of == k || b.of.family != k.family {
		return mscclgo.NoRank, nil
	}
	culprit = slices.Index(k.numbers, b.culprit) // which is NoRank where there is none
	text := "another group of this rank has failed, by whose numbers ranks are named" + k.renumbered(b.of) + ": " + err.Error()
	if b.culprit != mscclgo.NoRank && culprit == mscclgo.NoRank {
		text = watch.Outsider(text, b.culprit)
	}
	peer := culprit
	if peer == c.Rank() {
		peer = mscclgo.NoRank
	}
	return culprit, mscclgo.Errorf(kind, op, "%w", &blamed{k, b.culprit, text, err}).At(c.Rank(), peer)
}
