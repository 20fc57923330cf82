package gpu

import (
	"os"

	"github.com/mscclgo/mscclgo"
)

// DMABuf returns a dma-buf, a file by which the drivers of other devices such as
// network cards reach the buffer's device memory. The buffer starts at offset, which is
// less than a page. The caller closes the file.
//
// Errors: ErrUnsupported for pinned host memory, on an emulated device, and if the
// driver cannot export the memory; ErrInvalid if the buffer is empty.
func (b *Buffer) DMABuf() (file *os.File, offset uint64, err error) {
	const op = "gpu: share memory by dma-buf"
	if err := b.usable(op); err != nil {
		return nil, 0, err
	}
	if b.mem.pinned {
		return nil, 0, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "pinned host memory has no dma-buf; drivers reach it by its address")
	}
	if b.size == 0 {
		return nil, 0, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the buffer is empty")
	}
	page := uint64(os.Getpagesize())
	offset = uint64(b.ptr) % page
	fd, err := b.dev.b.DMABuf(uint64(b.ptr)-offset, (offset+b.size+page-1)/page*page)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), "gpu-memory-dma-buf"), offset, nil
}
