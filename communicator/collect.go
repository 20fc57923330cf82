package communicator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// call is a collective call in progress. It consists of exchanges, in each of
// which every rank sends a contribution to all others.
type call struct {
	c    *Communicator
	op   string // for errors
	name string // the same on all ranks
	of   *operation
	met  bool // all ranks' contributions to the latest exchange have come
}

// begin starts a collective call. Its name and number are part of every
// contribution, so that calls that do not match are detected.
func (c *Communicator) begin(name, op string) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun++
	return &call{c: c, op: op, name: name, of: &operation{c: c, name: name, number: c.begun}}
}

// closing is the name of the last call, which ranks may make after different
// numbers of calls.
const closing = "close"

// Limits of a contribution, in bytes.
const (
	maxContribution = 16 << 20
	maxGathered     = 64 << 20 // of all ranks together
	maxName         = 64
	overhead        = 128 + 2*maxName + watch.MaxText // of a contribution, besides its content
)

// collect returns the contributions of all ranks to an exchange, by rank. A rank
// whose own part failed contributes the error. Then the call fails on all ranks, with
// an error that names this rank or the rank to blame for its failure. So no rank waits
// for one that gave up.
func (k *call) collect(ctx context.Context, mine []byte, failed error) ([][]byte, error) {
	ctx, cancel := k.c.patient(ctx)
	defer cancel()
	return k.gather(ctx, mine, failed)
}

// gather is collect without the options' timeout.
func (k *call) gather(ctx context.Context, mine []byte, failed error) (contents [][]byte, err error) {
	c := k.c
	if _, ours := c.ofOther(mscclgo.KindOf(failed), k.op, failed); ours != nil {
		failed = ours
	}
	if most := min(maxContribution, maxGathered/c.Size()-overhead); failed == nil && len(mine) > most {
		failed = k.errorf(mscclgo.ErrInvalid, mscclgo.NoRank, "it takes a message of %d bytes to all %d ranks, at most %d are allowed; ask for less at once", len(mine), c.Size(), most)
	}
	if o := c.operation(ctx); o != nil {
		k.of = o
	}
	k.of.step++
	again := true
	for i := 0; again && i < mostSteps; i++ {
		contents, err, again = k.round(ctx, mine, failed)
	}
	if again {
		err = k.errorf(mscclgo.ErrRemote, mscclgo.NoRank, "the other ranks are in later steps of %q, and do not make the call again", k.of.name)
	}
	if err != nil && k.name != closing { // a group that is closed aborts no other
		err = c.ours(err)
	}
	return contents, err
}

// round is gather once. It reports whether the rank begins the call while others are in later steps of one that
// they leave now: then it is to be repeated.
func (k *call) round(ctx context.Context, mine []byte, failed error) (_ [][]byte, err error, again bool) {
	c := k.c
	k.met = false
	all, err := k.exchange(ctx, k.contribution(c.lastCall(), mine, failed))
	if err != nil {
		if c.boot.Err() != nil { // which ended what failed here, perhaps
			return nil, c.joinOnce(k.named(err), failed), false
		}
		return nil, errors.Join(failed, k.named(err)), false
	}
	if len(all) != c.Size() {
		return nil, k.errorf(mscclgo.ErrInvalid, mscclgo.NoRank, "the bootstrap's AllGather returned %d messages, the group has %d ranks", len(all), c.Size()), false
	}
	contents, headers, parts := make([][]byte, len(all)), make([]header, len(all)), make([]*watch.Fact, len(all))
	for rank, b := range all {
		if headers[rank], contents[rank], parts[rank], err = k.read(rank, b); err != nil {
			if k.name != closing { // otherwise the ranks that go on detect it
				c.boot.Abort(err) // later calls would not match either
			}
			return nil, err, false
		}
		if err := c.calls.Load().Hear(matchOp, headers[rank].last); err != nil {
			c.failure.fail(err)
			return nil, err, false
		}
	}
	k.met = true
	k.of.meet(headers)
	if began := k.of.apart(headers); began != mscclgo.NoRank {
		if k.of.step == 1 {
			return nil, nil, true
		}
		return nil, errors.Join(failed, k.errorf(mscclgo.ErrAborted, began, "it has begun %q again, as a call that ended with its context; all ranks make the call again", k.of.name)), false
	}
	if err := k.partFailed(failed, parts); err != nil {
		return nil, err, false
	}
	return contents, nil, false
}

