package capi

// #include "process.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

const opReform = "re-form a group"

func (c *call) groupReform(old handle, id *C.char, rank, size int, ms int64) error {
	unique := c.to(opReform).uniqueID(id)
	return c.reform(old, ms, func(ctx context.Context, g *group) (*bootstrap.Bootstrap, error) {
		o := g.comm.Bootstrap().(*bootstrap.Bootstrap).Options()
		o.Rank, o.Size, o.ID = rank, size, unique
		if o.Timeout = maxMilliseconds * time.Millisecond; ms >= 0 && ms < maxMilliseconds {
			o.Timeout = time.Duration(ms) * time.Millisecond // of 0, ctx has ended
		}
		return bootstrap.Connect(ctx, o)
	})
}

// reform takes a group to the next one, whose bootstrap connect returns. The handle and the device stay, with
// all that was made of the device.
func (c *call) reform(old handle, ms int64, connect func(context.Context, *group) (*bootstrap.Bootstrap, error)) error {
	o, g := get[*group](c, aGroup, old)
	if o.parent != nil {
		return invalid(c.op, "it is a part: re-form the group that was split, and split it again")
	}
	if !g.reforming.TryLock() {
		return isUsed(c.op, o)
	}
	defer g.reforming.Unlock()
	if objects.group(o) != g {
		return isUsed(c.op, o) // and has re-formed it
	}
	c.check(objects.dismissable(c.op, o)) // before the other ranks come
	ctx := c.within(ms)
	boot, err := connect(ctx, g)
	c.check(err)
	next, err := g.reform(ctx, o, boot)
	if err != nil {
		boot.Abort(err) // so that nobody waits for this rank
		return errors.Join(err, boot.Close())
	}
	objects.follow(o, next)
	collectProxies()
	if g.below != nil {
		g.logLeft(g.below())
	}
	return nil
}

// reform ends the group, and returns the one that follows it. After an error it may be called again.
func (g *group) reform(ctx context.Context, o *object, boot *bootstrap.Bootstrap) (*group, error) {
	ended, err := objects.dismiss(opReform, o)
	if err != nil {
		return nil, err
	}
	g.ending = append(g.ending, ended...)
	if err := errors.Join(leaveGroups(ended)...); err != nil { // the parts
		return nil, err
	}
	// Kernels reach the memory of proxies, which is freed next.
	streams, done := objects.busyStreams(g.device)
	defer done()
	for _, s := range streams {
		if err := s.Internal().Synchronize(ctx); err != nil {
			return nil, mscclgo.Errorf(mscclgo.KindOf(err), "mscclgo: "+opReform, "wait for the work of the old group: %w", err).At(g.comm.Rank(), mscclgo.NoRank)
		}
	}
	if err := g.end(aProxy); err != nil { // before the memory that they reach
		return nil, err
	}
	comm, err := g.comm.Reform(ctx, boot, streams...)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.logLeft(g.end()) // which waits for nobody now
	return &group{comm: comm, device: g.device, options: g.options, below: boot.Close, before: cmp.Or(g.runner, g.before)}, nil
}

func (c *call) groupReformCollectives(group handle, captured *C.int) error {
	g := c.to("re-form the collectives of a group").group(group)
	_, err := g.collectives()
	c.check(err)
	if captured != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		*captured = truth(g.captured)
	}
	return nil
}

// end closes what a call that re-forms the group has taken: all, or what is of some kinds.
func (g *group) end(kinds ...kind) error {
	var left []*object
	var errs []error
	for _, o := range g.ending {
		if len(kinds) > 0 && !slices.Contains(kinds, o.kind()) {
			left = append(left, o)
		} else if o.close != nil {
			errs = append(errs, o.close())
		}
	}
	g.ending = left
	return errors.Join(errs...)
}

// logLeft logs what the end of the old group had to tell: the new one works.
func (g *group) logLeft(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		logger().Warn("what the old group leaves did not close well", "rank", g.comm.Rank(), "error", err)
	}
}

// group returns the group of its object, which is another one once it was re-formed.
func (t *table) group(o *object) *group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return o.value.(*group)
}

// follow has the handle of a group, which the caller uses, stand for the next one from now on.
func (t *table) follow(o *object, next *group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.value, o.close = next, next.close
	for c := range o.children {
		if m, ok := c.value.(*peerMemory); ok {
			m.leave()
		}
		c.left.Store(c.kind() != aDevice)
	}
}

// dismissable returns the error that dismiss would return.
func (t *table) dismissable(op string, o *object) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, all := o.uncarried()
	if err := seize(op, all, nil); err != nil {
		return err
	}
	release(all, nil)
	return nil
}

