package message

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// inlineLimit is the most bytes that the queue keeps of one operation, in ordinary
// memory: 4 MiB in all if every operation has as many.
const inlineLimit = 4 << 10

// Depth is the number of operations that may wait to be sent; a power of two. The next one
// waits for room.
const Depth = 1024

// Op is an operation in the queue.
type Op struct {
	Kind   Kind
	Memory uint32 // of the peer
	Offset uint64
	// Of a write: its size, how much of it is sent, and its source.
	N, Given  uint64
	Src       *gpu.Buffer // nil: the bytes are in Data
	SrcOffset uint64
	Data      []byte // belongs to the place in the queue, which uses it again
	// Of an update, and of an addition and an exchange the value, To.
	From, To uint64
	// Of a read and an exchange: N bytes come here.
	Into       *target.Memory
	IntoOffset uint64

	After uint64 // the carrier's: what must be answered before it is sent
}

// Frame returns the head of what is not sent of an operation, which is the connection's number op.
func (o *Op) Frame(op uint64) Frame {
	f := Frame{Kind: o.Kind, Memory: o.Memory, Op: op, Offset: o.Offset + o.Given, Length: o.N - o.Given, Total: o.N}
	switch {
	case o.Kind == Update:
		f.Length, f.Total = o.From, o.To
	case o.Kind.Atomic():
		f.Length, f.Total = 8, o.To
	}
	return f
}

// Carrier brings the operations of a queue to the peer. Its methods are called with Mu.
type Carrier interface {
	// Full reports whether an operation of a kind must wait though the queue has room.
	Full(k Kind) bool
	// Added is called with an operation that is queued next, and wakes who sends it.
	Added(o *Op)
	// Poll looks how much is done, unless the connection has ended.
	Poll()
	// Sleep waits for Changed, unless what holds.
	Sleep(unless func() bool)
	// Missing says what is not done of the first operations.
	Missing(until uint64) string
}

// Queue is the operations of a connection that wait to be sent, and a part of its driver.
type Queue struct {
	Changed sync.Cond // operations were done, there is room in the queue, or the end
	Work    sync.Cond // something was queued, or the end: for who sends

	Queued atomic.Uint64    // operations added to the queue, ever
	Taken  uint64           // those among them that were sent whole; guarded by Mu
	Done   atomic.Uint64    // those before the first that is not done, or not answered; written with Mu
	Gone   target.Withdrawn // memories that the peer has closed; guarded by Mu

	PeerInstance [IDSize]byte // of the transport that the peer's memories are registered with

	end     *End
	carrier Carrier
	polled  bool // nobody notes what is done before Poll
	ops     [Depth]Op
}

// Init is called once, before all else. polled says that only Poll finds out what is done.
func (q *Queue) Init(e *End, c Carrier, polled bool) {
	q.end, q.carrier, q.polled = e, c, polled
	q.Changed.L, q.Work.L = &e.Mu, &e.Mu
}

// Oldest returns the oldest operation that was not sent whole, which there is. The caller holds Mu.
func (q *Queue) Oldest() *Op { return &q.ops[q.Taken%Depth] }

// Sent notes that the oldest operation was sent whole. The caller holds Mu.
func (q *Queue) Sent() {
	q.Oldest().Src = nil
	q.Taken++
	q.Changed.Broadcast()
}

// kinds are the kinds of a connection's operations. A store is done as an update is.
var kinds = [...]Kind{
	connection.Write: Data, connection.WriteBytes: Data, connection.Read: Read, connection.Store: Update,
	connection.Add: Add, connection.Exchange: Exchange, connection.Update: Update,
}

// Ready reports whether the queue has room for two operations. A mark needs none.
func (q *Queue) Ready(k connection.Kind, _ uint64) bool {
	q.end.Mu.Lock()
	defer q.end.Mu.Unlock()
	return q.end.Err != nil || q.Queued.Load()-q.Taken <= Depth-2 && !q.carrier.Full(kinds[k])
}

// InlineLimit returns 4 KiB.
func (q *Queue) InlineLimit() uint64 { return inlineLimit }

// Submit queues an operation, with a copy of its data. A read and an exchange are requests that the peer's
// transport answers. What is queued behind one is sent when the answer is here, unless it is a read too.
func (q *Queue) Submit(o connection.Operation) error {
	m := Op{Kind: kinds[o.Kind], Offset: o.Offset, N: o.N, Data: o.Data, From: o.From, To: o.To}
	switch o.Kind {
	case connection.Write:
		if m.Src, m.SrcOffset = o.Own.Buffer(), o.OwnOffset; m.Src == nil { // it was closed meanwhile
			return mscclgo.Errorf(mscclgo.ErrInvalid, q.end.rank.Name+": find the bytes", "%v is closed", o.Own)
		}
	case connection.Exchange, connection.Read:
		word := o.Kind == connection.Exchange
		if word {
			m.N = 8
		}
		into, err := q.end.rank.place(o.Own, o.OwnOffset, m.N, word)
		if err != nil {
			return err
		}
		m.Into, m.IntoOffset = into, o.OwnOffset
	}
	return q.add(o.Theirs, m)
}

// add adds an operation on a memory of the peer's, with a copy of its data, to the queue. It waits while the
// queue is full.
func (q *Queue) add(m *registeredmem.Memory, o Op) error {
	if !bytes.Equal(m.Key(q.end.rank.kind), q.PeerInstance[:]) {
		return mscclgo.Errorf(mscclgo.ErrInvalid, q.end.rank.Name+": find the memory", "%v is of another transport of the rank than the connection", m)
	}
	o.Memory = m.ID()
	q.end.Mu.Lock()
	defer q.end.Mu.Unlock()
	for q.end.Err == nil && (q.Queued.Load()-q.Taken == Depth || q.carrier.Full(o.Kind)) {
		q.Changed.Wait()
	}
	if q.end.Err != nil {
		return q.end.Failure()
	}
	if q.Gone.Has(o.Memory) {
		return mscclgo.Errorf(mscclgo.ErrRemote, q.end.rank.Name+": find the memory", "rank %d has closed memory %d; nothing was sent", q.end.Peer, o.Memory)
	}
	place := &q.ops[q.Queued.Load()%Depth]
	o.Data = append(place.Data[:0], o.Data...)
	*place = o
	q.carrier.Added(place)
	q.Queued.Add(1)
	return nil
}
