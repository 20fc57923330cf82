package verbs

// #include "api.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mscclgo/mscclgo"
	"golang.org/x/sys/unix"
)

// PD is a protection domain: queue pairs reach the memory of theirs alone.
type PD struct {
	context *Context
	pd      *C.struct_ibv_pd
}

// NewPD makes a protection domain.
func (c *Context) NewPD() (*PD, error) {
	pd, err := C.verbs_alloc_pd(c.api, c.ctx)
	if pd == nil {
		return nil, failure("verbs: allocate a protection domain of "+c.name, err)
	}
	return &PD{c, pd}, nil
}

// Close releases the domain.
func (p *PD) Close() error {
	return number("verbs: release a protection domain of "+p.context.name, C.verbs_dealloc_pd(p.context.api, p.pd))
}

// Access is what a memory region or a queue pair allows.
type Access int

// What is allowed. Reading by this side always is.
const (
	LocalWrite   Access = C.IBV_ACCESS_LOCAL_WRITE
	RemoteWrite  Access = C.IBV_ACCESS_REMOTE_WRITE
	RemoteRead   Access = C.IBV_ACCESS_REMOTE_READ
	RemoteAtomic Access = C.IBV_ACCESS_REMOTE_ATOMIC
)

// MR is registered memory, which stays pinned until Close.
type MR struct {
	context *Context
	mr      *C.struct_ibv_mr
}

// Register registers memory of this process. Requests, here and at the peer, name
// a byte of it by iova plus its offset. The kernel wants iova and address to be
// equal modulo the page size.
//
// Errors: ErrSystem; for lack of locked memory the text tells the limit.
func (p *PD) Register(address uintptr, size, iova uint64, access Access) (*MR, error) {
	mr, err := C.verbs_register(p.context.api, p.pd, C.uint64_t(address), C.size_t(size), C.uint64_t(iova), C.int(access))
	return p.registered(mr, err, size)
}

// RegisterDMABuf registers memory of a device, as offset and size in a dma-buf,
// which may be closed afterwards.
//
// Errors: ErrUnsupported when the library or the kernel cannot, and those of
// Register.
func (p *PD) RegisterDMABuf(fd int, offset, size, iova uint64, access Access) (*MR, error) {
	mr, err := C.verbs_register_dmabuf(p.context.api, p.pd, C.int(fd), C.uint64_t(offset), C.size_t(size), C.uint64_t(iova), C.int(access))
	return p.registered(mr, err, size)
}

func (p *PD) registered(mr *C.struct_ibv_mr, err error, size uint64) (*MR, error) {
	if mr != nil {
		return &MR{p.context, mr}, nil
	}
	op := fmt.Sprintf("verbs: register %d bytes with %s", size, p.context.name)
	if !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EPERM) {
		return nil, failure(op, err)
	}
	return nil, mscclgo.Errorf(mscclgo.ErrSystem, op,
		"the memory cannot be locked; this process's limit of locked memory is %s (ulimit -l), raise it or give CAP_IPC_LOCK: %w", lockLimit(), err)
}

func lockLimit() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return "unknown"
	}
	if limit.Cur == unix.RLIM_INFINITY {
		return "unlimited, so the machine has too little memory"
	}
	return fmt.Sprintf("%d bytes", limit.Cur)
}

// LocalKey gives what requests of this side name the memory by.
func (m *MR) LocalKey() uint32 { return uint32(m.mr.lkey) }

// RemoteKey gives what requests of a peer name the memory by.
func (m *MR) RemoteKey() uint32 { return uint32(m.mr.rkey) }

// Close ends the registration: no request reaches the memory any more.
func (m *MR) Close() error {
	return number("verbs: unregister memory of "+m.context.name, C.verbs_deregister(m.context.api, m.mr))
}
