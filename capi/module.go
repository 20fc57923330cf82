package main

// #include "process.h"
import "C"

import (
	"context"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// kernel is what the handle of a kernel stands for.
type kernel struct {
	*gpu.Kernel

	mu       sync.Mutex
	types    []C.mscclgo_parameter_type // nil until asked for; their texts are memory of C
	pointees []*C.char                  // likewise
	shared   int                        // the dynamic shared memory that a launch may have, once it was asked for
}

// allow lets launches have so much dynamic shared memory, for which C has no call of its own.
func (k *kernel) allow(shared int) error {
	if shared <= 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.shared == 0 {
		a, err := k.Attributes()
		if err != nil {
			return err
		}
		k.shared = a.MaxDynamicShared
	}
	if shared <= k.shared {
		return nil
	}
	if err := k.SetMaxDynamicShared(shared); err != nil {
		return err
	}
	k.shared = shared
	return nil
}

// parameters returns what the kernel's parameters are in its source, and what those that are pointers
// point to.
func (k *kernel) parameters() (types []C.mscclgo_parameter_type, pointees []*C.char) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.types == nil {
		places := native.ParamsOf(k.Kernel)
		k.types, k.pointees = make([]C.mscclgo_parameter_type, len(places)), make([]*C.char, len(places))
		for i, p := range native.SignatureOf(k.Kernel) {
			to := p.Type.Pointee()
			k.types[i] = C.mscclgo_parameter_type{
				name: C.CString(p.Name), _type: C.CString(p.Type.Name), kind: kinds[p.Type.Kind], bytes: C.uint32_t(places[i].Size),
				pointee: kinds[to.Kind], pointee_bytes: C.uint32_t(to.Size),
			}
			k.pointees[i] = C.CString(to.Name)
		}
	}
	return k.types, k.pointees
}

// close frees the texts. No call uses the kernel any longer.
func (k *kernel) close() error {
	for i, t := range k.types {
		C.free(unsafe.Pointer(t.name))
		C.free(unsafe.Pointer(t._type))
		C.free(unsafe.Pointer(k.pointees[i]))
	}
	return nil
}

// kinds are the kinds of types. A parameter is no array: it would be a pointer.
var kinds = map[signature.Kind]C.mscclgo_kind{
	signature.Bool: C.MSCCLGO_KIND_BOOL, signature.Int: C.MSCCLGO_KIND_INT, signature.Uint: C.MSCCLGO_KIND_UINT,
	signature.Enum: C.MSCCLGO_KIND_ENUM, signature.Float: C.MSCCLGO_KIND_FLOAT, signature.Pointer: C.MSCCLGO_KIND_POINTER,
	signature.Struct: C.MSCCLGO_KIND_STRUCT,
}

//export capi_module_compile
func capi_module_compile(handle C.uintptr_t, name, source *C.char, o *C.mscclgo_compile_options, result *C.uintptr_t) C.mscclgo_status {
	const op = "compile a module"
	return withDevice(op, handle, func(of *object, d *gpu.Device) error {
		if err := isNull(op, unsafe.Pointer(name), unsafe.Pointer(source), unsafe.Pointer(result)); err != nil {
			return err
		}
		var options devicecode.Options
		if o != nil {
			options = devicecode.Options{Defines: texts(o.defines), IncludeDirs: texts(o.include_dirs), Flags: texts(o.flags), Check: o.check != 0}
		}
		readEnvironment()
		m, err := devicecode.Load(context.Background(), d, C.GoString(name), []byte(C.GoString(source)), options)
		if err != nil {
			return err
		}
		objects.add(of, aModule, m, m.Close).store(result)
		return nil
	})
}

//export capi_module_load
func capi_module_load(handle C.uintptr_t, image C.uintptr_t, bytes C.size_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "load a module"
	return withDevice(op, handle, func(of *object, d *gpu.Device) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		data, err := hostBytes(op, image, bytes, reads)
		if err != nil {
			return err
		}
		m, err := d.LoadModule(data)
		if err != nil {
			return err
		}
		objects.add(of, aModule, m, m.Close).store(result)
		return nil
	})
}

//export capi_module_load_bundle
func capi_module_load_bundle(handle C.uintptr_t, file *C.char, result *C.uintptr_t) C.mscclgo_status {
	const op = "load a bundle"
	return withDevice(op, handle, func(of *object, d *gpu.Device) error {
		if err := isNull(op, unsafe.Pointer(file), unsafe.Pointer(result)); err != nil {
			return err
		}
		m, err := devicecode.LoadBundle(d, C.GoString(file))
		if err != nil {
			return err
		}
		objects.add(of, aModule, m, m.Close).store(result)
		return nil
	})
}

