package emu

import "github.com/mscclgo/mscclgo"

func (d *device) DMABuf(ptr, size uint64) (int, error) {
	return -1, mscclgo.Errorf(mscclgo.ErrUnsupported, d.op("give a dma-buf of %d bytes at %#x", size, ptr),
		"an emulated device's memory is the process's own, which drivers reach by its address")
}
