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

// failing is an error of a group, by which it failed or with which a call ended.
type failing struct {
	of      *kin
	err     error
	text    string // of err
	culprit int    // its number in the outer group, or NoRank
	at      time.Time
}

const mostFails = 16

// judged is in errors of which this rank has found out the culprit. Others have the text alone.
type judged struct {
	family  *family
	culprit int // its number in the outer group, or NoRank
	text    string
	err     error // that the text quotes, or nil
}

func (j *judged) Error() string { return j.text }
func (j *judged) Unwrap() error { return j.err }

// judged returns an error with a text that has a verdict's. Where that names no culprit, it is
// due to the rank that was awaited.
func (o *observer) judged(v watch.Verdict, awaited int, text string, err error) *judged {
	k := o.kin.Load()
	if k == nil {
		return &judged{text: text, err: err}
	}
	culprit := k.number(v.Culprit)
	if v.Outside {
		culprit = v.Outer
	} else if v.Culprit == mscclgo.NoRank {
		culprit = k.number(awaited)
	}
	return &judged{k.family, culprit, text, err}
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

// failing returns what the family shall know of an error of this group, which is due to the culprit
// if that is known, and to the rank otherwise if the error names none. Both may be NoRank. It
// is called without locks, since methods of the program's errors may call anything.
func (o *observer) failing(err error, culprit, otherwise int) *failing {
	k := o.kin.Load()
	if k == nil {
		return nil
	}
	f := &failing{of: k, err: err, text: err.Error(), at: o.now()}
	if j := (*judged)(nil); errors.As(err, &j) && j.family == k.family {
		f.culprit = j.culprit
		return f
	}
	if culprit == mscclgo.NoRank {
		var ok bool
		if f.culprit, ok = watch.OuterCulprit(f.text); ok && f.culprit < len(k.outer.numbers) {
			return f
		}
		culprit = watch.Culprit(err, mscclgo.NoRank)
	}
	if e := (*mscclgo.Error)(nil); culprit == mscclgo.NoRank && errors.As(err, &e) && e.Kind == mscclgo.ErrAborted {
		culprit = e.Rank // that gave up, or which others gave up
	}
	if culprit == mscclgo.NoRank {
		culprit = otherwise
	}
	f.culprit = k.number(culprit)
	return f
}

// note has the family know an error of this group, by which the group has failed or not.
func (o *observer) note(f *failing, failed bool) {
	if f == nil {
		return
	}
	family := f.of.family
	family.mu.Lock()
	defer family.mu.Unlock()
	if failed {
		f.of.failure = f
	}
	family.fails = append(family.fails, f)
	family.fails = family.fails[max(0, len(family.fails)-mostFails):]
}

// noteError has the rank's other groups know an error of this one, which may name a rank of it.
func (c *Communicator) noteError(err error) {
	if c.failure != nil {
		o := c.failure.observer
		o.note(o.failing(err, mscclgo.NoRank, mscclgo.NoRank), false)
	}
}

// failedElsewhere returns the failure of another group of the family which err is, or nil.
func (o *observer) failedElsewhere(err error) *failing {
	k := o.kin.Load()
	if k == nil {
		return nil
	}
	k.family.mu.Lock()
	fails := slices.Clone(k.family.fails)
	k.family.mu.Unlock()
	for _, f := range slices.Backward(fails) { // those that quote others are newer
		if errors.Is(err, f.err) {
			if f.of == k {
				return nil
			}
			return f
		}
	}
	return nil
}

// ofOther returns an error of another group of this rank, which names ranks by their numbers there,
// with this kind and operation, and its culprit, a rank of this group or NoRank. The error is nil if
// err is no such error.
func (c *Communicator) ofOther(kind mscclgo.Kind, op string, err error) (culprit int, ours error) {
	if c.failure == nil || err == nil {
		return mscclgo.NoRank, nil
	}
	f := c.failure.observer.failedElsewhere(err)
	if f == nil {
		return mscclgo.NoRank, nil
	}
	k, number := c.failure.observer.kin.Load(), f.culprit
	culprit = slices.Index(k.numbers, number) // which is NoRank where there is none
	text := "another group of this rank has failed, by whose numbers ranks are named" + k.renumbered(f.of) + ": " + err.Error()
	if number != mscclgo.NoRank && culprit == mscclgo.NoRank {
		text = watch.Outsider(text, number)
	}
	peer := culprit
	if peer == c.Rank() {
		peer = mscclgo.NoRank
	}
	return culprit, mscclgo.Errorf(kind, op, "%w", &judged{k.family, number, text, err}).At(c.Rank(), peer)
}
