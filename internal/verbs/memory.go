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

// PD is a protection domain. Queue pairs access only memory of their own domain.
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

// Access is the set of accesses that a memory region or a queue pair allows.
type Access int

// The accesses. Local reads are always allowed.
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

	local, remote uint32 // keys; kept, since Close frees mr
}

// Register registers memory of this process. Requests, here and at the peer, address
// a byte by iova plus its offset. iova and address must be equal modulo the page size.
//
// Errors: ErrSystem, with the limit if there is too little locked memory.
func (p *PD) Register(address uintptr, size, iova uint64, access Access) (*MR, error) {
	mr, err := C.verbs_register(p.context.api, p.pd, C.uint64_t(address), C.size_t(size), C.uint64_t(iova), C.int(access))
	return p.registered(mr, err, size)
}

// RegisterDMABuf registers memory of a device, as offset and size in a dma-buf,
// which may be closed afterwards.
//
// Errors: ErrUnsupported when the library or the kernel does not support it; the errors of
// Register.
func (p *PD) RegisterDMABuf(fd int, offset, size, iova uint64, access Access) (*MR, error) {
	mr, err := C.verbs_register_dmabuf(p.context.api, p.pd, C.int(fd), C.uint64_t(offset), C.size_t(size), C.uint64_t(iova), C.int(access))
	return p.registered(mr, err, size)
}

func (p *PD) registered(mr *C.struct_ibv_mr, err error, size uint64) (*MR, error) {
	if mr != nil {
		return &MR{p.context, mr, uint32(mr.lkey), uint32(mr.rkey)}, nil
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

// LocalKey returns the key of the memory for requests of this side, also once it is
// closed: requests with it fail then.
func (m *MR) LocalKey() uint32 { return m.local }

// RemoteKey returns the key of the memory for requests of a peer, likewise.
func (m *MR) RemoteKey() uint32 { return m.remote }

// Close ends the registration. No request accesses the memory afterwards.
func (m *MR) Close() error {
	return number("verbs: unregister memory of "+m.context.name, C.verbs_deregister(m.context.api, m.mr))
}
