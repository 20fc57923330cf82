package collective

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Memory is a buffer of each rank that all ranks reach, as one rank sees it. Calls on any buffer take
// this rank's buffer too. A [Group] receives large messages there without a copy: their senders store them.
//
// Algorithms that move data through the host make channels at their first use with a pair of memories.
// Only hier of a gather, a scatter or an all-to-all makes none. If such an algorithm reduces, it also
// makes an inbox, as large as the output or, on several hosts, some times as large. Channels and inbox
// are released when the first of the two memories is closed.
type Memory struct {
	*gpu.Buffer // this rank's
	runner      *Runner
	number      uint64            // of the runner's memories, the same on all ranks
	offset      uint64            // of a view in the memory that was shared
	at          layout.PeerMemory // of what is no view; see peers
	shared      *communicator.PeerMemory
	theirs      []gpu.Ptr // by rank, where the others have mapped Buffer, or 0; nil for what Share did not make
	placed      *validity // of groups whose senders store there
	offered     bool      // there was such a group; written with the runner's mu held
	whole       *Memory   // what a view is of, else nil
	generation  uint64    // Runner.generation when it was shared or carried
	closed      atomic.Bool
}

// Share makes a buffer of each rank known to all; sizes may differ. The caller still owns
// the buffer, and closes the memory before it. Collective. After an error of a context, on any rank, all may call it
// again, also ranks on which it worked: a memory that only some ranks have is closed with the runner.
//
// Errors: as for [communicator.Communicator.Share].
func (r *Runner) Share(ctx context.Context, b *gpu.Buffer) (*Memory, error) {
	const op = "collective: share a buffer"
	if err := r.begin(op); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	ctx = r.comm.Internal().Operation(ctx, "share a buffer of a runner")
	shared, err := r.comm.Share(ctx, b)
	if err != nil {
		return nil, wrap(r.comm, op, err)
	}
	m := &Memory{Buffer: b, runner: r, number: r.numbers}
	r.numbers++
	if err := r.tell(ctx, m, false, r.keep(m, shared)); err != nil {
		delete(r.memories, m)
		return nil, wrap(r.comm, op, errors.Join(err, shared.Close()))
	}
	return m, nil
}

// sharedAt is what a rank tells of a memory: the number that it gives it, and where it has mapped the ranks' buffers.
type sharedAt struct {
	proposal
	addresses []gpu.Ptr
}

var sharedAts = wire.For[sharedAt]()

// tell has all ranks know where the others have mapped their buffers, and gives the memory the number that they know it
// by. failed is why this rank has no memory, or nil. Collective.
func (r *Runner) tell(ctx context.Context, m *Memory, carried bool, failed error) error {
	var mine sharedAt
	if failed == nil {
		mine = sharedAt{proposal{carried, m.number}, m.addresses()}
	}
	told, err := exchangeValues(ctx, r, "share a buffer", sharedAts, mine, failed)
	if err != nil {
		return err
	}
	at, agreed := make([]gpu.Ptr, r.comm.Size()), proposal{}
	for rank, theirs := range told {
		if len(theirs.addresses) != len(told) {
			return r.because(rank, mscclgo.ErrRemote, "collective: share a buffer", "it tells of %d buffers, and there are %d ranks", len(theirs.addresses), len(told))
		}
		at[rank], agreed = theirs.addresses[r.comm.Rank()], agreed.or(theirs.proposal)
	}
	m.number = agreed.number // ranks on which an earlier call failed have lower ones
	r.numbers = max(r.numbers, m.number+1)
	m.theirs, m.placed = at, r.validity(m.placed, printOf(m.Buffer, at))
	return nil
}

// keep makes what was shared a memory of the runner's. The caller holds mu.
func (r *Runner) keep(m *Memory, shared *communicator.PeerMemory) error {
	handle, err := shared.HostHandle()
	if err != nil {
		return err
	}
	m.at = handle.Internal()
	m.shared, m.generation = shared, r.generation.Load()
	r.memories[m] = true
	return nil
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
	return &Memory{Buffer: b, runner: m.runner, offset: m.offset + offset, whole: m}, nil
}

// root returns the memory that was shared.
func (m *Memory) root() *Memory {
	for m.whole != nil {
		m = m.whole
	}
	return m
}

// peers returns where all ranks of the host have the memory, nowhere if it is nil.
func (m *Memory) peers() layout.PeerMemory {
	if m == nil {
		return layout.PeerMemory{}
	}
	at := m.root().at
	at.Shift(int(m.runner.group.Size), m.offset, 0)
	return at
}

// Close waits until all ranks have called it, and releases the channels and inboxes that were made for
// the memory, and the mappings of the peers' buffers. It returns when all ranks have released theirs, so
// that no kernel launched next is in their way. Calls on the memory must have ended on this rank, also
// groups that receive there, and its operations and views must not be used any more. The caller still
// owns the buffer, and may close it then. In a group that has failed it waits for nobody, nor if
// the memory was not carried to the runner's group. It is safe to call twice. Collective.
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
	release := func() (err error) {
		for key, path := range r.hostPaths {
			if key.in.partOf(m) || key.out.partOf(m) {
				err = errors.Join(err, path.close())
				delete(r.hostPaths, key)
			}
		}
		delete(r.memories, m)
		return errors.Join(err, m.release())
	}
	if m.left() { // newcomers do not have it
		return release()
	}
	return r.partWith(ctx, release)
}

// release unmaps the peers' buffers.
func (m *Memory) release() error {
	m.closed.Store(true)
	if m.shared == nil {
		return nil
	}
	return m.shared.Close()
}

// left reports whether the memory is of a group that the runner has left, and was not carried to
// the next. The caller holds the runner's mu.
func (m *Memory) left() bool { return m.root().generation != m.runner.generation.Load() }

// wrong implements use. A *validity has the errors of memory that was not carried.
func (m *Memory) wrong() string {
	if m.over() {
		return m.String() + usesClosed
	}
	return ""
}

// over reports whether the memory, or what it is a view of, is closed.
func (m *Memory) over() bool { return m.closed.Load() || m.whole != nil && m.whole.over() }

// partOf reports whether the memory is whole, or a view of it. It is not if it is nil.
func (m *Memory) partOf(whole *Memory) bool {
	return m != nil && (m == whole || m.whole.partOf(whole))
}

// String describes the memory among the runner's memories.
func (m *Memory) String() string {
	if m == nil {
		return "no memory"
	}
	return fmt.Sprintf("memory %d from byte %d", m.root().number, m.offset)
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
	case !r.order.serves(r.comm): // whose Close has closed the runner
		return r.invalidUse(op, "the communicator is closed, or was re-formed: Runner.Reform carries the runner to the next group")
	case r.closed.Load():
		return r.invalidUse(op, "the runner is closed")
	case r.joining:
		return r.invalidUse(op, "its Reform has failed; call it again with the next group")
	}
	if err := r.comm.Err(); err != nil {
		return wrap(r.comm, op, fmt.Errorf("the group has failed: %w", err))
	}
	return nil
}