// dismiss takes what was made of a group out of the table, but for its device and what the next one takes
// over, and returns it in the order in which it is to be closed. Port channels become the group's: their
// proxy ends.
func (t *table) dismiss(op string, o *object) ([]*object, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	roots, all := o.uncarried()
	if err := seize(op, all, nil); err != nil {
		return nil, err
	}
	t.remove(all)
	for _, root := range roots {
		for c := range root.children {
			if c.kind() == portChannels {
				t.move(c, o)
			}
		}
		delete(o.children, root)
	}
	return all, nil
}

// uncarried returns the objects made of a group that were not carried to the next, and all objects made of
// these, in the order in which they are to be closed.
func (o *object) uncarried() (roots, all []*object) {
	for _, c := range o.newest() {
		switch c.kind() {
		case aDevice, memoryChannels, portChannels, aPeerMemory, aPrepared:
			continue
		case aProxy:
			all = append(all, slices.DeleteFunc(c.order(nil), func(each *object) bool { return each.kind() == portChannels })...)
		default:
			all = c.order(all)
		}
		roots = append(roots, c)
	}
	return roots, all
}

// move makes an object another one's. The table is locked.
func (t *table) move(o, parent *object) {
	delete(o.parent.children, o)
	o.parent = parent
	parent.children[o] = true
}

// busyStreams returns the streams of a device that have work, which are not destroyed until done is called.
func (t *table) busyStreams(device *object) (all []*gpu.Stream, done func()) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var used []*object
	for o := range device.children {
		if o.kind() == aStream && busy(o) && o.begin() >= 0 {
			used = append(used, o)
			all = append(all, o.value.(*gpu.Stream))
		}
	}
	return all, func() {
		for _, o := range used {
			o.done()
		}
	}
}

// carry has f take what a handle stands for to the group that its own was re-formed to, while no other call uses
// it, and stores whether captured graphs are right, where the caller wants to know.
func carry[T any](c *call, k kind, h handle, captured *C.int, f func(o *object, value T, owner *object, g *group) (bool, error)) error {
	o, value, err := objects.find(c.op, k, h)
	c.check(err)
	defer o.done()
	if !o.users.CompareAndSwap(1, changing) {
		return isUsed(c.op, o)
	}
	defer o.users.Store(1)
	owner := objects.owner(o)
	right, err := f(o, value.(T), owner, objects.group(owner))
	c.check(err)
	o.left.Store(false)
	if captured != nil {
		*captured = truth(right)
	}
	return nil
}

// owner returns the group that an object is of, which is not destroyed while the object is used.
func (t *table) owner(o *object) *object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for o.kind() != aGroup {
		o = o.parent
	}
	return o
}

func (c *call) memoryChannelsReform(channels handle, captured *C.int) error {
	return carry(c.to("re-form memory channels"), memoryChannels, channels, captured, func(_ *object, m *communicator.MemoryChannels, _ *object, g *group) (bool, error) {
		return m.Reform(context.Background(), g.comm)
	})
}

func (c *call) portChannelsReform(channels, proxy handle, captured *C.int) error {
	service, s := get[*proxyservice.ProxyService](c.to("re-form port channels"), aProxy, proxy)
	return carry(c, portChannels, channels, captured, func(o *object, p ports, owner *object, g *group) (bool, error) {
		if service.parent != owner {
			return false, invalid(c.op, "the proxy is another group's")
		}
		right, err := p.Reform(context.Background(), g.comm, s)
		if err == nil {
			objects.give(o, service)
		}
		return right, err
	})
}

// give makes an object another one's, of which both are used.
func (t *table) give(o, parent *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.move(o, parent)
}

func (c *call) peerMemoryReform(memory handle, captured *C.int) error {
	return carry(c.to("re-form peer memory"), aPeerMemory, memory, captured, func(_ *object, m *peerMemory, _ *object, g *group) (bool, error) {
		return m.peers.Reform(context.Background(), g.comm)
	})
}

func (c *call) preparedReform(h handle, captured *C.int) error {
	return carry(c.to("re-form a prepared collective"), aPrepared, h, captured, func(o *object, p *prepared, owner *object, g *group) (bool, error) {
		r, err := g.collectives()
		c.check(err)
		// As mscclgo_prepare does, which newcomers call. A call of the group that it is of asks nobody.
		if o.left.Load() {
			c.check(p.agree(c, owner, r, nil))
		}
		var wrong error
		for _, m := range p.memories {
			if wrong == nil {
				_, wrong = m.of(c, owner, r)
			}
		}
		right, err := p.operation.Reform(context.Background()) // which tells the other ranks what is wrong
		return right, cmp.Or(wrong, err)
	})
}
