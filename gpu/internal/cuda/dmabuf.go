package cuda

// #include "memory.h"
import "C"

import "github.com/mscclgo/mscclgo"

func (d *device) DMABuf(ptr, size uint64) (int, error) {
	fd := C.int(-1)
	if rc := C.dmabuf_export(d.context, C.CUdeviceptr(ptr), C.size_t(size), &fd); rc != 0 {
		err := d.fail(rc, "export %d bytes as a dma-buf", size)
		if rc == C.CUDA_ERROR_NOT_SUPPORTED {
			err.Kind = mscclgo.ErrUnsupported
		}
		return -1, err
	}
	return int(fd), nil
}
