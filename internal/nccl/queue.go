package nccl

// #include <stdlib.h>
// #include "nccl.h"
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// Queue is one rank's communicator, with a stream that runs its operations in
// order. One goroutine at a time uses it.
type Queue struct {
	q     *C.queue
	ranks int
	rank  int
}

// ID is what the ranks of a communicator have in common.
type ID [128]byte

// NewQueue makes a rank's queue on the GPU with this PCI bus ID. It has no
// communicator before [Queue.Join].
//
// Errors: ErrSystem where there is no such GPU.
func (l *Library) NewQueue(pciBusID string) (*Queue, error) {
	q := &Queue{q: (*C.queue)(C.calloc(1, C.sizeof_queue))}
	q.q.api = l.api
	id := C.CString(pciBusID)
	defer C.free(unsafe.Pointer(id))
	if err := failure(C.queue_open(q.q, id), "open "+pciBusID); err != nil {
		_ = q.Close(true) // the error worth telling is the first
		return nil, err
	}
	return q, nil
}

// NewID gives an ID for one rank to give to all others.
func (q *Queue) NewID() (id ID, err error) {
	var c C.unique_id
	err = failure(C.queue_unique_id(q.q, &c), "make an id")
	return *(*ID)(unsafe.Pointer(&c)), err
}

// Join makes the communicator with all other ranks. Where ctx ends first, NCCL
// goes on waiting, and the queue must not be used or closed any more.
func (q *Queue) Join(ctx context.Context, id ID, rank, ranks int) error {
	q.rank, q.ranks = rank, ranks
	joined := make(chan error, 1)
	go func() {
		c := *(*C.unique_id)(unsafe.Pointer(&id))
		joined <- failure(C.queue_join(q.q, C.int(ranks), &c, C.int(rank)), "join the communicator")
	}()
	select {
	case err := <-joined:
		return err
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, "nccl: join the communicator", "")
	}
}

// Close releases the communicator and the stream; abort leaves what still runs
// unfinished. It is safe to call twice.
func (q *Queue) Close(abort bool) error {
	if q.q == nil {
		return nil
	}
	flag := C.int(0)
	if abort {
		flag = 1
	}
	err := failure(C.queue_close(q.q, flag), "close the communicator")
	C.free(unsafe.Pointer(q.q))
	q.q = nil
	return err
}

// The numbers that NCCL has for types and operations (nccl.h: ncclDataType_t,
// ncclRedOp_t).
var (
	typeNumbers = map[string]C.int{"u8": 1, "i32": 2, "f16": 6, "f32": 7, "bf16": 9}
	opNumbers   = map[string]C.int{"sum": 0, "max": 2, "min": 3}
)

// Call is one use of a collective, by this library's names for it, its type and
// its operation.
type Call struct {
	Collective string // "all-reduce" and so on
	Type, Op   string
	Count      uint64 // elements of a part
	PartBytes  uint64
	Root       int
	In, Out    gpu.Ptr
}

// Queue queues a call. All ranks queue the same, in the same order.
//
// Errors: ErrUnsupported for what NCCL does not have.
func (q *Queue) Queue(c Call) error {
	in, out, count := C.uint64_t(c.In), C.uint64_t(c.Out), C.size_t(c.Count)
	typ, known := typeNumbers[c.Type]
	op, reduces := opNumbers[c.Op]
	if !known || !reduces {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "nccl: "+c.Collective, "it has no type %q or no operation %q", c.Type, c.Op)
	}
	var s C.status
	switch c.Collective {
	case "all-reduce":
		s = C.queue_all_reduce(q.q, in, out, count, typ, op)
	case "all-gather":
		s = C.queue_all_gather(q.q, in, out, count, typ)
	case "reduce-scatter":
		s = C.queue_reduce_scatter(q.q, in, out, count, typ, op)
	case "broadcast":
		s = C.queue_broadcast(q.q, in, out, count, typ, C.int(c.Root))
	case "all-to-all":
		s = C.queue_all_to_all(q.q, in, out, count, typ, C.int(q.ranks), C.size_t(c.PartBytes))
	case "send-receive":
		s = C.queue_send_receive(q.q, in, out, count, typ, C.int((q.rank+1)%q.ranks), C.int((q.rank+q.ranks-1)%q.ranks))
	default:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "nccl: "+c.Collective, "it has no such collective")
	}
	return failure(s, c.Collective)
}