// joinOnce is [errors.Join] of an error and what goes with it, whose text is left out if the error has it, or if it says no
// more than that the group has failed.
func (c *Communicator) joinOnce(err, with error) error {
	if with == nil || !c.endedWithGroup(with) && !strings.Contains(err.Error(), with.Error()) {
		return errors.Join(err, with)
	}
	return &once{err, with}
}

// once is an error whose text contains the text of another.
type once struct{ err, with error }

func (o *once) Error() string   { return o.err.Error() }
func (o *once) Unwrap() []error { return []error{o.err, o.with} }

// exchange is the bootstrap's AllGather. The ranks tell each other that they are in it, once
// there is what they tell each other by.
func (k *call) exchange(ctx context.Context, mine []byte) (all [][]byte, err error) {
	f := k.c.failure
	if f == nil {
		return k.c.boot.AllGather(ctx, mine)
	}
	done := f.observer.exchange(k.name == closing)
	k.c.meet(func() { all, err = k.c.boot.AllGather(ctx, mine) })
	lasted := done(err)
	if o := f.observer; k.name != closing && errors.Is(err, mscclgo.ErrTimeout) {
		err = o.overdue("communicator: exchange", err, lasted, func(s *watch.Status, now time.Time) { o.exchanging.describe(s, now) })
		if cause := f.err(); cause != nil {
			err = cause
		}
	}
	return all, err
}

// AllGather returns the data of all ranks, by rank. It is for small messages: at most
// 64 MiB for all ranks together. Only ctx bounds the wait. Collective.
func (c *Communicator) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	const op = "communicator: all-gather"
	if err := c.usable(op); err != nil {
		return nil, err
	}
	return c.begin("all-gather", op).gather(ctx, data, nil)
}

// Broadcast returns the data of rank root on all ranks and ignores the data of the
// others. It has the limits of [Communicator.AllGather]. Collective.
//
// Errors: ErrInvalid for a root outside the group.
func (c *Communicator) Broadcast(ctx context.Context, root int, data []byte) ([]byte, error) {
	const op = "communicator: broadcast"
	if err := c.usable(op); err != nil {
		return nil, err
	}
	var err error
	if root < 0 || root >= c.Size() {
		root, err = 0, c.invalid(op, "the root is rank %d of a group of %d", root, c.Size())
	}
	if root != c.Rank() {
		data = nil
	}
	all, err := c.begin(fmt.Sprintf("broadcast from rank %d", root), op).gather(ctx, data, err)
	if err != nil {
		return nil, err
	}
	return all[root], nil
}

// collectAll is collect of values that a codec encodes.
func collectAll[T any](ctx context.Context, k *call, codec *wire.Codec[T], mine *T, failed error) ([]T, error) {
	all, err := k.collect(ctx, codec.Marshal(mine), failed)
	if err != nil {
		return nil, err
	}
	values := make([]T, len(all))
	for rank, b := range all {
		if values[rank], err = codec.Unmarshal(b); err != nil {
			return nil, k.errorf(mscclgo.ErrRemote, rank, "its message is malformed: %w", err)
		}
	}
	return values, nil
}

// agree is an exchange without content: it fails on all ranks if failed is set on
// one.
func (k *call) agree(ctx context.Context, failed error) error {
	_, err := k.collect(ctx, nil, failed)
	return err
}

// agreeLast is agree for the last exchange of a call that is made once. It goes on for lastWords when the context has
// ended: if the call has worked on other ranks, it works here.
func (k *call) agreeLast(ctx context.Context, failed error) error {
	ctx, cancel := outlasting(ctx, lastWords)
	defer cancel()
	return k.agree(ctx, failed)
}

// made has all ranks make something of what each offers, or none: connect makes this rank's part of the offers of all, which
// close closes after an error. show makes the part known to what uses it, once all have made theirs.
func (k *call) made(ctx context.Context, offer func() ([]byte, error), connect func(all [][]byte) error, show, close func() error) error {
	mine, err := offer()
	all, err := k.collect(ctx, mine, err)
	made := false
	if err == nil {
		err = connect(all)
		made = err == nil
		err = k.agree(ctx, err)
	}
	if err != nil {
		return k.giveUp(made, err, close)
	}
	if err := show(); err != nil { // of which the others, who go on, do not know
		return k.leave(k.c.ours(err), close)
	}
	return nil
}