//export capi_module_destroy
func capi_module_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy a module", aModule, handle) })
}

//export capi_module_kernel
func capi_module_kernel(handle C.uintptr_t, name *C.char, result *C.uintptr_t) C.mscclgo_status {
	const op = "find a kernel"
	return call(func() error {
		return of(op, aModule, handle, func(o *object, m *gpu.Module) error {
			if err := isNull(op, unsafe.Pointer(name), unsafe.Pointer(result)); err != nil {
				return err
			}
			found, err := m.Kernel(C.GoString(name))
			if err != nil {
				return err
			}
			k := &kernel{Kernel: found}
			objects.once(o, aKernel, k.Name(), k, k.close).store(result)
			return nil
		})
	})
}

//export capi_kernel_parameters
func capi_kernel_parameters(handle C.uintptr_t, places *C.mscclgo_parameter, room C.size_t, count *C.size_t) C.mscclgo_status {
	const op = "get the parameters of a kernel"
	return call(func() error {
		return of(op, aKernel, handle, func(_ *object, k *kernel) error {
			if err := isNull(op, unsafe.Pointer(count)); err != nil {
				return err
			}
			if room > 0 {
				if err := isNull(op, unsafe.Pointer(places)); err != nil {
					return err
				}
			}
			all := native.ParamsOf(k.Kernel)
			*count = C.size_t(len(all))
			for i, p := range all[:min(len(all), int(min(room, 1<<30)))] {
				at := (*C.mscclgo_parameter)(unsafe.Add(unsafe.Pointer(places), i*C.sizeof_mscclgo_parameter))
				at.offset, at.bytes = C.uint32_t(p.Offset), C.uint32_t(p.Size)
			}
			return nil
		})
	})
}

//export capi_kernel_parameter_type
func capi_kernel_parameter_type(handle C.uintptr_t, i C.size_t, result *C.mscclgo_parameter_type) C.mscclgo_status {
	const op = "get the type of a kernel's parameter"
	return withParameter(op, handle, i, unsafe.Pointer(result), func(k *kernel) {
		types, _ := k.parameters()
		*result = types[i]
	})
}

//export capi_kernel_parameter_pointee
func capi_kernel_parameter_pointee(handle C.uintptr_t, i C.size_t, result **C.char) C.mscclgo_status {
	const op = "get what a kernel's parameter points to"
	return withParameter(op, handle, i, unsafe.Pointer(result), func(k *kernel) {
		_, pointees := k.parameters()
		*result = pointees[i]
	})
}

// withParameter has f called with a kernel that has a parameter i, for what it stores in result.
func withParameter(op string, handle C.uintptr_t, i C.size_t, result unsafe.Pointer, f func(*kernel)) C.mscclgo_status {
	return call(func() error {
		return of(op, aKernel, handle, func(_ *object, k *kernel) error {
			if err := isNull(op, result); err != nil {
				return err
			}
			if types, _ := k.parameters(); i >= C.size_t(len(types)) {
				return invalid(op, "there is no parameter %d of %s, which has %d, counted from 0", uint64(i), k.Name(), len(types))
			}
			f(k)
			return nil
		})
	})
}

//export capi_kernel_launch
func capi_kernel_launch(handle, stream C.uintptr_t, o *C.mscclgo_launch_config, parameters C.uintptr_t, bytes C.size_t) C.mscclgo_status {
	const op = "launch a kernel"
	return withStream(op, stream, func(_ *object, s *gpu.Stream) error {
		return of(op, aKernel, handle, func(_ *object, k *kernel) error {
			if err := isNull(op, unsafe.Pointer(o)); err != nil {
				return err
			}
			block, err := hostBytes(op, parameters, bytes, reads)
			if err != nil {
				return err
			}
			if err := k.allow(int(o.dynamic_shared_bytes)); err != nil {
				return err
			}
			config := gpu.LaunchConfig{Grid: dim3(o.grid), Block: dim3(o.block), DynamicShared: int(o.dynamic_shared_bytes), Cooperative: o.cooperative != 0}
			return native.LaunchPacked(k.Kernel, s, &config, block)
		})
	})
}

func dim3(d [3]C.uint32_t) gpu.Dim3 { return gpu.Dim3{X: int(d[0]), Y: int(d[1]), Z: int(d[2])} }
