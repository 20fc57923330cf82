package cuda

// #include "device.h"
import "C"

import (
	"fmt"
	"syscall"

	"github.com/mscclgo/mscclgo"
)

// failure returns the error for the status of a wrapper. op is the operation.
func (d *driver) failure(rc C.status, op string) *mscclgo.Error {
	if rc < 0 {
		var version C.int
		name := C.GoString(C.mscclgo_cuda_function(-rc-1, &version))
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op,
			"the driver lacks %s: it is for CUDA %s, and %s or later is needed; update it",
			name, versionText(d.version), versionText(int(version)))
	}
	name, text := C.error_name(d.api, rc), C.error_text(d.api, rc)
	advice := ""
	if sticky(rc) {
		advice = "; the context is lost, and every later call on this device fails: end the process and check " +
			"the kernels that ran (compute-sanitizer finds the faulting line)"
	} else if a, ok := hints[rc]; ok {
		advice = "; " + a
	}
	if name == nil || text == nil {
		return mscclgo.Errorf(kind(rc), op, "CUDA error %d, for which the driver has no text%s", int(rc), advice)
	}
	err := mscclgo.Errorf(kind(rc), op, "%s (%d): %s%s", C.GoString(name), int(rc), C.GoString(text), advice)
	if rc == C.CUDA_ERROR_OUT_OF_MEMORY {
		err.Err = noMemory{err.Err}
	}
	return err
}

// noMemory is the driver's text for a lack of memory, which errors.Is finds to be syscall.ENOMEM, as an emulated device's is.
type noMemory struct{ error }

func (noMemory) Is(target error) bool { return target == syscall.ENOMEM }

// kind returns the kind of error of the driver's code, ErrSystem for codes not listed.
func kind(rc C.status) mscclgo.Kind {
	switch rc {
	case C.CUDA_ERROR_INVALID_VALUE, C.CUDA_ERROR_INVALID_IMAGE, C.CUDA_ERROR_INVALID_CONTEXT,
		C.CUDA_ERROR_INVALID_PTX, C.CUDA_ERROR_INVALID_SOURCE, C.CUDA_ERROR_INVALID_HANDLE,
		C.CUDA_ERROR_ILLEGAL_STATE, C.CUDA_ERROR_NOT_FOUND, C.CUDA_ERROR_NOT_READY,
		C.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, C.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
		return mscclgo.ErrInvalid
	case C.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, C.CUDA_ERROR_NO_DEVICE,
		C.CUDA_ERROR_NO_BINARY_FOR_GPU, C.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
		C.CUDA_ERROR_JIT_COMPILER_NOT_FOUND, C.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
		C.CUDA_ERROR_NOT_SUPPORTED:
		return mscclgo.ErrUnsupported
	}
	if rc >= C.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && rc <= C.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD {
		return mscclgo.ErrInvalid
	}
	return mscclgo.ErrSystem
}

// sticky reports whether a context cannot be used after the error.
func sticky(rc C.status) bool {
	switch rc {
	case C.CUDA_ERROR_ECC_UNCORRECTABLE, C.CUDA_ERROR_NVLINK_UNCORRECTABLE, C.CUDA_ERROR_CONTAINED,
		C.CUDA_ERROR_ILLEGAL_ADDRESS, C.CUDA_ERROR_LAUNCH_TIMEOUT, C.CUDA_ERROR_CONTEXT_IS_DESTROYED,
		C.CUDA_ERROR_ASSERT, C.CUDA_ERROR_TENSOR_MEMORY_LEAK:
		return true
	}
	return rc >= C.CUDA_ERROR_HARDWARE_STACK_ERROR && rc <= C.CUDA_ERROR_LAUNCH_FAILED
}

// hints complete the driver's own texts with what to do.
var hints = map[C.status]string{
	C.CUDA_ERROR_NO_BINARY_FOR_GPU:              "compile for this GPU's architecture, or load PTX",
	C.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:        "the compiler is newer than the driver: load a cubin, or update the driver",
	C.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:        "use fewer threads in a block or less shared memory",
	C.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:   "use no more blocks than Kernel.MaxResidentBlocks allows",
	C.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:     "a stream that captures is not waited for; end the capture first",
	C.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:        "the legacy default stream cannot be used while a stream that synchronizes with it captures; use another stream",
	C.CUDA_ERROR_STUB_LIBRARY:                   "this libcuda.so.1 is a stub of the toolkit, for linking only: take its folder out of LD_LIBRARY_PATH, and install NVIDIA's driver",
	C.CUDA_ERROR_SYSTEM_NOT_READY:               "is nvidia-fabricmanager running? look at systemctl status nvidia-fabricmanager",
	C.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:         "libcuda.so.1 and the kernel module are of different versions: reboot, or mount the host's library",
	C.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: "this libcuda.so.1 is of a package for forward compatibility (cuda-compat), which this GPU does not support: take its folder out of LD_LIBRARY_PATH",
}

// fail is failure for an operation on this GPU.
func (p *primary) fail(rc C.status, format string, args ...any) *mscclgo.Error {
	err := p.ordinal.driver.failure(rc, p.op(format, args...))
	if rc == C.CUDA_ERROR_OUT_OF_MEMORY {
		if free, total, infoErr := p.memoryInfo(); infoErr == nil {
			err.Err = fmt.Errorf("%w; %d of the device's %d bytes are free", err.Err, free, total)
		}
	}
	return err
}

// result is fail for a status that may be 0, which is no error.
func (p *primary) result(rc C.status, format string, args ...any) error {
	if rc == 0 {
		return nil
	}
	return p.fail(rc, format, args...)
}

// op returns the operation of an error on this GPU.
func (p *primary) op(format string, args ...any) string {
	return "gpu: " + fmt.Sprintf(format, args...) + " on " + p.ordinal.name()
}
