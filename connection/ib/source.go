package ib

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/verbs"
)

// source is memory to be registered.
type source struct {
	address uintptr // here, or in the GPU's part of the address space
	size    uint64
	device  bool

	file   *os.File // a dma-buf with the memory, or nil
	offset uint64   // in it
	why    error    // why there is no dma-buf
}

func sourceOf(buf *gpu.Buffer) *source {
	if b := buf.Bytes(); b != nil {
		return &source{address: uintptr(unsafe.Pointer(&b[0])), size: buf.Size()}
	}
	s := &source{address: uintptr(buf.Ptr()), size: buf.Size(), device: true}
	s.file, s.offset, s.why = buf.Internal().DMABuf()
	return s
}

// base returns the address by which requests name the memory's first byte. The kernel
// requires that its offset in a page is the byte's, for addresses and for dma-bufs,
// which begin at a page.
func (s *source) base() uint64 {
	return uint64(s.address) % uint64(os.Getpagesize())
}

func (s *source) register(n *nic) (*verbs.MR, error) {
	if s.file != nil {
		mr, err := n.pd.RegisterDMABuf(int(s.file.Fd()), s.offset, s.size, s.base(), n.allows())
		if err == nil {
			return mr, nil
		}
		s.why = err
	}
	mr, err := n.pd.Register(s.address, s.size, s.base(), n.allows())
	if s.device && errors.Is(err, syscall.EFAULT) {
		return nil, s.noPeerMemory(n.name, err)
	}
	return mr, err
}

// noPeerMemory returns the error of device memory that the kernel does not know by its address. It says that
// there is no way to access the memory, or, if dma-buf is one, why that failed.
func (s *source) noPeerMemory(nic string, err error) error {
	op := "ib: register device memory with " + nic
	if mscclgo.KindOf(s.why) != mscclgo.ErrUnsupported {
		return mscclgo.Errorf(mscclgo.KindOf(s.why), op, "as a dma-buf: %w; mend that, or load the kernel module nvidia_peermem (%w)", s.why, err)
	}
	return mscclgo.Errorf(mscclgo.ErrUnsupported, op,
		"the device cannot access it: load the kernel module nvidia_peermem (%w), or use a driver, kernel and device with dma-buf (%w)", err, s.why)
}

func (s *source) close() {
	if s.file != nil {
		s.file.Close()
	}
}
