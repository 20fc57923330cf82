package emu

import "github.com/mscclgo/mscclgo"

func (d *device) DMABuf(ptr, size uint64) (int, error) {
	return -1, mscclgo.Errorf(mscclgo.ErrUnsupported, d.op("export %d bytes at %#x as a dma-buf", size, ptr),
		"an emulated device's memory is the process's own, which drivers reach by its address")
}
