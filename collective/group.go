package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// Group is sends and receives of one rank that are launched together, as one kernel. There may
// be any number, with any peers, sizes and types, in any order. [Runner.Group] begins one. It is
// for one goroutine at a time. A message has fewer than 2^38 bytes; a group has at most 2^24-1
// messages, and at most 2^20-1 to a rank, and as many from it.
//
// # Matching
//
// The messages from a rank to another are received in the order in which they were sent, within
// groups and across them, also across graphs. A receive has the count and type of its send;
// where it has not, the group of ranks fails with an error that names both, and nothing is
// written for it. Messages of 0 elements are matched like others. A rank may send to itself;
// it then receives that in the same group.
//
// All messages of a group progress together, so that it does not matter in what order ranks
// name them. Groups do not: a group ends when its sends are copied from their buffers and the
// peers' receives of them have begun, and when its own receives are complete. What goes to other
// hosts has come there then. So two ranks that send to each other do it in one group each. Where
// a peer never makes the matching send or receive, the wait ends by the communicator's timeout,
// and the error tells who waited for whom.
//
// # Who calls
//
// Only ranks that have messages launch a group, on any streams. But the first one of a
// runner is launched by all ranks, if need be with no message, unless [Runner.LoadGroups]
// or [Runner.AllToAllV] was called: it prepares what all later ones need.
//
// # Large messages
//
// The sender of a message of more than 2 MiB stores it where it belongs if the receiver is on the same
// host, and receives into open memory of [Runner.Share] of this runner. Otherwise the message is copied
// twice. The sender's buffer may be any. A graph that receives such messages is not launched once the
// memory is closed.
//
// # Streams
//
// Messages may be on several streams. The kernel runs on the stream of the first message, once earlier work
// of all these streams is done, and all go on when it has ended. A group may be captured: then all
// its streams take part in the capture.
//
// Groups keep their place among this rank's other calls on the communicator, so ranks that also make
// collective calls make both in the same order. An all-to-all with counts has a message for each pair
// of ranks. It is numbered together with the messages of groups, and matches none of these.
type Group struct {
	runner   *Runner
	messages []message
	ofAll    bool   // it is of a call that all ranks make
	unplaced bool   // large messages are not stored where they belong
	waits    bool   // its kernel begins when the kernel before has ended
	blocks   uint64 // a task for each of so many blocks is enough, alike on all ranks; 0 for no bound
	name     string // of the last launch, which had so many messages
	named    int
}

// message is a send or a receive.
type message struct {
	stream   *gpu.Stream
	buffer   *gpu.Buffer
	address  gpu.Ptr // where the message is if it has no buffer
	count    uint64
	typ      Type
	peer     int
	receives bool
}

// mostMessage bounds a message, for group.cu; bytes.
const mostMessage = 1 << 38

func (m *message) bytes() uint64 { return m.count * uint64(m.typ.Size()) }

func (m *message) at() gpu.Ptr {
	if m.buffer == nil {
		return m.address
	}
	return m.buffer.Ptr()
}

// op is what errors of the message name.
func (m *message) op() string {
	if m.receives {
		return fmt.Sprintf("collective: receive of %d %v from rank %d", m.count, m.typ, m.peer)
	}
	return fmt.Sprintf("collective: send of %d %v to rank %d", m.count, m.typ, m.peer)
}

// Group begins a group of sends and receives.
func (r *Runner) Group() *Group { return &Group{runner: r} }

// Send adds a send of the first count elements of b to a rank. The buffer is any of the
// communicator's device, at any alignment; it may be nil if count is 0. [Group.Launch] reports
// what is wrong with the message.
func (g *Group) Send(s *gpu.Stream, b *gpu.Buffer, count uint64, t Type, to int) {
	g.add(message{s, b, 0, count, t, to, false})
}

// Recv adds a receive of count elements from a rank, into b; see [Group.Send]. It must not overlap
// anything else of the group, but a message to this rank itself may stay where it is.
func (g *Group) Recv(s *gpu.Stream, b *gpu.Buffer, count uint64, t Type, from int) {
	g.add(message{s, b, 0, count, t, from, true})
}

// add adds a message. Launch tells of a group that is nil.
func (g *Group) add(m message) {
	if g != nil {
		g.messages = append(g.messages, m)
	}
}

// Send sends the first count elements of b to a rank, as a group of its own; see [Group].
func (r *Runner) Send(s *gpu.Stream, b *gpu.Buffer, count uint64, t Type, to int) error {
	g := r.Group()
	g.Send(s, b, count, t, to)
	return g.Launch()
}

// Recv receives count elements from a rank into b, as a group of its own; see [Group].
func (r *Runner) Recv(s *gpu.Stream, b *gpu.Buffer, count uint64, t Type, from int) error {
	g := r.Group()
	g.Recv(s, b, count, t, from)
	return g.Launch()
}

// LoadGroups prepares what groups of sends and receives need, so that the first one only
// queues, and concerns only ranks that have messages. Collective each time, also where they are prepared. After
// an error of a context, on any rank, all may call it again, also ranks on which it worked.
//
// Errors: ErrTimeout where a rank does not come; the error of the group of ranks, if it has
// failed; as for [devicecode.Load].
func (r *Runner) LoadGroups(ctx context.Context) error {
	const op = "collective: prepare groups of sends and receives"
	if err := r.begin(op); err != nil {
		return err
	}
	defer r.mu.Unlock()
	return wrap(r.comm, op, r.groups.loadTogether(ctx, r))
}

