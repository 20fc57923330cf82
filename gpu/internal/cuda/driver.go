package cuda

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "context.h"
#include "device.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/cudaenv"
)

// Driver returns the CUDA driver, which is loaded on first use. There is one in a
// process, since the primary context of a GPU belongs to the process.
func Driver() backend.Driver { return process }

var process = newDriver("libcuda.so.1")

// driver is a loaded libcuda with the GPUs that are visible to this process.
type driver struct {
	load     func() error // loads once and always returns the same error
	api      *C.mscclgo_cuda
	version  int // of CUDA: 1000 * major + 10 * minor
	ordinals []*ordinal
	grants   sync.Mutex // held while a device is given access to memory of another
}

func newDriver(library string) *driver {
	d := new(driver)
	d.load = sync.OnceValue(func() error { return d.open(library) })
	return d
}

func (d *driver) open(library string) error {
	const op = "gpu: load the CUDA driver"
	cudaenv.Set()
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	message := (*C.char)(C.calloc(1, 512))
	defer C.free(unsafe.Pointer(message))
	var none C.int
	if d.api = C.mscclgo_cuda_load(name, message, 512, &none); d.api == nil && none != 0 {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op,
			"%s not found (%s); install NVIDIA's driver, or use an emulated device: emu:0",
			library, C.GoString(message))
	} else if d.api == nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, op,
			"%s cannot be loaded (%s); install NVIDIA's driver again, or take the file's folder out of LD_LIBRARY_PATH; "+emulate,
			library, C.GoString(message))
	}
	var version, count C.int
	if rc := C.driver_init(d.api, &version, &count); rc == C.CUDA_ERROR_NO_DEVICE || rc == 0 && count == 0 {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op,
			"the driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use emu:0")
	} else if rc != 0 {
		return d.broken(rc, op)
	}
	d.version = int(version)
	for i := range int(count) {
		o := &ordinal{driver: d, n: i}
		if rc := C.device_query(d.api, C.int(i), &o.facts); rc != 0 {
			return d.broken(rc, fmt.Sprintf("gpu: query cuda:%d", i))
		}
		o.context = (*C.cuda_context)(C.malloc(C.sizeof_cuda_context))
		*o.context = C.cuda_context{api: d.api, device: o.facts.device}
		d.ordinals = append(d.ordinals, o)
	}
	return nil
}

func (d *driver) List() ([]backend.Info, error) {
	if err := d.load(); err != nil {
		return nil, err
	}
	infos := make([]backend.Info, len(d.ordinals))
	for i, o := range d.ordinals {
		infos[i] = o.info()
	}
	return infos, nil
}

func (d *driver) Open(n int) (backend.Device, error) {
	if err := d.load(); err != nil {
		return nil, err
	}
	if n < 0 || n >= len(d.ordinals) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("gpu: open cuda:%d", n),
			"no such device: %d GPUs are visible, counted from cuda:0 (CUDA_VISIBLE_DEVICES selects them)",
			len(d.ordinals))
	}
	return d.ordinals[n].open()
}

// ordinal is one GPU, with its number in this process.
type ordinal struct {
	driver  *driver
	n       int
	facts   C.device_facts
	context *C.cuda_context

	mu      sync.Mutex
	current *primary // nil while there are no holders
}

func (o *ordinal) name() string { return fmt.Sprintf("cuda:%d", o.n) }

func (o *ordinal) uuid() (uuid [16]byte) {
	for i, c := range o.facts.uuid.bytes {
		uuid[i] = byte(c)
	}
	return uuid
}

func (o *ordinal) info() backend.Info {
	f := &o.facts
	granularity := uint64(f.granularity)
	if granularity == 0 {
		granularity = plainGranularity
	}
	return backend.Info{
		Name:               o.name(),
		Model:              C.GoString(&f.name[0]),
		UUID:               o.uuid(),
		Arch:               fmt.Sprintf("sm_%d%d", int(f.major), int(f.minor)),
		PCIBusID:           strings.ToLower(C.GoString(&f.bus_id[0])),
		Multiprocessors:    int(f.multiprocessors),
		MaxBlocksPerSM:     int(f.max_blocks_per_sm),
		MaxThreadsPerBlock: int(f.max_threads_per_block),
		MaxSharedPerBlock:  int(f.max_shared),
		WarpSize:           int(f.warp_size),
		TotalMemory:        uint64(f.memory),
		CooperativeLaunch:  f.cooperative != 0,
		LaunchOverlap:      f.major >= 9,
		StreamMemoryOps:    f.stream_memory_ops != 0,
		DescriptorExport:   f.granularity != 0,
		RDMAOrdered:        f.rdma_ordering >= C.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
		L2Bytes:            int(f.l2_bytes),
		MaxThreadsPerSM:    int(f.max_threads_per_sm),
		MemoryGranularity:  granularity,
		DriverVersion:      o.driver.describe(),
	}
}

// emulate is the way around a driver that does not work.
const emulate = "or use emulated devices: MSCCLGO_DEVICE=emu"

// broken returns the error for a driver that is there and does not work. Its kind is never
// ErrUnsupported, which tells that there is none.
func (d *driver) broken(rc C.status, op string) error {
	err := d.failure(rc, op)
	err.Kind, err.Err = mscclgo.ErrSystem, fmt.Errorf("%w; "+emulate, err.Err)
	return err
}

// describe returns the versions of the kernel module and of CUDA.
func (d *driver) describe() string {
	cuda := "CUDA " + versionText(d.version)
	module, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil { // hidden in some containers
		return cuda
	}
	return strings.TrimSpace(string(module)) + " (" + cuda + ")"
}

func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
