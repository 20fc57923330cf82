package nccl

// #include <stdlib.h>
// #include "nccl.h"
import "C"

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// Comm is one rank's communicator, whose operations run on one stream, in order
// with the stream's other work. One goroutine at a time uses it.
type Comm struct {
	c         *C.communicator
	inContext func(f func() error) error // calls f where the stream's context is current
	ranks     int
	rank      int
}

// ID is what the ranks of a communicator have in common.
type ID [128]byte

// NewComm makes a rank's communicator on a stream. It has no peers before
// [Comm.Join]. The caller closes it before the stream.
//
// Errors: ErrUnsupported for a stream of an emulated device.
func (l *Library) NewComm(s *gpu.Stream) (*Comm, error) {
	if s.Device().Info().PCIBusID == "" {
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, "nccl: new communicator", "%v is no NVIDIA GPU", s.Device())
	}
	return l.newComm(s.Handle(), func(f func() error) error { return s.Internal().InContext(f) }), nil
}

func (l *Library) newComm(stream uintptr, inContext func(f func() error) error) *Comm {
	c := &Comm{c: (*C.communicator)(C.calloc(1, C.sizeof_communicator)), inContext: inContext}
	C.comm_open(c.c, l.api, C.uint64_t(stream))
	return c
}

// call makes a call of NCCL's.
func (c *Comm) call(what string, f func() C.status) error {
	return c.inContext(func() error { return failure(f(), what) })
}

// NewID makes an ID for one rank to hand to all others.
func (c *Comm) NewID() (id ID, err error) {
	var made C.unique_id
	err = c.call("make an id", func() C.status { return C.comm_unique_id(c.c, &made) })
	return *(*ID)(unsafe.Pointer(&made)), err
}

// Join connects the communicator with all other ranks'. Its kernels have that many blocks, as
// with NCCL_MIN_CTAS and NCCL_MAX_CTAS, or as many as NCCL chooses if blocks is 0. When ctx
// ends first, NCCL goes on waiting, and the communicator must not be used or closed any more.
//
// Errors: also ErrUnsupported where NCCL takes no number of blocks.
func (c *Comm) Join(ctx context.Context, id ID, rank, ranks, blocks int) error {
	c.rank, c.ranks = rank, ranks
	joined := make(chan error, 1)
	go func() {
		shared := *(*C.unique_id)(unsafe.Pointer(&id))
		joined <- c.call("join the communicator", func() C.status { return C.comm_join(c.c, C.int(ranks), &shared, C.int(rank), C.int(blocks)) })
	}()
	select {
	case err := <-joined:
		return err
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, "nccl: join the communicator", "")
	}
}

// Close releases the communicator; abort leaves what still runs unfinished. It is
// safe to call twice.
func (c *Comm) Close(abort bool) error {
	if c.c == nil {
		return nil
	}
	var err error
	if c.c.comm != nil {
		flag := C.int(0)
		if abort {
			flag = 1
		}
		err = c.call("close the communicator", func() C.status { return C.comm_close(c.c, flag) })
	}
	C.free(unsafe.Pointer(c.c))
	c.c = nil
	return err
}

// NCCL's numbers for types and operations (nccl.h: ncclDataType_t, ncclRedOp_t).
var (
	typeNumbers = map[string]C.int{
		"u8": 1, "i32": 2, "i64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "f8e4m3": 10, "f8e5m2": 11,
	}
	opNumbers = map[string]C.int{"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
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

// Queue queues a call on the stream. All ranks queue the same, in the same order.
//
// Errors: ErrUnsupported for what NCCL does not have.
func (c *Comm) Queue(call Call) error {
	return c.inContext(func() error { return c.queue(call) })
}

// queue is Queue where the stream's context is current.
func (c *Comm) queue(call Call) error {
	in, out, count := C.uint64_t(call.In), C.uint64_t(call.Out), C.size_t(call.Count)
	typ, known := typeNumbers[call.Type]
	op, reduces := opNumbers[call.Op]
	if !known || !reduces {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "nccl: "+call.Collective, "it has no type %q or no operation %q", call.Type, call.Op)
	}
	root, ranks, part := C.int(call.Root), C.int(c.ranks), C.size_t(call.PartBytes)
	var s C.status
	switch call.Collective {
	case "all-reduce":
		s = C.comm_all_reduce(c.c, in, out, count, typ, op)
	case "all-gather":
		s = C.comm_all_gather(c.c, in, out, count, typ)
	case "reduce-scatter":
		s = C.comm_reduce_scatter(c.c, in, out, count, typ, op)
	case "reduce":
		s = C.comm_reduce(c.c, in, out, count, typ, op, root)
	case "broadcast":
		s = C.comm_broadcast(c.c, in, out, count, typ, root)
	case "all-to-all":
		s = C.comm_all_to_all(c.c, in, out, count, typ, ranks, part)
	case "send-receive":
		next, before := C.int((c.rank+1)%c.ranks), C.int((c.rank+c.ranks-1)%c.ranks)
		s = C.comm_exchange(c.c, C.side{next, 1, in, 0}, C.side{before, 1, out, 0}, count, typ)
	case "gather", "scatter":
		to, from := C.side{root, 1, in, 0}, C.side{0, ranks, out, part} // at the root
		if call.Collective == "scatter" {
			to, from = C.side{0, ranks, in, part}, C.side{root, 1, out, 0}
		}
		if c.rank != call.Root && call.Collective == "gather" {
			from = C.side{}
		} else if c.rank != call.Root {
			to = C.side{}
		}
		s = C.comm_exchange(c.c, to, from, count, typ)
	default:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "nccl: "+call.Collective, "it has no such collective")
	}
	return failure(s, call.Collective)
}

// Memory is device memory of NCCL's in a symmetric window.
type Memory struct {
	Ptr    gpu.Ptr
	c      *Comm
	window unsafe.Pointer
}

// Alloc allocates memory in a symmetric window of all ranks. Collective.
//
// Errors: ErrUnsupported when NCCL has no such windows.
func (c *Comm) Alloc(bytes uint64) (*Memory, error) {
	var ptr C.uint64_t
	m := &Memory{c: c}
	err := c.call(fmt.Sprintf("allocate a window of %d bytes", bytes), func() C.status {
		return C.comm_alloc(c.c, C.size_t(bytes), &ptr, &m.window)
	})
	m.Ptr = gpu.Ptr(ptr)
	return m, err
}

// Close releases the memory, which no rank may use any more. Collective.
func (m *Memory) Close() error {
	if m.Ptr == 0 {
		return nil
	}
	err := m.c.call("free a window", func() C.status { return C.comm_free(m.c.c, C.uint64_t(m.Ptr), m.window) })
	m.Ptr = 0
	return err
}

// failure makes an error of a status.
func failure(s C.status, what string) error {
	if s.code == 0 {
		return nil
	}
	name := "no name"
	if s.name != nil {
		name = C.GoString(s.name)
	}
	if s.code < 0 {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "nccl: "+what, "NCCL is too old: it has no %s", name)
	}
	return mscclgo.Errorf(mscclgo.ErrSystem, "nccl: "+what, "NCCL: %s (%d)", name, int(s.code))
}
