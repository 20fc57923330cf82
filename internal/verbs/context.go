package verbs

/*
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"golang.org/x/sys/unix"
)

// Context is an open device.
type Context struct {
	api  *C.verbs_api
	ctx  *C.struct_ibv_context
	name string
}

// Open opens a device by name, such as "mlx5_0".
//
// Errors: ErrUnsupported when the library is missing, there is no device, or this process is
// not given it; ErrInvalid when there are only others, which the text names.
func Open(name string) (*Context, error) {
	op := "verbs: open " + name
	api, err := process()
	if err != nil {
		return nil, err
	}
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	ctx, cause := C.verbs_open(api, cname)
	if ctx != nil {
		// Events are taken when the descriptor is readable; no call waits for one.
		if err := unix.SetNonblock(int(ctx.async_fd), true); err != nil {
			C.verbs_close(api, ctx)
			return nil, failure(op, err)
		}
		return &Context{api: api, ctx: ctx, name: name}, nil
	}
	names, err := Devices()
	if err != nil {
		return nil, err
	}
	if cause == syscall.ENODEV {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "there is no such RDMA device; this machine has %q", names)
	}
	return nil, unopened(op, cause)
}

// unopened returns the error of a device that did not open. A container sees all devices of the machine,
// and device files only for the ones it was given.
func unopened(op string, cause error) error {
	switch cause {
	case syscall.ENOENT, syscall.ENXIO, syscall.EACCES, syscall.EPERM:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this process may not open it: %w; look at ls -l /dev/infiniband, and give a container these files (docker run --device)", cause)
	}
	return failure(op, cause)
}

// Name returns the device's name.
func (c *Context) Name() string { return c.name }

// Close closes the device. Everything made from it must be closed.
func (c *Context) Close() error {
	return number("verbs: close "+c.name, C.verbs_close(c.api, c.ctx))
}

// Attributes are what a device can do.
type Attributes struct {
	QueuePairs int  // at most
	Depth      int  // most requests in a queue
	Entries    int  // most entries in a completion queue
	Reads      int  // most RDMA reads and atomics under way that a queue pair starts
	PeerReads  int  // most of the peer's that a queue pair answers at a time
	Atomics    bool // fetch-and-add and compare-and-swap, atomic at least among the atomics of this device
	Ports      int
}

// Attributes returns what the device can do.
func (c *Context) Attributes() (Attributes, error) {
	var a C.struct_ibv_device_attr
	if err := number("verbs: query "+c.name, C.verbs_query_device(c.api, c.ctx, &a)); err != nil {
		return Attributes{}, err
	}
	return Attributes{
		QueuePairs: int(a.max_qp), Depth: int(a.max_qp_wr), Entries: int(a.max_cqe),
		Reads: int(a.max_qp_init_rd_atom), PeerReads: int(a.max_qp_rd_atom), Atomics: a.atomic_cap != C.IBV_ATOMIC_NONE,
		Ports: int(a.phys_port_cnt),
	}, nil
}

// Port is the state of a port.
type Port struct {
	Active     bool
	InfiniBand bool   // its link is InfiniBand, not Ethernet
	MTU        int    // bytes of payload in a packet
	MaxMessage uint32 // bytes
	LID        uint16 // on InfiniBand
}

// Port returns the state of a port, counted from 1.
func (c *Context) Port(n int) (Port, error) {
	op := fmt.Sprintf("verbs: query port %d of %s", n, c.name)
	var a C.struct_ibv_port_attr
	if err := number(op, C.verbs_query_port(c.api, c.ctx, C.int(n), &a)); err != nil {
		return Port{}, err
	}
	return Port{
		Active: a.state == C.IBV_PORT_ACTIVE, InfiniBand: a.link_layer != C.IBV_LINK_LAYER_ETHERNET,
		MTU: 128 << a.active_mtu, MaxMessage: uint32(a.max_msg_sz), LID: uint16(a.lid),
	}, nil
}

// GID returns an entry of a port's GID table.
func (c *Context) GID(port, index int) ([16]byte, error) {
	var gid [16]byte
	op := fmt.Sprintf("verbs: query GID %d of port %d of %s", index, port, c.name)
	return gid, number(op, C.verbs_query_gid(c.api, c.ctx, C.int(port), C.int(index), (*C.uint8_t)(&gid[0])))
}

// Event is an asynchronous event of a device.
type Event struct {
	Text      string // in the library's words
	QueuePair uint32 // what it is about, or 0
	Port      int    // what it is about, or 0
	Failure   bool   // the queue pair or, where there is none, the whole device is of no more use
	PortDown  bool
	PortUp    bool
}

// EventFD returns the descriptor that is readable when there is an event. It stays
// the Context's.
func (c *Context) EventFD() int { return int(c.ctx.async_fd) }

// Event takes an event, and reports whether there was one.
func (c *Context) Event() (event Event, ok bool, err error) {
	var kind, port C.int
	var qp C.uint32_t
	switch rc := C.verbs_async_event(c.api, c.ctx, &kind, &qp, &port); rc {
	case 0:
	case C.int(syscall.EAGAIN), C.int(syscall.EINTR):
		return Event{}, false, nil
	default:
		return Event{}, false, number("verbs: take an event of "+c.name, rc)
	}
	e := Event{Text: C.GoString(C.verbs_event_text(c.api, kind)), QueuePair: uint32(qp), Port: int(port)}
	switch kind {
	case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR, C.IBV_EVENT_DEVICE_FATAL:
		e.Failure = true
	case C.IBV_EVENT_PORT_ERR:
		e.PortDown = true
	case C.IBV_EVENT_PORT_ACTIVE:
		e.PortUp = true
	}
	return e, true, nil
}
