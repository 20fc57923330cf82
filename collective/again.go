package collective

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// prepared is what calls have made that prepare others, and that is kept for those: with it they are made without
// exchanges, so all ranks have the same.
//
// A call may work on one rank and fail on another, whose context has ended when its part was sent. All make it again, and
// tell in its first exchange how many such calls each has completed: a rank that is ahead drops what its last has
// made.
type prepared struct {
	calls uint64         // that this rank has completed in its group
	drop  []func() error // what the last has made, until all are known to have completed it; else what the call under way has
}

// preparation is what a rank tells of a call that prepares others: how many such calls it has completed, and what it says
// of this one, with the number that it proposes if what is prepared has one.
type preparation struct {
	calls  uint64
	text   string
	number proposal
}

var preparations = wire.For[preparation]()

// prepareTogether makes a call that prepares others, of a name that is the same on all ranks: the ranks compare what each
// says of the call, in an exchange, and then do the rest. failed is why this rank's part failed, or nil. The caller
// holds mu. Collective.
func (r *Runner) prepareTogether(ctx context.Context, name, mine string, failed error, rest func(context.Context) error) error {
	return r.prepareAs(ctx, name, preparation{text: mine}, failed, func(told []preparation) error {
		for rank, theirs := range told {
			if theirs.text != mine {
				return r.differs(rank, name, theirs.text, mine)
			}
		}
		return nil
	}, rest)
}

// prepareAs is prepareTogether for what each rank tells, and a comparison of that.
func (r *Runner) prepareAs(ctx context.Context, name string, mine preparation, failed error, compare func([]preparation) error, rest func(context.Context) error) error {
	ctx = r.comm.Internal().Operation(ctx, name)
	p := &r.prepared
	mine.calls = p.calls
	told, err := exchangeValues(ctx, r, name, preparations, mine, failed)
	if err != nil {
		return err
	}
	least := p.calls
	for _, theirs := range told {
		least = min(least, theirs.calls)
	}
	if least < p.calls {
		err = p.undo()
	}
	p.calls, p.drop = least, nil
	if err == nil {
		err = compare(told)
	}
	if err == nil {
		err = rest(ctx)
	}
	if err != nil {
		return errors.Join(err, p.undo())
	}
	p.calls++
	return nil
}

// made notes how to drop what the call under way has made.
func (p *prepared) made(drop func() error) { p.drop = append(p.drop, drop) }

// undo drops what was noted, the last first.
func (p *prepared) undo() error {
	var errs []error
	for i := len(p.drop) - 1; i >= 0; i-- {
		errs = append(errs, p.drop[i]())
	}
	p.drop = nil
	return errors.Join(errs...)
}

// allocateOnce is allocate, unless the runner has the memory in its group.
func (r *Runner) allocateOnce(ctx context.Context, at purpose, bytes, zeros uint64) (*Memory, error) {
	if m := r.own[at]; m != nil && !m.left() {
		return m, nil
	}
	m, err := r.allocate(ctx, at, bytes, zeros)
	if err != nil {
		return nil, err
	}
	r.prepared.made(func() error {
		if r.own[at] != m { // which closes with the runner
			return nil
		}
		delete(r.own, at)
		delete(r.memories, m)
		return errors.Join(m.release(), m.Buffer.Close())
	})
	return m, nil
}
