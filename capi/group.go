package main

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
	"github.com/mscclgo/mscclgo/internal/native"
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

//export capi_group_join
func capi_group_join(o *C.mscclgo_group_options, result *C.uintptr_t) C.mscclgo_status {
	return capi_group_join_configured(o, nil, result)
}

//export capi_group_join_configured
func capi_group_join_configured(o *C.mscclgo_group_options, c *C.mscclgo_group_config, result *C.uintptr_t) C.mscclgo_status {
	const op = "join the group of the environment"
	return call(func() error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		options, collectives, err := groupOptions(op, o, c)
		if err != nil {
			return err
		}
		readEnvironment()
		comm, err := communicator.Join(context.Background(), options)
		if err != nil {
			return err
		}
		native.TakeDevice(comm)
		newGroup(comm, collectives, comm.Device(), nil).store(result)
		return nil
	})
}

//export capi_group_connect
func capi_group_connect(id *C.char, rank, size C.int, o *C.mscclgo_group_options, result *C.uintptr_t) C.mscclgo_status {
	return capi_group_connect_configured(id, rank, size, o, nil, result)
}

//export capi_group_connect_configured
func capi_group_connect_configured(id *C.char, rank, size C.int, o *C.mscclgo_group_options, c *C.mscclgo_group_config, result *C.uintptr_t) C.mscclgo_status {
	const op = "connect a group"
	return call(func() error {
		if err := isNull(op, unsafe.Pointer(id), unsafe.Pointer(result)); err != nil {
			return err
		}
		options, collectives, err := groupOptions(op, o, c)
		if err != nil {
			return err
		}
		unique, err := bootstrap.ParseUniqueID(C.GoString(id))
		if err != nil {
			return err
		}
		localRank := 0
		if o != nil {
			localRank = int(o.local_rank)
		}
		return connectGroup(localRank, options, collectives, result, func() (*bootstrap.Bootstrap, error) {
			return bootstrap.Connect(context.Background(), bootstrap.Options{
				Rank: int(rank), Size: int(size), ID: unique, Timeout: options.Timeout,
				HeartbeatTimeout: options.HeartbeatTimeout, Logger: options.Logger,
			})
		})
	})
}

// connectGroup stores the handle of a group on a device that it opens, over the bootstrap that connect returns.
func connectGroup(localRank int, o communicator.Options, c collective.Options, result *C.uintptr_t, connect func() (*bootstrap.Bootstrap, error)) error {
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
			errs = append(errs, native.Leave(g.comm))
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

//export capi_group_split
func capi_group_split(handle C.uintptr_t, color, key C.int, result *C.uintptr_t) C.mscclgo_status {
	return capi_group_split_configured(handle, color, key, nil, result)
}

//export capi_group_split_configured
func capi_group_split_configured(handle C.uintptr_t, color, key C.int, c *C.mscclgo_group_config, result *C.uintptr_t) C.mscclgo_status {
	const op = "split a group"
	return withGroup(op, handle, func(parent *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		collectives := g.options
		if c != nil {
			var err error
			if collectives, err = configurePart(op, c); err != nil {
				return err
			}
		}
		comm, err := g.comm.Split(context.Background(), int(color), int(key))
		if err != nil {
			return err
		}
		if comm == nil {
			*result = 0
			return nil
		}
		child := &group{comm: comm, device: g.device, options: collectives} // the parent's, which is closed after the child
		objects.add(parent, aGroup, child, child.close).store(result)
		return nil
	})
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

//export capi_group_destroy
func capi_group_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return destroyAndCollect("destroy a group", aGroup, handle) })
}

// destroyAndCollect destroys what has a proxy.
func destroyAndCollect(op string, k kind, handle C.uintptr_t) error {
	err := objects.destroy(op, k, handle)
	collectProxies()
	return err
}

// collectProxies has the memory of C freed of proxies that were closed, as soon as Go's collector finds it unused. A
// program of C or Python has little memory of Go's, so that the collector would not come by for long.
func collectProxies() {
	// Once no stack of this call points to it any more; one collection does not empty a sync.Pool.
	time.AfterFunc(10*time.Millisecond, func() { runtime.GC(); runtime.GC() })
}

//export capi_group_rank
func capi_group_rank(handle C.uintptr_t, rank *C.int) C.mscclgo_status {
	const op = "get a rank"
	return withGroup(op, handle, func(_ *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(rank)); err != nil {
			return err
		}
		*rank = C.int(g.comm.Rank())
		return nil
	})
}

//export capi_group_size
func capi_group_size(handle C.uintptr_t, size *C.int) C.mscclgo_status {
	const op = "get the size of a group"
	return withGroup(op, handle, func(_ *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(size)); err != nil {
			return err
		}
		*size = C.int(g.comm.Size())
		return nil
	})
}

//export capi_group_device
func capi_group_device(handle C.uintptr_t, device *C.uintptr_t) C.mscclgo_status {
	const op = "get the device of a group"
	return withGroup(op, handle, func(_ *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(device)); err != nil {
			return err
		}
		g.device.store(device)
		return nil
	})
}

//export capi_group_error
func capi_group_error(handle C.uintptr_t) C.mscclgo_status {
	return withGroup("get the error of a group", handle, func(_ *object, g *group) error { return g.comm.Err() })
}

