package communicator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// lazyPipes is what pipes of PipeOptions.Lazy have of each peer.
type lazyPipes struct {
	p      *Pipes
	tag    uint64         // of messages between two ranks that open pipes
	closed semaphores     // the channel that handles name which are not open
	still  table          // zeros, which these handles wait for
	peers  map[int]*turns // never changes

	registering sync.Mutex
	buffer      *registeredmem.Memory // options.Buffer, or nil before the first Open
	register    func(*gpu.Buffer) (*registeredmem.Memory, error)

	mu     sync.Mutex
	opened map[int]*Pipes // by peer
	over   bool           // the pipes are closed
}

// turns is what the Opens of one peer's pipes take one after the other.
type turns struct {
	turn       chan bool // has room for the one whose turn it is
	unfinished *opening  // of an Open that failed when the peer may have gone on, or nil: its kernels may write there
}

// opening is what this rank has made of the pipes to and from a peer.
type opening struct {
	q      *Pipes
	m      *meeting
	failed error // to show them
}

// leaveClosed makes the handles of lazy pipes that are not open. Kernels with checks report their use; in
// others a call waits, and fails with a name that says what is missing.
func (p *Pipes) leaveClosed(values []layout.Pipe) error {
	c, o := p.sems.c, &p.options
	p.size.LotSlots = 0 // Open knows how many
	p.sems.called()
	l := &lazyPipes{p: p, tag: pipeTag + p.sems.call, closed: semaphores{c: c, call: p.sems.call, name: "unopened " + o.Name}, peers: map[int]*turns{}, register: p.sems.register, opened: map[int]*Pipes{}}
	p.lazy = l
	if len(p.ends) == 0 {
		return nil
	}
	if err := store(&l.still, c.private, []layout.PipeControl{{}}); err != nil {
		return err
	}
	zeros := l.still.memory
	number := l.closed.number(0, 0)
	for at, e := range p.ends {
		if l.peers[e.peer] == nil {
			l.peers[e.peer] = &turns{turn: make(chan bool, 1)}
		}
		h := &values[at]
		h.Flags = layout.PipeUnopened
		if e.sends {
			h.Flags |= layout.PipeSends | layout.PipePosts // so that it waits before it writes
		}
		h.Semaphore = layout.Device2DeviceSemaphore{Inbound: zeros.Ptr(), Outbound: zeros.Ptr(), Watch: layout.Watch(c.watch(e.peer, number))}
		h.Control, h.SlotBytes, h.SlotCount = zeros.Ptr(), p.size.SlotBytes, uint32(p.size.Slots)
	}
	return nil
}

