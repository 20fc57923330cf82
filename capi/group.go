package capi

// #include "process.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// groupOptions converts options and a config, each of which may be NULL.
func groupOptions(op string, o *C.mscclgo_group_options, c *C.mscclgo_group_config) (communicator.Options, collective.Options, error) {
	options := communicator.Options{Logger: logger()}
	collectives, err := configure(op, c, &options)
	if o == nil || err != nil {
		return options, collectives, err
	}
	if o.timeout_ms < 0 || o.timeout_ms > maxMilliseconds {
		return options, collectives, invalid(op, "timeout_ms is %d, not from 0 to %d", int64(o.timeout_ms), maxMilliseconds)
	}
	if o.heartbeat_timeout_ms > maxMilliseconds {
		return options, collectives, invalid(op, "heartbeat_timeout_ms is %d, which is more than %d", int64(o.heartbeat_timeout_ms), maxMilliseconds)
	}
	options.Device = text(o.device)
	options.Timeout = time.Duration(o.timeout_ms) * time.Millisecond
	options.HeartbeatTimeout = time.Duration(max(o.heartbeat_timeout_ms, -1)) * time.Millisecond
	options.Scratch = uint64(o.scratch_bytes)
	return options, collectives, nil
}

const maxMilliseconds = 1 << 40

func (c *call) groupJoin(o *C.mscclgo_group_options, result *handle) error {
	return c.groupJoinConfigured(o, nil, result)
}

func (c *call) groupJoinConfigured(o *C.mscclgo_group_options, config *C.mscclgo_group_config, result *handle) error {
	need(c.to("join the group of the environment"), result)
	options, collectives, err := groupOptions(c.op, o, config)
	c.check(err)
	readEnvironment()
	comm, err := communicator.Join(context.Background(), options)
	c.check(err)
	comm.Internal().TakeDevice()
	newGroup(comm, collectives, comm.Device(), nil).store(result)
	return nil
}

func (c *call) groupConnect(id *C.char, rank, size int, o *C.mscclgo_group_options, result *handle) error {
	return c.groupConnectConfigured(id, rank, size, o, nil, result)
}

func (c *call) groupConnectConfigured(id *C.char, rank, size int, o *C.mscclgo_group_options, config *C.mscclgo_group_config, result *handle) error {
	need(c.to("connect a group"), id)
	need(c, result)
	options, collectives, err := groupOptions(c.op, o, config)
	c.check(err)
	unique := c.uniqueID(id)
	localRank := 0
	if o != nil {
		localRank = int(o.local_rank)
	}
	return connectGroup(localRank, options, collectives, result, func() (*bootstrap.Bootstrap, error) {
		return bootstrap.Connect(context.Background(), bootstrap.Options{
			Rank: rank, Size: size, ID: unique, Timeout: options.Timeout,
			HeartbeatTimeout: options.HeartbeatTimeout, Logger: options.Logger,
		})
	})
}

// connectGroup stores the handle of a group on a device that it opens, over the bootstrap that connect returns.
func connectGroup(localRank int, o communicator.Options, c collective.Options, result *handle, connect func() (*bootstrap.Bootstrap, error)) error {
	dev, err := openDevice(cmp.Or(o.Device, "auto"), localRank)
	if err != nil {
		return err
	}
	boot, err := connect()
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	comm, err := communicator.New(context.Background(), boot, dev, o)
	if err != nil {
		boot.Abort(err)
		return errors.Join(err, boot.Close(), dev.Close())
	}
	newGroup(comm, c, dev, boot.Close).store(result)
	return nil
}

// newGroup makes the object of a group, which owns its device. below closes what is below it, if
// it is not nil.
func newGroup(comm *communicator.Communicator, collectives collective.Options, dev *gpu.Device, below func() error) *object {
	g := &group{comm: comm, options: collectives, below: below}
	o := objects.add(nil, aGroup, g, g.close)
	g.device = addDevice(o, dev)
	g.device.owned = "the group's"
	return o
}

// workTime is how long what is queued has to end, once waits have.
const workTime = 30 * time.Second

// leaveGroups has the groups among objects that are to be closed leave, which ends the waits of their
// kernels, and then waits for what is queued on the streams among them, also retired ones: it uses what
// is closed next.
func leaveGroups(all []*object) (errs []error) {
	left := false
	for _, o := range all {
		if g, ok := o.value.(*group); ok {
			errs = append(errs, g.comm.Internal().Leave())
			left = true
		}
	}
	if !left {
		return nil
	}
	for _, o := range all {
		errs = append(errs, stopCapture(o))
	}
	for start := time.Now(); slices.ContainsFunc(all, busy) && time.Since(start) < workTime; {
		time.Sleep(100 * time.Microsecond)
	}
	return errs
}

// close frees what the group has, which it has left.
func (g *group) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	errs := []error{g.end(), g.runner.Close(context.Background()), g.before.Close(context.Background()), g.comm.Close()} // which wait for nobody now
	for _, f := range g.last {
		errs = append(errs, f())
	}
	if g.below != nil {
		errs = append(errs, g.below())
	}
	return errors.Join(errs...)
}

func (c *call) groupSplit(whole handle, color, key int, result *handle) error {
	return c.groupSplitConfigured(whole, color, key, nil, result)
}