// Memory is device memory of NCCL's in a symmetric window.
type Memory struct {
	Ptr    gpu.Ptr
	q      *Queue
	window unsafe.Pointer
}

// Alloc gives memory in a symmetric window of all ranks. Collective.
//
// Errors: ErrUnsupported where NCCL has no such windows.
func (q *Queue) Alloc(bytes uint64) (*Memory, error) {
	var ptr C.uint64_t
	m := &Memory{q: q}
	err := failure(C.queue_alloc(q.q, C.size_t(bytes), &ptr, &m.window), fmt.Sprintf("allocate a window of %d bytes", bytes))
	m.Ptr = gpu.Ptr(ptr)
	return m, err
}

// Close gives the memory back. No rank may use it any more. Collective.
func (m *Memory) Close() error {
	if m.Ptr == 0 {
		return nil
	}
	err := failure(C.queue_free(m.q.q, C.uint64_t(m.Ptr), m.window), "free a window")
	m.Ptr = 0
	return err
}

// Graph is what was queued between Begin and End.
type Graph struct {
	q    *Queue
	exec unsafe.Pointer
}

// Begin makes the queue collect what it is given, instead of running it.
func (q *Queue) Begin() error { return failure(C.queue_begin(q.q), "begin a graph") }

// End gives the graph of what was collected, which the caller closes.
func (q *Queue) End() (*Graph, error) {
	g := &Graph{q: q}
	return g, failure(C.queue_end(q.q, &g.exec), "end a graph")
}

// Launch queues the graph's operations.
func (g *Graph) Launch() error { return failure(C.queue_launch(g.q.q, g.exec), "launch a graph") }

// Close releases the graph. It is safe to call twice.
func (g *Graph) Close() error {
	if g.exec == nil {
		return nil
	}
	err := failure(C.queue_free_graph(g.q.q, g.exec), "free a graph")
	g.exec = nil
	return err
}

// Event marks a point of a queue.
type Event struct {
	q     *Queue
	event unsafe.Pointer
}

// NewEvent makes an event, which the caller closes.
func (q *Queue) NewEvent() (*Event, error) {
	e := &Event{q: q}
	return e, failure(C.queue_new_event(q.q, &e.event), "make an event")
}

// Record queues the marking of the event.
func (e *Event) Record() error { return failure(C.queue_record(e.q.q, e.event), "record an event") }

// Since gives the time from start to e. Both have been reached.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var milliseconds C.float
	err := failure(C.queue_elapsed(e.q.q, start.event, e.event, &milliseconds), "tell the time between events")
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), err
}

// Close releases the event. It is safe to call twice.
func (e *Event) Close() error {
	if e.event == nil {
		return nil
	}
	err := failure(C.queue_free_event(e.q.q, e.event), "free an event")
	e.event = nil
	return err
}

// Synchronize waits until all that was queued is done.
//
// Errors: ErrTimeout and ErrAborted when ctx ends first.
func (q *Queue) Synchronize(ctx context.Context) error {
	for polls := 0; ; polls++ {
		var done C.int
		if err := failure(C.queue_done(q.q, &done), "wait"); err != nil || done != 0 {
			return err
		}
		if ctx.Err() != nil {
			return mscclgo.FromContext(ctx, "nccl: wait", "")
		}
		if polls > 1000 {
			time.Sleep(50 * time.Microsecond)
		} else {
			runtime.Gosched()
		}
	}
}

// failure makes an error of a status.
func failure(s C.status, what string) error {
	if s.code == 0 {
		return nil
	}
	kind, name := mscclgo.ErrSystem, "no name"
	if s.code < 0 {
		kind = mscclgo.ErrUnsupported
	}
	if s.name != nil {
		name = C.GoString(s.name)
	}
	return mscclgo.Errorf(kind, "nccl: "+what, "%s: %s (%d)", C.GoString(s.from), name, int(s.code))
}
