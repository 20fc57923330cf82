package collective

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// earlier is the last group that a runner was a runner of. What it has from groups before, it keeps where it was until
// its new group takes it: plans that are left, memories of its own that are left, and host paths of another communicator.
type earlier struct {
	comm   *communicator.Communicator // or nil
	group  layout.Group
	number uint64
}

// purpose is what memory of the runner's own is for.
type purpose int

const (
	forInbox purpose = iota
	forIn
	forOut
	forBox
)

// retire ends the runner's part in its group, which this rank leaves. What the next group may take is
// kept, and proxies end; channels are closed when all ranks have come there.
func (r *Runner) retire() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return nil
	}
	r.generation.Add(1)
	if !r.joining { // else it is there already
		r.before = earlier{r.comm, r.group, r.number}
	}
	r.groups = r.groups.retired()
	clear(r.modules)
	var errs []error
	for _, path := range r.hostPaths {
		errs = append(errs, path.closeService())
	}
	return errors.Join(errs...)
}

// Reform makes the runner, in place, one of the group that [communicator.Communicator.Reform] has
// turned the old into: after a failure, or of a group that works. Its kernels stay loaded, its
// memory stays at its address where the driver can, and calls on any buffer, groups of sends
// and receives and all-to-alls with counts need no new preparation. Flags, packets, epochs and
// the counts of messages begin anew, in memory that the ranks of the old group cannot reach.
// So do channels of algorithms that move data through the host.
//
// captured reports whether graphs that were captured before, of calls on any buffer and of groups of
// sends and receives, are right for the new group. They are if this rank and the number of ranks are
// as before, each host has the same ranks, and all memory has its address. A graph of this module that
// is not right is refused when it is launched: capture it again. Graphs that other code captured are
// not checked, so destroy them if captured is false.
//
// Then the memories and operations are carried one by one, by [Memory.Reform] and [Operation.Reform].
// Until then they are refused, as are graphs that hold them. Collective, matched by [New]: a newcomer
// makes its runner with the same options. Then it shares and prepares, by [Runner.Share],
// [Runner.Prepare] and [Runner.PrepareAllToAllV], what the others carry, in the same order. The others
// close what they do not carry.
//
// No other method of the runner, its memories and operations may be called meanwhile, nor between
// [communicator.Communicator.Reform] and this. No buffer of the caller's is written. After an error,
// such as a second failure or a context that ended, it may be called again with the next group, but not in this one.
//
// Errors: as for [New]; ErrInvalid for a runner that is closed, or already of the group, and for a
// communicator that [communicator.Communicator.Reform] has not made from the runner's.
func (r *Runner) Reform(ctx context.Context, comm *communicator.Communicator) (captured bool, err error) {
	const op = "collective: re-form a runner"
	if err := r.made(op); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case comm == nil:
		return false, r.invalidUse(op, "the communicator is nil")
	case r.closed.Load():
		return false, r.invalidUse(op, "the runner is closed")
	case !r.order.serves(comm):
		return false, r.invalidUse(op, "the communicator is closed, or not one that Communicator.Reform has turned the runner's into")
	case comm == r.comm && r.joining:
		return false, r.invalidUse(op, "the runner's Reform has failed in this group; call it again with the next one")
	case comm == r.comm:
		return false, r.invalidUse(op, "the runner is of this group already")
	}
	if err := r.keepPaths(comm); err != nil {
		return false, err
	}
	r.joining = true
	captured, err = r.join(ctx, comm)
	r.joining = err != nil
	return captured, wrap(comm, op, err)
}