//export capi_group_abort
func capi_group_abort(handle C.uintptr_t, why *C.char) C.mscclgo_status {
	const op = "abort a group"
	return withGroup(op, handle, func(_ *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(why)); err != nil {
			return err
		}
		g.comm.Abort(mscclgo.Errorf(mscclgo.ErrAborted, "mscclgo: "+op, "%s", C.GoString(why)).At(g.comm.Rank(), mscclgo.NoRank))
		return nil
	})
}

//export capi_group_barrier
func capi_group_barrier(handle C.uintptr_t, ms C.int64_t) C.mscclgo_status {
	return withGroup("wait at a barrier", handle, func(_ *object, g *group) error {
		ctx, cancel := within(ms)
		defer cancel()
		return g.comm.Barrier(ctx)
	})
}

//export capi_group_all_gather
func capi_group_all_gather(handle C.uintptr_t, sent C.uintptr_t, bytes C.size_t, received C.uintptr_t, ms C.int64_t) C.mscclgo_status {
	const op = "gather from all ranks"
	return withGroup(op, handle, func(_ *object, g *group) error {
		if int64(bytes) < 0 || uint64(bytes) > bootstrap.MaxMessage {
			return invalid(op, "%d bytes are more than a message may have", uint64(bytes))
		}
		mine, err := hostBytes(op, sent, bytes, reads)
		if err != nil {
			return err
		}
		all, err := hostBytes(op, received, bytes*C.size_t(g.comm.Size()), writes)
		if err != nil {
			return err
		}
		ctx, cancel := within(ms)
		defer cancel()
		parts, err := g.comm.AllGather(ctx, mine)
		if err != nil {
			return err
		}
		for rank, part := range parts {
			if len(part) != int(bytes) {
				return invalid(op, "rank %d sent %d bytes, and this one %d", rank, len(part), uint64(bytes))
			}
		}
		for rank, part := range parts { // a call that fails has stored nothing
			copy(all[rank*int(bytes):], part)
		}
		return nil
	})
}

//export capi_group_broadcast
func capi_group_broadcast(handle C.uintptr_t, root C.int, data C.uintptr_t, bytes C.size_t, ms C.int64_t) C.mscclgo_status {
	const op = "broadcast to all ranks"
	return withGroup(op, handle, func(_ *object, g *group) error {
		how := writes
		if int(root) == g.comm.Rank() {
			how = reads
		}
		mine, err := hostBytes(op, data, bytes, how)
		if err != nil {
			return err
		}
		ctx, cancel := within(ms)
		defer cancel()
		sent, err := g.comm.Broadcast(ctx, int(root), mine)
		if err != nil {
			return err
		}
		if len(sent) != len(mine) {
			return invalid(op, "rank %d sent %d bytes, and this rank expects %d", int(root), len(sent), len(mine))
		}
		if how == writes {
			copy(mine, sent)
		}
		return nil
	})
}

//export capi_group_synchronize
func capi_group_synchronize(handle, stream C.uintptr_t, ms C.int64_t) C.mscclgo_status {
	const op = "synchronize a stream with its group"
	return withGroup(op, handle, func(_ *object, g *group) error {
		return of(op, aStream, stream, func(_ *object, s *gpu.Stream) error {
			ctx, cancel := within(ms)
			defer cancel()
			return g.comm.Synchronize(ctx, s)
		})
	})
}

//export capi_group_max_blocks
func capi_group_max_blocks(handle, launched C.uintptr_t, threads, shared C.int, blocks *C.int) C.mscclgo_status {
	const op = "agree on a number of blocks"
	return withGroup(op, handle, func(_ *object, g *group) error {
		return of(op, aKernel, launched, func(_ *object, k *kernel) error {
			if err := isNull(op, unsafe.Pointer(blocks)); err != nil {
				return err
			}
			// What is too much fits no block, which all ranks learn together.
			_ = k.allow(int(shared))
			n, err := g.comm.MaxBlocks(context.Background(), k.Kernel, int(threads), int(shared))
			if err == nil {
				*blocks = C.int(n)
			}
			return err
		})
	})
}

// The handles for kernels, in C and in Go. An array of a negative length does not compile.
var (
	_ [unsafe.Sizeof(C.mscclgo_group_handle{}) - unsafe.Sizeof(devicecode.Group{})]byte
	_ [unsafe.Sizeof(devicecode.Group{}) - unsafe.Sizeof(C.mscclgo_group_handle{})]byte
	_ [unsafe.Sizeof(C.mscclgo_peer_memory_handle{}) - unsafe.Sizeof(devicecode.PeerMemory{})]byte
	_ [unsafe.Sizeof(devicecode.PeerMemory{}) - unsafe.Sizeof(C.mscclgo_peer_memory_handle{})]byte
)

//export capi_group_get_handle
func capi_group_get_handle(handle C.uintptr_t, result *C.mscclgo_group_handle) C.mscclgo_status {
	const op = "get the handle of a group for kernels"
	return withGroup(op, handle, func(_ *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		h, err := g.comm.Group(context.Background())
		if err == nil {
			*(*devicecode.Group)(unsafe.Pointer(result)) = h
		}
		return err
	})
}