// Open connects lazy pipes to and from ranks, of To and From, for kernels that are launched afterwards; in
// graphs too, as sets and handles stay where they are. Each of these ranks names this one in an Open of its
// own: both calls return when the pipes of the two are connected, and no other rank takes part. Ranks that are
// open, and pipes that are not lazy, cost nothing. Any goroutine may call it.
//
// After an error, which joins the errors of several ranks, the pipes to other ranks may be open. The rest may be
// opened again: at once where the other rank's Open has worked, else when that rank opens them again too.
//
// Ranks that open their pipes one rank after the other can wait for each other in a circle. The error tells so
// when their time is up. One Open that names all the ranks never does.
//
// Errors: ErrTimeout, naming the rank, when it does not call Open in time; ErrInvalid for a rank without pipes,
// when the pool of either rank has no room, and for pipes that are closed or nil; ErrRemote when the rank's part failed or
// its pipes are closed; as for [registeredmem.Registry.Import] and [connection.Endpoint].
func (p *Pipes) Open(ctx context.Context, ranks ...int) error {
	if !p.made() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: open pipes", "the pipes are nil; Communicator.Pipes makes them")
	}
	l, c := p.lazy, p.sems.c
	var wanted []int
	for _, rank := range ranks {
		switch {
		case !slices.Contains(p.options.To, rank) && !slices.Contains(p.options.From, rank):
			return c.invalid(openOp(rank), "there are no pipes to or from it")
		case l != nil && l.openedTo(rank) == nil && !slices.Contains(wanted, rank):
			wanted = append(wanted, rank)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	if err := c.usable(openOp(wanted[0])); err != nil {
		return err
	}
	// Under an explorer of schedules, in whose order all pairs of an Open of all ranks end.
	if c.turn() != nil || len(wanted) == 1 {
		slices.SortFunc(wanted, func(a, b int) int {
			return cmp.Or(min(a, c.Rank())-min(b, c.Rank()), max(a, c.Rank())-max(b, c.Rank()))
		})
		for _, rank := range wanted {
			if err := l.open(ctx, rank); err != nil {
				return err
			}
		}
		return nil
	}
	// Together, as ranks name each other in any order.
	errs := make([]error, len(wanted))
	var all sync.WaitGroup
	for i, rank := range wanted {
		all.Go(func() { errs[i] = l.open(ctx, rank) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func openOp(rank int) string {
	return fmt.Sprintf("communicator: open pipes to and from rank %d", rank)
}

// open is Open for one rank.
func (l *lazyPipes) open(ctx context.Context, rank int) error {
	c, op, d := l.p.sems.c, openOp(rank), l.peers[rank]
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	select {
	case d.turn <- true:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, op, "another Open of this rank waits for it").At(c.Rank(), rank)
	}
	if l.isOver() {
		return c.invalid(op, "the pipes are closed")
	}
	if l.openedTo(rank) != nil {
		return nil
	}
	resumes := d.unfinished != nil
	var err error
	if resumes {
		err = l.attempt(ctx, d, d.unfinished)
	}
	if !resumes || watch.OfFailedPart(err) { // which opens them anew
		h := &opening{q: l.part(rank), m: newMeeting(c, "Open", op, rank, l.tag, maxContribution)}
		h.m.missing = "it does not open its pipes to and from this rank; each of the two names the other in Open, which takes several ranks"
		err = l.attempt(ctx, d, h)
	}
	if err == nil {
		return nil
	}
	return c.ours(c.causeFirst(err))
}

// attempt makes the pipes to and from a rank, or goes on with what an Open before has made of them.
func (l *lazyPipes) attempt(ctx context.Context, d *turns, h *opening) error {
	if h.failed != nil {
		return h.failed
	}
	resumes := h == d.unfinished
	goesOn := resumes
	defer h.m.askSoon(ctx)()
	err := l.p.sems.c.waitIn(h.m.name, h.m.op, h.m.peer, func() (err error) {
		if resumes {
			return h.m.resume(ctx)
		}
		goesOn, err = h.q.meet(ctx, l, h.m)
		return err
	})
	if err == nil {
		h.failed, goesOn = l.show(h.m.op, h.m.peer, h.q), true
		err = h.failed
	}
	d.unfinished = nil
	switch {
	case err == nil:
		h.q.unreserve()
	case goesOn && !watch.OfFailedPart(err):
		d.unfinished = h
	default:
		err = errors.Join(err, h.close())
	}
	return err
}

func (h *opening) close() error {
	h.q.unreserve()
	return h.q.Close()
}

// part returns the pipes to and from one rank, which are not made yet.
func (l *lazyPipes) part(rank int) *Pipes {
	c, o := l.p.sems.c, l.p.options
	other := func(peer int) bool { return peer != rank }
	o.Lazy, o.To, o.From = false, slices.DeleteFunc(slices.Clone(o.To), other), slices.DeleteFunc(slices.Clone(o.From), other)
	q := newPipes(c, o)
	q.size, q.open = l.p.size, false
	q.sems = semaphores{c: c, perPeer: l.p.sems.perPeer, pair: true, name: o.Name, call: l.p.sems.call}
	return q
}

// registered returns options.Buffer, which the first Open registers, or the next one after an error.
func (l *lazyPipes) registered() (*registeredmem.Memory, error) {
	l.registering.Lock()
	defer l.registering.Unlock()
	if l.buffer != nil {
		return l.buffer, nil
	}
	m, err := l.register(l.p.options.Buffer)
	if err != nil {
		return nil, err
	}
	l.buffer = m
	return m, nil
}

// meet makes the pipes to and from one rank with that rank. If it fails, it reports whether the peer may go on
// with this rank's ends.
func (p *Pipes) meet(ctx context.Context, lazy *lazyPipes, m *meeting) (goesOn bool, err error) {
	defer p.closeEndpoints()
	size := p.size
	if p.options.Buffer != nil {
		p.buffer, err = lazy.registered()
	}
	var mine []byte
	if err == nil {
		mine, err = p.prepare(m.op)
	}
	theirs, err := m.exchange(ctx, mine, err)
	if err != nil {
		return false, err
	}
	p.size = size
	joined := false
	err = m.part(ctx, func(ctx context.Context) error {
		err := p.join(ctx, m, theirs)
		joined = err == nil
		return err
	})
	return joined && !watch.OfFailedPart(err), err
}

// join makes this rank's ends by the offer of the one peer.
func (p *Pipes) join(ctx context.Context, m *meeting, theirs []byte) error {
	k := &call{c: m.c, op: m.op}
	offer, err := decodePipeOffer(theirs, m.c.Size())
	if err != nil {
		return k.errorf(mscclgo.ErrRemote, m.peer, "its offer is malformed: %w", err)
	}
	if err := p.compare(k, m.peer, offer, offer.size); err != nil {
		return err
	}
	offers := make([]*pipeOffer, m.c.Size())
	offers[m.peer] = offer
	return p.makeEnds(ctx, k, offers)
}

// show has the service serve pipes that have been made, and writes their handles where kernels find them.
func (l *lazyPipes) show(op string, rank int, q *Pipes) error {
	if err := q.serve(); err != nil {
		return err
	}
	next := 0 // the ends of one peer are in one order in both
	for at, e := range l.p.ends {
		if e.peer != rank {
			continue
		}
		h, size := []layout.Pipe{q.ends[next].pipe.Handle()}, sizeIn[layout.Pipe](1)
		next++
		b, err := l.p.handles.memory.Slice(uint64(at)*size, size)
		if err == nil {
			err = gpu.CopyIn(b, h)
		}
		if err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return l.p.sems.c.invalid(op, "the pipes were closed meanwhile")
	}
	l.opened[rank] = q
	return nil
}

// openedTo returns the pipes to and from a rank if they are open, else nil.
func (l *lazyPipes) openedTo(rank int) *Pipes {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened[rank]
}

func (l *lazyPipes) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// close closes all that was opened, once no Open is under way. It does nothing on nil, or the second time.
func (l *lazyPipes) close() error {
	if l == nil || l.isOver() {
		return nil
	}
	l.mu.Lock()
	opened := l.opened
	l.opened, l.over = nil, true
	l.mu.Unlock()
	var errs []error
	for rank, d := range l.peers {
		d.turn <- true
		errs = append(errs, opened[rank].Close())
		if d.unfinished != nil {
			errs = append(errs, d.unfinished.close())
			d.unfinished = nil
		}
		<-d.turn
		switch {
		case opened[rank] != nil:
			l.p.sems.c.forgetOpener(rank, l.tag)
		case rank != l.p.sems.c.Rank():
			l.p.sems.c.turnAway(rank, l.tag)
		}
	}
	errs = append(errs, l.closed.close())
	l.still.free(l.p.sems.c.private)
	return errors.Join(errs...)
}

// asksAfter is how long a rank waits in Open before it asks whether the other has closed its pipes.
const asksAfter = 200 * time.Millisecond

// inquiry is what a rank that waits in Open asks: the tag of the pipes, and the number of its call.
type inquiry struct{ tag, number uint64 }

var inquiryWire = wire.For[inquiry]()

// askSoon asks the peer of an Open, if that lasts, whether it has closed its pipes. The caller ends it.
func (m *meeting) askSoon(ctx context.Context) (end func() bool) {
	if m.c.turn() != nil { // under an explorer of schedules nothing comes of itself
		return func() bool { return true }
	}
	return time.AfterFunc(asksAfter, func() {
		m.c.boot.Send(ctx, m.peer, inquiryTag, inquiryWire.Marshal(&inquiry{m.tag, m.mine})) // of a failure the Open hears itself
	}).Stop
}

// opener is what this rank knows of another that opens lazy pipes, by the tags of these.
type opener struct {
	closed map[uint64]bool   // this rank has closed them, and the other may open them
	asked  map[uint64]uint64 // the number of its newest call, of pipes that were not closed when it asked
}

// turnAway has a rank that opens its pipes to and from this one hear that they are closed here.
func (c *Communicator) turnAway(rank int, tag uint64) {
	if c.turn() != nil {
		return
	}
	c.mu.Lock()
	v := c.openers[rank]
	if v == nil {
		v = &opener{map[uint64]bool{}, map[uint64]uint64{}}
		if c.openers == nil {
			c.openers = map[int]*opener{}
		}
		c.openers[rank] = v
		defer c.afterwards(func(ctx context.Context) { c.answerInquiries(ctx, rank) })
	}
	v.closed[tag] = true
	number, waits := v.asked[tag]
	delete(v.asked, tag)
	c.mu.Unlock()
	if waits {
		c.afterwards(func(ctx context.Context) { c.turnedAway(ctx, rank, inquiry{tag, number}) })
	}
}

// forgetOpener is turnAway of pipes that were open.
func (c *Communicator) forgetOpener(rank int, tag uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.openers[rank]; v != nil {
		delete(v.asked, tag)
	}
}

// answerInquiries answers a rank's inquiries until ctx ends.
func (c *Communicator) answerInquiries(ctx context.Context, rank int) {
	for {
		b, err := c.boot.Recv(ctx, rank, inquiryTag)
		if err != nil {
			return
		}
		q, err := inquiryWire.Unmarshal(b)
		if err != nil {
			c.options.Logger.Warn("an inquiry is malformed", "rank", c.Rank(), "peer", rank, "error", err)
			return
		}
		c.mu.Lock()
		v := c.openers[rank]
		closed := v.closed[q.tag]
		if !closed {
			v.asked[q.tag] = q.number
		}
		c.mu.Unlock()
		if closed {
			c.turnedAway(ctx, rank, q)
		}
	}
}

// turnedAway tells a rank that asked.
func (c *Communicator) turnedAway(ctx context.Context, rank int, q inquiry) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	m := newMeeting(c, "Open", openOp(rank), rank, q.tag, maxContribution)
	m.theirs = q.number
	m.send(ctx, meetingMessage{failed: watch.FailedPart{Kind: mscclgo.ErrRemote, Text: "its pipes are closed"}}) // a rank that has left does not wait
}
