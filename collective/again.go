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
// of this one.
type preparation struct {
	calls uint64
	text  string
}

var preparations = wire.For[preparation]()

// prepareTogether makes a call that prepares others, of a name that is the same on all ranks: it tells all ranks what
// each says of the call, in an exchange, and then does the rest. failed is why this rank's part failed, or nil. The caller
// holds mu. Collective.
func (r *Runner) prepareTogether(ctx context.Context, name, mine string, failed error, rest func(ctx context.Context, texts []string) error) error {
	ctx = r.comm.Internal().Operation(ctx, name)
	p := &r.prepared
	told, err := exchangeValues(ctx, r, name, preparations, preparation{p.calls, mine}, r.mostContent()+16, failed)
	if err != nil {
		return err
	}
	least, texts := p.calls, make([]string, len(told))
	for rank, theirs := range told {
		least, texts[rank] = min(least, theirs.calls), theirs.text
	}
	if least < p.calls {
		err = p.undo()
	}
	p.calls, p.drop = least, nil
	if err == nil {
		err = rest(ctx, texts)
	}
	if err != nil {
		return errors.Join(err, p.undo())
	}
	p.calls++
	return nil
}

// prepareFirst makes what the first call on any buffers needs. It can be made again if it has failed on all ranks:
// where it works the call is queued. The caller holds mu. Collective.
func (r *Runner) prepareFirst(do func(context.Context) error) error {
	r.prepared.drop = nil
	err := do(r.comm.Internal().Operation(context.Background(), "make a first call"))
	if err != nil {
		err = errors.Join(err, r.prepared.undo())
	}
	r.prepared.drop = nil
	return err
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

// allocateOnce is allocate, unless the runner has the memory.
func (r *Runner) allocateOnce(ctx context.Context, at purpose, bytes, zeros uint64) (*Memory, error) {
	if m := r.own[at]; m != nil {
		return m, nil
	}
	m, err := r.allocate(ctx, at, bytes, zeros)
	if err != nil {
		return nil, err
	}
	r.prepared.made(func() error {
		delete(r.own, at)
		delete(r.memories, m)
		return errors.Join(m.release(), m.Buffer.Close())
	})
	return m, nil
}