// join makes the runner one of a group, with what it has from groups before. Collective, for ranks in New
// and in Reform alike: with what ranks have that come by Reform, all prepare the same.
func (r *Runner) join(ctx context.Context, comm *communicator.Communicator) (captured bool, err error) {
	ctx = comm.Internal().Operation(ctx, "make a runner")
	group, err := comm.Internal().RunnersGroup(ctx)
	if err != nil {
		return false, err
	}
	ranks := comm.Size()
	if near, all := uint64(group.Size), uint64(ranks); r.comm == nil || r.comm.Size() != ranks || r.group.Size != group.Size {
		r.groups.sizes = defaultGroupSizes.fitting(near, all-near)
	}
	r.comm, r.group, r.order, r.place = comm, group, orderOf(comm), placeOf(comm.Rank(), comm.Hosts())
	links, err := r.ownLinks(ctx)
	if err != nil {
		return false, err
	}
	r.staging.room, err = checkScratch(r.scratch, ranks, comm.Rank())
	if err == nil && r.maxBlocks < 0 {
		err = mscclgo.Errorf(mscclgo.ErrInvalid, "collective: make a runner", "at most %d blocks: the number must not be negative", r.maxBlocks).At(comm.Rank(), mscclgo.NoRank)
	}
	h := &r.before
	number := proposal{h.comm != nil, h.number}
	var plans []*validity
	for _, p := range r.plans {
		plans = append(plans, p.validity)
	}
	if !number.carried {
		number.number = r.order.next()
	}
	details := fmt.Sprintf("%d bytes of scratch, a tuning of sum %x and a bound of %d blocks", r.staging.room, r.tuning.sum(), r.maxBlocks)
	all, err := r.introduceAll(ctx, r.introduction(details, number, links), err)
	if err != nil {
		return false, err
	}
	r.link, r.lines, r.links = all.links.link, all.links.lines, all.links.rules()
	r.number, r.name = all.number, ""
	if r.number > 1 {
		r.name = fmt.Sprintf(", runner %d", r.number)
	}
	r.numbers, r.preparedV = all.memories, all.preparedV
	r.order.enter(r, r.number)
	if err := r.prepareAll(ctx, all); err != nil {
		return false, err
	}
	captured = number.carried && comm.Rank() == h.comm.Rank() && comm.Size() == h.comm.Size() && group == h.group && r.number == h.number
	captured = captured && !slices.ContainsFunc(plans, (*validity).left)
	maps.DeleteFunc(r.calls, func(_ callKey, c *anyCall) bool { return c.plan.validity.left() })
	maps.DeleteFunc(r.plans, func(_ planKey, p *plan) bool { return p.validity.left() })
	r.prepared = prepared{} // all ranks have completed as many
	return captured, nil
}

// prepareAll prepares what any rank has from the group before, on all ranks, and waits for all. Collective.
func (r *Runner) prepareAll(ctx context.Context, all introduction) error {
	if !all.carried {
		return nil
	}
	for _, key := range all.calls {
		op, prepare := "collective: make a runner", func(ctx context.Context) error { return r.groups.load(ctx, r) }
		if key.kind != inGroups {
			// A call that cannot be made in this group, such as one whose root is not there, is dropped.
			c, err := r.newCall(key)
			if err != nil {
				continue
			}
			op, prepare = c.op, func(ctx context.Context) error { return r.plan(ctx, c) }
		}
		if err := prepare(ctx); err != nil {
			return wrap(r.comm, op, err)
		}
	}
	_, err := r.exchange(ctx, "carry a runner", "", nil)
	return err
}

// allocate returns memory of the runner's that all ranks reach, of which the first bytes
// are zeros: the memory of the group before, with new memory at its address, if the size is the same and the
// driver can. No peer reaches it before it is cleared. The caller holds mu. Collective.
func (r *Runner) allocate(ctx context.Context, at purpose, bytes, zeros uint64) (*Memory, error) {
	m, err := r.renewed(at, bytes)
	if err == nil && m == nil {
		m = &Memory{runner: r}
		m.Buffer, err = r.comm.Device().Alloc(bytes)
	}
	if err == nil {
		err = zero(m.Buffer, zeros)
	}
	if _, err = r.exchange(ctx, "allocate memory", "", err); err == nil {
		shared := m.shared
		if shared == nil {
			shared, err = r.comm.Share(ctx, m.Buffer)
		} else {
			_, err = shared.Reform(ctx, r.comm)
		}
		if err == nil {
			err = r.keep(m, shared)
		}
		if err != nil && m.shared == nil {
			err = errors.Join(err, shared.Close())
		}
	}
	if err != nil {
		if m != nil && m.shared == nil && m.Buffer != nil { // else it is still kept for the next group
			err = errors.Join(err, m.Buffer.Close())
		}
		return nil, err
	}
	r.own[at] = m
	return m, nil
}

