package cuda

// #include "memory.h"
// #include "stream.h"
import "C"

import (
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// device is one open of a GPU.
type device struct{ held }

func (d *device) Info() backend.Info { return d.ordinal.info() }

func (d *device) MemoryInfo() (free, total uint64, err error) { return d.memoryInfo() }

func (d *device) Close() error {
	return d.end(func() error {
		d.ordinal.mu.Lock()
		defer d.ordinal.mu.Unlock()
		d.devices--
		return nil
	})
}

// CanAccess returns false for a GPU that CUDA_VISIBLE_DEVICES hides from this process,
// since the driver then cannot map its memory here.
func (d *device) CanAccess(uuid [16]byte) bool {
	return d.can(uuid, func(peer C.CUdevice, can *C.int) C.status {
		return C.device_can_access(d.ordinal.driver.api, d.ordinal.facts.device, peer, can)
	})
}

// CanUpdate returns false where the driver does not say: links of GPUs over PCIe mostly
// have no atomics.
func (d *device) CanUpdate(uuid [16]byte) bool {
	return d.can(uuid, func(peer C.CUdevice, can *C.int) C.status {
		return C.device_can_update(d.ordinal.driver.api, d.ordinal.facts.device, peer, can)
	})
}

// can asks the driver about a pair of GPUs. Of a GPU and itself all is true.
func (d *device) can(uuid [16]byte, ask func(peer C.CUdevice, can *C.int) C.status) bool {
	if uuid == d.ordinal.uuid() {
		return true
	}
	for _, o := range d.ordinal.driver.ordinals {
		if o.uuid() == uuid {
			var can C.int
			return ask(o.facts.device, &can) == 0 && can != 0
		}
	}
	return false
}

func (d *device) Access(owner backend.Device, ptr, size uint64) error {
	other, ok := owner.(*device)
	if !ok {
		return mscclgo.Errorf(mscclgo.ErrInvalid, d.op("reach memory at %#x", ptr),
			"%s, which owns it, is not a CUDA device", owner.Info().Name)
	}
	if other.primary == d.primary {
		return nil // the devices share one context
	}
	d.ordinal.driver.grants.Lock()
	defer d.ordinal.driver.grants.Unlock()
	rc := C.memory_reach(d.context, other.context, C.CUdeviceptr(ptr), C.size_t(size))
	return d.result(rc, "reach memory of %s at %#x", other.ordinal.name(), ptr)
}

func (d *device) Range(ptr, size uint64) (base, all uint64, err error) {
	m := C.memory_range(d.context, C.CUdeviceptr(ptr), C.size_t(size))
	if m.rc != 0 {
		return 0, 0, d.fail(m.rc, "find the allocation around %#x", ptr)
	}
	return uint64(m.base), uint64(m.size), nil
}

func (d *device) CopyToHost(dst []byte, src uint64) error {
	return d.copyNow(0, src, dst, "from %#x to the host", src)
}

func (d *device) CopyFromHost(dst uint64, src []byte) error {
	return d.copyNow(dst, 0, src, "from the host to %#x", dst)
}

// copyNow copies between device memory and the host. The address in device memory is
// dst or src; the other one is 0.
func (d *device) copyNow(dst, src uint64, host []byte, where string, address uint64) error {
	if len(host) == 0 {
		return nil
	}
	if err := d.needCopies(); err != nil {
		return err
	}
	rc := C.stream_copy_now(&d.copies, C.CUdeviceptr(dst), C.CUdeviceptr(src),
		unsafe.Pointer(unsafe.SliceData(host)), C.size_t(len(host)))
	if rc != 0 {
		return d.fail(rc, "copy %d bytes "+where, len(host), address)
	}
	return nil
}
