package capi

// #include "process.h"
import "C"

import (
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// openDevice opens the device of a kind or name for a local rank.
func openDevice(kind string, localRank int) (*gpu.Device, error) {
	readEnvironment()
	name, err := gpu.Assign(kind, localRank)
	if err != nil {
		return nil, err
	}
	return gpu.Open(name)
}

// addDevice makes the object of a device. It is closed later where the handler of a proxy has not returned,
// of which destroying the proxy has told.
func addDevice(parent *object, d *gpu.Device) *object {
	return objects.add(parent, aDevice, d, func() error {
		err := d.Close()
		if !errors.Is(err, mscclgo.ErrInvalid) {
			return err
		}
		go func() {
			for errors.Is(d.Close(), mscclgo.ErrInvalid) {
				time.Sleep(handlerPatience)
			}
		}()
		return nil
	})
}

// handlerPatience is how often a handler that has not returned is looked at.
const handlerPatience = 100 * time.Millisecond

func (c *call) deviceOpen(name *C.char, result *handle) error {
	need(c.to("open a device"), name)
	need(c, result)
	readEnvironment()
	d, err := gpu.Open(C.GoString(name))
	if err == nil {
		addDevice(nil, d).store(result)
	}
	return err
}

func (c *call) deviceGetInfo(device handle, result *C.mscclgo_device_info) error {
	_, d := c.to("describe a device").device(device)
	need(c, result)
	info := d.Info()
	*result = C.mscclgo_device_info{
		multiprocessors:       C.int(info.Multiprocessors),
		max_threads_per_block: C.int(info.MaxThreadsPerBlock),
		max_shared_per_block:  C.int(info.MaxSharedPerBlock),
		warp_size:             C.int(info.WarpSize),
		total_memory:          C.uint64_t(info.TotalMemory),
	}
	putText(result.name[:], info.Name)
	putText(result.model[:], info.Model)
	putText(result.arch[:], info.Arch)
	for i, b := range info.UUID {
		result.uuid[i] = C.uchar(b)
	}
	return nil
}

// putText stores a text with a zero behind it, shortened if it is too long.
func putText(room []C.char, text string) {
	n := min(len(text), len(room)-1)
	for i := range n {
		room[i] = C.char(text[i])
	}
	room[n] = 0
}