// giveUp ends a call that has failed, and closes what this rank has made for it. If that was all, and this rank
// does not know whether the others agreed, they may go on, and their kernels write there: it is closed with the
// communicator.
func (k *call) giveUp(made bool, err error, close func() error) error {
	if !made || k.met {
		return errors.Join(err, close())
	}
	return k.leave(err, close)
}

// leave ends a call that has failed though others may go on: what this rank has made for it is closed with the
// communicator, or now if that is closed already.
func (k *call) leave(err error, close func() error) error {
	k.c.mu.Lock()
	late := k.c.leftClosed
	if !late {
		k.c.leftOpen = append(k.c.leftOpen, close)
	}
	k.c.mu.Unlock()
	if late {
		return errors.Join(err, close())
	}
	return err
}

// afterwards does what other ranks may need of this one when it has closed something, until the communicator is
// closed.
func (c *Communicator) afterwards(do func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leftClosed {
		return
	}
	if c.answering == nil {
		c.answering, c.endAnswers = context.WithCancel(context.Background())
	}
	ctx := c.answering
	c.running.Go(func() { do(ctx) })
}

// closeLeft closes what giveUp has left, and ends what is done afterwards.
func (c *Communicator) closeLeft() error {
	c.mu.Lock()
	open := c.leftOpen
	c.leftOpen, c.leftClosed = nil, true
	if c.answering != nil {
		c.endAnswers()
	}
	c.mu.Unlock()
	c.running.Wait()
	var errs []error
	for _, close := range open {
		errs = append(errs, close())
	}
	return errors.Join(errs...)
}

// contribution encodes this rank's contribution.
func (k *call) contribution(last watch.Call, mine []byte, failed error) []byte {
	h := header{number: k.of.number, operation: k.of.name, step: k.of.step, name: k.name, last: last, ok: failed == nil, content: mine}
	if failed != nil {
		h.content = watch.FactOf(failed, k.c.Rank(), k.c.Size()).Encode()
	}
	return headerWire.Marshal(&h)
}

// header is a contribution.
type header struct {
	number    uint64 // see operation
	operation string `wire:"64"`
	step      uint32
	name      string     `wire:"64"` // of the call
	last      watch.Call // the last matched call
	ok        bool       // the rank's part has not failed
	content   []byte     `wire:"16777216"` // or the fact of the failure
}

var headerWire = wire.For[header]()

// read decodes a rank's contribution: the content, or why its part failed. The error is of a contribution that
// does not belong to this call, nor to another step of its operation.
func (k *call) read(rank int, b []byte) (h header, content []byte, failed *watch.Fact, err error) {
	h, err = headerWire.Unmarshal(b)
	h.last.Rank, content = rank, h.content
	if !h.ok && err == nil {
		var f watch.Fact
		f, err = watch.DecodeFact(content, k.c.Size())
		failed = &f
	}
	if err != nil {
		return h, nil, nil, k.errorf(mscclgo.ErrRemote, rank, "its message is malformed: %w", err)
	}
	switch {
	case h.name == k.name, h.operation == k.of.name && h.step != k.of.step:
		return h, content, failed, nil
	case h.name == closing:
		return h, nil, nil, k.errorf(mscclgo.ErrRemote, rank, "it closed its communicator while this rank is in a call %q", k.name)
	default:
		return h, nil, nil, k.errorf(mscclgo.ErrInvalid, rank, "its collective call is %q, and this rank's %q; all ranks must make the same calls in the same order, and a call that ended with its context counts too", h.name, k.name)
	}
}

// named returns an error of the bootstrap, or of the group, as one of this call.
func (k *call) named(err error) error {
	return k.errorf(mscclgo.KindOf(err), peerOf(err), "%w", err)
}

// peerOf returns the peer that an error names, or NoRank.
func peerOf(err error) int {
	if e := (*mscclgo.Error)(nil); errors.As(err, &e) {
		return e.Peer
	}
	return mscclgo.NoRank
}

func (k *call) errorf(kind mscclgo.Kind, peer int, format string, args ...any) error {
	return mscclgo.Errorf(kind, k.op, format, args...).At(k.c.Rank(), peer)
}
