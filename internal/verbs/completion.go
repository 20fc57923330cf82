package verbs

// #include "api.h"
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"golang.org/x/sys/unix"
)

// Channel delivers events of completion queues.
type Channel struct {
	context *Context
	channel *C.struct_ibv_comp_channel
}

// NewChannel makes a channel.
func (c *Context) NewChannel() (*Channel, error) {
	op := "verbs: make a completion channel of " + c.name
	channel, err := C.verbs_create_channel(c.api, c.ctx)
	if channel == nil {
		return nil, failure(op, err)
	}
	if err := unix.SetNonblock(int(channel.fd), true); err != nil {
		C.verbs_destroy_channel(c.api, channel)
		return nil, failure(op, err)
	}
	return &Channel{c, channel}, nil
}

// FD returns the descriptor that is readable when there is an event. It stays the
// Channel's.
func (c *Channel) FD() int { return int(c.channel.fd) }

// Take takes all pending events. For more, queues must be armed again.
func (c *Channel) Take() error {
	for {
		switch rc := C.verbs_cq_event(c.context.api, c.channel); rc {
		case 0:
		case C.int(syscall.EAGAIN), C.int(syscall.EINTR):
			return nil
		default:
			return number("verbs: take a completion event of "+c.context.name, rc)
		}
	}
}

// Close releases the channel. Its queues must be closed.
func (c *Channel) Close() error {
	return number("verbs: release a completion channel of "+c.context.name, C.verbs_destroy_channel(c.context.api, c.channel))
}

// CQ is a completion queue. It fails if something completes while it is full.
type CQ struct {
	context *Context
	cq      *C.struct_ibv_cq
}

// NewCQ makes a queue of at least that many entries; channel may be nil.
func (c *Context) NewCQ(entries int, channel *Channel) (*CQ, error) {
	var ch *C.struct_ibv_comp_channel
	if channel != nil {
		ch = channel.channel
	}
	cq, err := C.verbs_create_cq(c.api, c.ctx, C.int(entries), ch)
	if cq == nil {
		return nil, failure("verbs: make a completion queue of "+c.name, err)
	}
	return &CQ{c, cq}, nil
}

// Pointer returns the ibv_cq of post.h, for C code that polls.
func (q *CQ) Pointer() unsafe.Pointer { return unsafe.Pointer(q.cq) }

// Completion is the result of a request. If Status is not StatusSuccess, only ID,
// Status, Vendor and QueuePair are valid.
type Completion struct {
	ID        uint64
	Status    uint32
	Vendor    uint32 // the driver's own number for an error
	QueuePair uint32
	Immediate uint32 // of a receive: the Value of the peer's WriteImm
}

// Poll takes completions, at most 64, without waiting.
func (q *CQ) Poll(out []Completion) (int, error) {
	if len(out) == 0 {
		return 0, nil
	}
	n := C.verbs_poll(q.cq, (*C.verbs_completion)(unsafe.Pointer(&out[0])), C.int(len(out)))
	if n < 0 {
		return 0, mscclgo.Errorf(mscclgo.ErrSystem, "verbs: poll a completion queue of "+q.context.name, "the driver gave %d", int(n))
	}
	return int(n), nil
}

// Arm requests one event for the next completion. Poll once more after it.
func (q *CQ) Arm() error {
	return number("verbs: arm a completion queue of "+q.context.name, C.verbs_arm(q.cq))
}

// Close releases the queue. Its queue pairs must be closed.
func (q *CQ) Close() error {
	return number("verbs: release a completion queue of "+q.context.name, C.verbs_destroy_cq(q.context.api, q.cq))
}
