package collective

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// Memory is a buffer of each rank that all ranks reach, as one rank sees it. Calls on any buffer may be given
// this rank's, and large messages that a [Group] receives there are stored by their senders.
//
// The algorithms that move data through the host, but for hier of what is for one rank, make
// channels at their first use with a pair of memories, and those that reduce an inbox, as large as the output and on
// several hosts some times as large. These belong to the memories: they are released when
// the first of the two is closed.
type Memory struct {
	*gpu.Buffer // this rank's
	runner      *Runner
	number      uint64 // of the runner's memories, the same on all ranks
	offset      uint64 // of a view in the memory that was shared
	peers       devicecode.PeerMemory
	shared      *communicator.PeerMemory
	theirs      []gpu.Ptr // by rank, where the others have mapped Buffer, or 0; nil for what Share did not make
	whole       *Memory   // what a view is of, else nil
	closed      atomic.Bool
}

// Share makes a buffer of each rank known to all; sizes may differ. The caller still owns
// the buffer, and closes the memory before it. Collective.
//
// Errors: those of [communicator.Communicator.Share].
func (r *Runner) Share(ctx context.Context, b *gpu.Buffer) (*Memory, error) {
	const op = "collective: share a buffer"
	if err := r.begin(op); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	shared, err := r.comm.Share(ctx, b)
	if err != nil {
		return nil, wrap(r.comm, op, err)
	}
	m, err := r.reach(b, shared)
	if err = r.tell(ctx, m, err); err != nil {
		return nil, wrap(r.comm, op, err)
	}
	return m, nil
}

// tell has all ranks know where the others have mapped their buffers. failed is why this rank has no memory,
// or nil. Where there is an error, the memory is released. Collective.
func (r *Runner) tell(ctx context.Context, m *Memory, failed error) error {
	mine := ""
	if failed == nil {
		mine = m.addresses()
	}
	told, err := r.exchange(ctx, "share a buffer", mine, failed)
	if err == nil {
		m.theirs = make([]gpu.Ptr, r.comm.Size())
		for rank, theirs := range told {
			if m.theirs[rank], err = readAddresses(theirs, r.comm.Rank(), r.comm.Size()); err != nil {
				err = r.because(rank, mscclgo.ErrRemote, "collective: share a buffer", "its message is malformed: %w", err)
				break
			}
		}
	}
	if err != nil && m != nil {
		delete(r.memories, m)
		return errors.Join(err, m.release())
	}
	return err
}

// share makes a buffer of each rank known to all, for this package. The caller holds mu. Collective.
func (r *Runner) share(ctx context.Context, b *gpu.Buffer) (*Memory, error) {
	shared, err := r.comm.Share(ctx, b)
	if err != nil {
		return nil, err
	}
	return r.reach(b, shared)
}

// reach makes the memory of a buffer that was shared, which it closes if there is an error. The caller
// holds mu.
func (r *Runner) reach(b *gpu.Buffer, shared *communicator.PeerMemory) (*Memory, error) {
	peers, err := shared.HostHandle()
	if err != nil {
		return nil, errors.Join(err, shared.Close())
	}
	m := &Memory{Buffer: b, runner: r, number: r.numbers, peers: peers, shared: shared}
	r.numbers++
	r.memories[m] = true
	return m, nil
}

// Slice returns a view of n bytes from offset, which all ranks use at the same
// offset. Channels for a view are its own: see [Memory.Close].
//
// Errors: ErrInvalid when the range is not inside m.
func (m *Memory) Slice(offset, n uint64) (*Memory, error) {
	if m == nil || m.runner == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "collective: slice a memory", "the memory was not shared; Runner.Share makes one")
	}
	b, err := m.Buffer.Slice(offset, n)
	if err != nil {
		return nil, err
	}
	v := &Memory{Buffer: b, runner: m.runner, number: m.number, offset: m.offset + offset, peers: m.peers, whole: m}
	v.peers.Shift(int(m.runner.group.Size), offset, 0)
	return v, nil
}

// Close waits until all ranks have called it, and releases the channels and inboxes
// that were made for the memory, and the mappings of the peers' buffers; then it returns
// when all ranks have, so that no kernel launched next is in their way. What was
// launched on the memory must have ended on this rank, groups that receive there too, and its
// operations and views must not be used any more. The caller still owns the buffer, and may close it then. In a
// group that has failed it waits for nobody. It is safe to call twice. Collective.
func (m *Memory) Close(ctx context.Context) error {
	if m == nil || m.runner == nil {
		return nil
	}
	r := m.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() || m.over() {
		return nil
	}
	m.closed.Store(true)
	return r.partWith(ctx, func() error {
		var errs []error
		for key, set := range r.hostPaths {
			if key.in.partOf(m) || key.out.partOf(m) {
				errs = append(errs, set.close())
				delete(r.hostPaths, key)
			}
		}
		errs = append(errs, m.release())
		delete(r.memories, m)
		return errors.Join(errs...)
	})
}

// release unmaps the peers' buffers.
func (m *Memory) release() error {
	m.closed.Store(true)
	if m.shared == nil {
		return nil
	}
	return m.shared.Close()
}

// over reports whether the memory, or what it is a view of, is closed.
func (m *Memory) over() bool { return m.closed.Load() || m.whole != nil && m.whole.over() }

// partOf reports whether the memory is whole, or a view of it. It is not if it is nil.
func (m *Memory) partOf(whole *Memory) bool {
	return m != nil && (m == whole || m.whole.partOf(whole))
}

// String describes the memory among those of the runner.
func (m *Memory) String() string {
	if m == nil {
		return "no memory"
	}
	return fmt.Sprintf("memory %d from byte %d", m.number, m.offset)
}

// begin locks mu for a method, whose errors have this op, and returns the error of a
// runner that is not usable. Then mu is not locked.
func (r *Runner) begin(op string) error {
	if err := r.made(op); err != nil {
		return err
	}
	r.mu.Lock()
	err := r.usable(op)
	if err != nil {
		r.mu.Unlock()
	}
	return err
}

// made returns the error of a runner that New did not make.
func (r *Runner) made(op string) error {
	if r == nil || r.comm == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the runner is nil; New makes one")
	}
	return nil
}

// usable returns the error of a use of a closed runner or communicator, or of a failed
// group. The caller holds mu.
func (r *Runner) usable(op string) error {
	switch {
	case r.closed.Load():
		return r.invalidUse(op, "the runner is closed")
	case r.order.over():
		return r.invalidUse(op, "the communicator is closed")
	}
	if err := r.comm.Err(); err != nil {
		return wrap(r.comm, op, fmt.Errorf("the group has failed: %w", err))
	}
	return nil
}