// Launch queues the group and returns. The group is then empty, and may be filled again, also
// where there is an error.
//
// A group of more than 65536 messages allocates memory if the runner had none so large, for
// which the driver may wait until running kernels have ended; where one of them is large, each that is
// received counts as two. Others do not once groups were loaded.
//
// Errors: ErrInvalid, naming the message, for invalid counts, types, ranks, streams and buffers,
// such as a buffer that was closed; for a message of this rank to itself that it does not
// receive; and when a graph is launched whose buffers were closed since, or the memory of a large message. Nothing is queued after
// these. What only the peers' groups show is the error of the group of ranks; see [Group].
func (g *Group) Launch() error {
	if g == nil || g.runner == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "collective: launch a group", "the group has no runner; Runner.Group begins one")
	}
	defer func() {
		g.messages = emptied(g.messages) // which keeps no buffers
	}()
	r, op := g.runner, g.op()
	if err := r.begin(op); err != nil {
		return err
	}
	defer r.mu.Unlock()
	defer r.groups.empty()
	for i := range g.messages {
		if err := g.messages[i].check(r); err != nil {
			return err
		}
	}
	streams, err := g.streams()
	if err != nil {
		return wrap(r.comm, op, err)
	}
	g.sort()
	if err := g.apart(); err != nil {
		return err
	}
	table, err := g.table()
	if err != nil {
		return err
	}
	if !r.groups.loaded() {
		if len(streams) > 0 {
			err = mayWait(streams[0], "group of sends and receives of a runner", ", or call Runner.LoadGroups")
		}
		if err == nil {
			err = r.groups.loadTogether(context.Background(), r)
		}
		if err != nil {
			return wrap(r.comm, op, err)
		}
	}
	if len(g.messages) == 0 {
		return nil
	}
	return wrap(r.comm, op, g.queue(op, streams, table))
}

// op is what errors of the group name. Programs launch groups of the same size again and again.
func (g *Group) op() string {
	if g.name == "" || g.named != len(g.messages) {
		g.name, g.named = fmt.Sprintf("collective: group of %d sends and receives", len(g.messages)), len(g.messages)
	}
	return g.name
}

// check returns the error of a message that is wrong by itself.
func (m *message) check(r *Runner) error {
	invalid := func(format string, args ...any) error { return r.invalidUse(m.op(), format, args...) }
	switch {
	case !m.typ.valid():
		return invalid("there is no element %v", m.typ)
	case m.peer < 0 || m.peer >= r.comm.Size():
		return invalid("there are ranks 0 to %d", r.comm.Size()-1)
	case m.count >= mostMessage/uint64(m.typ.Size()):
		return invalid("a message has fewer than %d bytes", uint64(mostMessage))
	}
	usable := func(op string) error {
		if err := r.checkStream(m.stream, op); err != nil || m.count == 0 {
			return err
		}
		return r.checkBuffer(m.stream, m.buffer, op, m.bytes())
	}
	if usable("") == nil {
		return nil
	}
	return usable(m.op()) // whose text takes longer to make than the rest
}

// streams returns the streams of the messages, each once.
func (g *Group) streams() (all []*gpu.Stream, err error) {
	for i := range g.messages {
		if s := g.messages[i].stream; !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, s := range all[min(1, len(all)):] {
		if s.Internal().Capture() != all[0].Internal().Capture() {
			return nil, errors.New("its streams do not all take part in the same capture")
		}
	}
	return all, nil
}

// apart returns the error of a receive that overlaps with another message. Where the send and the receive of what this rank
// sends to itself are of one place, nothing is written.
func (g *Group) apart() error {
	groups, me := &g.runner.groups, g.runner.comm.Rank()
	sends, extents := groups.sends[me], groups.extents[:0]
	for i := range g.messages {
		m := &g.messages[i]
		stays := false
		if m.receives && m.peer == me && len(sends) > 0 {
			s := sends[0]
			sends = sends[1:]
			stays = m.count > 0 && s.count > 0 && m.buffer.Ptr() == s.buffer.Ptr() && m.bytes() == s.bytes()
		}
		if m.count > 0 {
			extents = append(extents, extent{m.buffer.Ptr(), m.bytes(), m.receives && !stays, i})
		}
	}
	other, e := overlapping(extents)
	if e == nil {
		groups.extents = emptied(extents)
		return nil
	}
	return g.runner.invalidUse(g.messages[e.of].op(), "its buffer overlaps with another's: %s", g.messages[other.of].op()[len("collective: "):])
}

// queue queues the group, whose streams join before and go on after it.
func (g *Group) queue(op string, streams []*gpu.Stream, table *groupTable) error {
	r, main := g.runner, streams[0]
	if err := r.groups.join(main, streams[1:]); err != nil {
		return err
	}
	call := &orderedCall{op: op}
	if main.Internal().Capture() != 0 {
		for i := range g.messages {
			call.sides = append(call.sides, side{g.messages[i].buffer, g.messages[i].bytes()})
		}
	}
	err := r.groups.do(r, main, call, table) // after which the kernel may be queued, also where there is an error
	return errors.Join(err, r.groups.part(main, streams[1:]))
}

// do has a table's kernel be a call in the runner's order.
func (g *groups) do(r *Runner, s *gpu.Stream, call *orderedCall, table *groupTable) error {
	call.uses = slices.Concat(call.uses, g.plan.uses, table.used)
	call.queue = func(s *gpu.Stream) error {
		l := g.launch(r, table, g.blocks, g.sizes.blocks, g.sizes.threads)
		return l.queue(s)
	}
	return r.order.do(s, call)
}