func (c *call) groupSplitConfigured(whole handle, color, key int, config *C.mscclgo_group_config, result *handle) error {
	parent, g := get[*group](c.to("split a group"), aGroup, whole)
	need(c, result)
	collectives := g.options
	if config != nil {
		var err error
		collectives, err = configurePart(c.op, config)
		c.check(err)
	}
	comm, err := g.comm.Split(context.Background(), color, key)
	c.check(err)
	if comm == nil {
		*result = 0
		return nil
	}
	child := &group{comm: comm, device: g.device, options: collectives} // the parent's, which is closed after the child
	objects.add(parent, aGroup, child, child.close).store(result)
	return nil
}

// collectives returns the group's runner, which the first collective makes on all ranks, or carries from the
// group before.
func (g *group) collectives() (*collective.Runner, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	switch {
	case g.runner != nil:
	case g.before != nil:
		if g.captured, err = g.before.Reform(context.Background(), g.comm); err != nil {
			return nil, err
		}
		g.runner, g.before = g.before, nil
	default:
		if g.runner, err = collective.New(context.Background(), g.comm, g.options); err != nil {
			return nil, err
		}
	}
	return g.runner, nil
}

func (c *call) groupDestroy(group handle) error {
	return c.to("destroy a group").destroyAndCollect(aGroup, group)
}

// destroyAndCollect destroys what has a proxy.
func (c *call) destroyAndCollect(k kind, h handle) error {
	err := c.destroy(k, h)
	collectProxies()
	return err
}

// collectProxies has the memory of C freed of proxies that were closed, as soon as Go's collector finds it unused. A
// program of C or Python has little memory of Go's, so that the collector would not come by for long.
func collectProxies() {
	// Once no stack of this call points to it any more; one collection does not empty a sync.Pool.
	time.AfterFunc(10*time.Millisecond, func() { runtime.GC(); runtime.GC() })
}

func (c *call) groupRank(group handle, rank *C.int) error {
	return put(c, rank, C.int(c.to("get a rank").group(group).comm.Rank()), nil)
}

func (c *call) groupSize(group handle, size *C.int) error {
	return put(c, size, C.int(c.to("get the size of a group").group(group).comm.Size()), nil)
}

func (c *call) groupDevice(group handle, device *handle) error {
	return put(c, device, handle(c.to("get the device of a group").group(group).device.id), nil)
}

func (c *call) groupError(group handle) error {
	return c.to("get the error of a group").group(group).comm.Err()
}

func (c *call) groupAbort(group handle, why *C.char) error {
	g := c.to("abort a group").group(group)
	need(c, why)
	g.comm.Abort(mscclgo.Errorf(mscclgo.ErrAborted, "mscclgo: "+c.op, "%s", C.GoString(why)).At(g.comm.Rank(), mscclgo.NoRank))
	return nil
}

func (c *call) groupBarrier(group handle, ms int64) error {
	return c.to("wait at a barrier").group(group).comm.Barrier(c.within(ms))
}

func (c *call) groupAllGather(group handle, sent address, bytes uint64, received address, ms int64) error {
	g := c.to("gather from all ranks").group(group)
	if bytes > bootstrap.MaxMessage {
		return invalid(c.op, "%d bytes are more than a message may have", bytes)
	}
	mine := c.host(sent, bytes, reads)
	all := c.host(received, bytes*uint64(g.comm.Size()), writes)
	parts, err := g.comm.AllGather(c.within(ms), mine)
	c.check(err)
	for rank, part := range parts {
		if len(part) != len(mine) {
			return invalid(c.op, "rank %d sent %d bytes, and this one %d", rank, len(part), bytes)
		}
	}
	for rank, part := range parts { // a call that fails has stored nothing
		copy(all[rank*len(mine):], part)
	}
	return nil
}

func (c *call) groupBroadcast(group handle, root int, data address, bytes uint64, ms int64) error {
	g := c.to("broadcast to all ranks").group(group)
	how := writes
	if root == g.comm.Rank() {
		how = reads
	}
	mine := c.host(data, bytes, how)
	sent, err := g.comm.Broadcast(c.within(ms), root, mine)
	c.check(err)
	if len(sent) != len(mine) {
		return invalid(c.op, "rank %d sent %d bytes, and this rank expects %d", root, len(sent), len(mine))
	}
	if how == writes {
		copy(mine, sent)
	}
	return nil
}

func (c *call) groupSynchronize(group, stream handle, ms int64) error {
	g, s := c.to("synchronize a stream with its group").group(group), c.stream(stream)
	return g.comm.Synchronize(c.within(ms), s)
}

func (c *call) groupMaxBlocks(group, kernel handle, threads, shared int, blocks *C.int) error {
	g, k := c.to("agree on a number of blocks").group(group), c.kernel(kernel)
	need(c, blocks)
	// What is too much fits no block, which all ranks learn together.
	_ = k.allow(shared)
	n, err := g.comm.MaxBlocks(context.Background(), k.Kernel, threads, shared)
	return put(c, blocks, C.int(n), err)
}

// The handles for kernels, in C and in Go.
var (
	_ [unsafe.Sizeof(C.mscclgo_group_handle{})]byte       = [unsafe.Sizeof(devicecode.Group{})]byte{}
	_ [unsafe.Sizeof(C.mscclgo_peer_memory_handle{})]byte = [unsafe.Sizeof(devicecode.PeerMemory{})]byte{}
)

func (c *call) groupGetHandle(group handle, result *C.mscclgo_group_handle) error {
	g := c.to("get the handle of a group for kernels").group(group)
	need(c, result)
	h, err := g.comm.Group(context.Background())
	return putHandle(c, result, h, err)
}