// renewed returns the memory of the group before for a place, if it can be used, or nil.
func (r *Runner) renewed(at purpose, bytes uint64) (*Memory, error) {
	m := r.own[at]
	if m == nil || m.Size() == bytes && m.Buffer.Internal().Renew() == nil {
		return m, nil
	}
	delete(r.own, at)
	delete(r.memories, m)
	return nil, errors.Join(m.release(), m.Buffer.Close())
}

// Reform carries the memory to the runner's new group, after [Runner.Reform]. Each survivor's buffer is
// the one that it shared, untouched. Views of it are carried with it. captured reports whether graphs
// that reach the buffers are right; [Operation.Reform] must say so too. Graphs of groups that receive
// large messages there are refused if a sender has mapped the buffer elsewhere, as a newcomer has.
// Collective, matched by [Runner.Share]. After an error it may be called again in the next group.
//
// Errors: as for [Runner.Share]; ErrInvalid for a view, and for a memory that is closed or of the
// group already.
func (m *Memory) Reform(ctx context.Context) (captured bool, err error) {
	const op = "collective: re-form a memory"
	if m == nil || m.runner == nil {
		return false, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory was not shared; Runner.Share makes one")
	}
	r := m.runner
	if err := r.begin(op); err != nil {
		return false, err
	}
	defer r.mu.Unlock()
	switch {
	case m.whole != nil:
		return false, r.invalidUse(op, "it is a view, which is carried with the memory that it is of")
	case m.over():
		return false, r.invalidUse(op, "the memory is closed")
	case !m.left():
		return false, r.invalidUse(op, "the memory is of the runner's group already")
	}
	number, placed := m.number, m.placed
	captured, err = m.shared.Reform(ctx, r.comm)
	if err == nil {
		err = r.tell(ctx, m, true, nil)
	}
	if err == nil {
		err = r.keep(m, m.shared)
	}
	if err != nil {
		return false, wrap(r.comm, op, err)
	}
	return captured && m.number == number && (m.placed == placed || !m.offered), nil
}

// Reform makes the operation ready for the runner's new group, after [Runner.Reform], once its memories
// were carried there. It is the same call, by an algorithm that is chosen anew unless the call named
// one. captured reports whether graphs that hold the operation are right for the group, which they are
// if the launch is as before. Others are refused, and must be captured again.
// Collective, matched by [Runner.Prepare] or [Runner.PrepareAllToAllV].
//
// Errors: as for the method that made it, such as ErrInvalid where a call does not suit the
// number of ranks any more: close it then, and prepare another; ErrInvalid for an operation that is
// closed or of the group already.
func (o *Operation) Reform(ctx context.Context) (captured bool, err error) {
	const op = "collective: re-form an operation"
	if o == nil || o.runner == nil {
		return false, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the operation is nil; Runner.Prepare makes one")
	}
	r := o.runner
	if err := r.begin(op); err != nil {
		return false, err
	}
	defer r.mu.Unlock()
	switch {
	case o.closed.Load():
		return false, r.invalidUse(op, "it is closed")
	case !o.validity.left():
		return false, r.invalidUse(op, "the operation is of the runner's group already")
	}
	before := o.validity
	if err := o.prepare(ctx); err != nil {
		return false, err
	}
	return o.validity == before, nil
}
