package capi

// #include "process.h"
import "C"

import (
	"context"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
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

// parameters returns what the kernel's parameters are in its source, and what pointers among them
// point to.
func (k *kernel) parameters() (types []C.mscclgo_parameter_type, pointees []*C.char) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.types == nil {
		all := k.Internal().Params()
		k.types, k.pointees = make([]C.mscclgo_parameter_type, len(all)), make([]*C.char, len(all))
		for i, p := range all {
			to := p.Type.Pointee()
			k.types[i] = C.mscclgo_parameter_type{
				name: C.CString(p.Name), _type: C.CString(p.Type.Name), kind: kinds[p.Type.Kind], bytes: C.uint32_t(p.Size),
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

func (c *call) moduleCompile(device handle, name, source *C.char, o *C.mscclgo_compile_options, result *handle) error {
	owner, d := c.to("compile a module").device(device)
	need(c, name)
	need(c, source)
	return makes(c, result, owner, aModule, func() (*gpu.Module, error) {
		var options devicecode.Options
		if o != nil {
			options = devicecode.Options{Defines: texts(o.defines), IncludeDirs: texts(o.include_dirs), Flags: texts(o.flags), Check: o.check != 0}
		}
		readEnvironment()
		return devicecode.Load(context.Background(), d, C.GoString(name), []byte(C.GoString(source)), options)
	})
}

func (c *call) moduleLoad(device handle, image address, bytes uint64, result *handle) error {
	owner, d := c.to("load a module").device(device)
	return makes(c, result, owner, aModule, func() (*gpu.Module, error) { return d.LoadModule(c.host(image, bytes, reads)) })
}

func (c *call) moduleLoadBundle(device handle, file *C.char, result *handle) error {
	owner, d := c.to("load a bundle").device(device)
	need(c, file)
	return makes(c, result, owner, aModule, func() (*gpu.Module, error) { return devicecode.LoadBundle(d, C.GoString(file)) })
}

func (c *call) moduleKernel(module handle, name *C.char, result *handle) error {
	o, m := get[*gpu.Module](c.to("find a kernel"), aModule, module)
	need(c, name)
	need(c, result)
	found, err := m.Kernel(C.GoString(name))
	c.check(err)
	k := &kernel{Kernel: found}
	objects.once(o, aKernel, k.Name(), k, k.close).store(result)
	return nil
}

func (c *call) kernelParameters(kernel handle, places *C.mscclgo_parameter, room uint64, count *C.size_t) error {
	all := c.to("get the parameters of a kernel").kernel(kernel).Internal().Params()
	need(c, count)
	if room > 0 {
		need(c, places)
	}
	*count = C.size_t(len(all))
	for i, p := range all[:min(uint64(len(all)), room)] {
		at := (*C.mscclgo_parameter)(unsafe.Add(unsafe.Pointer(places), i*C.sizeof_mscclgo_parameter))
		at.offset, at.bytes = C.uint32_t(p.Offset), C.uint32_t(p.Size)
	}
	return nil
}

func (c *call) kernelParameterType(kernel handle, i uint64, result *C.mscclgo_parameter_type) error {
	types, _ := c.to("get the type of a kernel's parameter").parameters(kernel, i)
	return put(c, result, types[i], nil)
}

func (c *call) kernelParameterPointee(kernel handle, i uint64, result **C.char) error {
	_, pointees := c.to("get what a kernel's parameter points to").parameters(kernel, i)
	return put(c, result, pointees[i], nil)
}

// parameters returns the types of a kernel's parameters and of what they point to. It ends the call unless there
// is a parameter i.
func (c *call) parameters(kernel handle, i uint64) (types []C.mscclgo_parameter_type, pointees []*C.char) {
	k := c.kernel(kernel)
	if types, pointees = k.parameters(); i >= uint64(len(types)) {
		c.check(invalid(c.op, "there is no parameter %d of %s, which has %d, counted from 0", i, k.Name(), len(types)))
	}
	return types, pointees
}

func (c *call) kernelLaunch(kernel, stream handle, o *C.mscclgo_launch_config, parameters address, bytes uint64) error {
	s, k := c.to("launch a kernel").stream(stream), c.kernel(kernel)
	need(c, o)
	block := c.host(parameters, bytes, reads)
	c.check(k.allow(int(o.dynamic_shared_bytes)))
	config := gpu.LaunchConfig{Grid: dim3(o.grid), Block: dim3(o.block), DynamicShared: int(o.dynamic_shared_bytes), Cooperative: o.cooperative != 0}
	return k.Internal().LaunchPacked(s, config, block)
}

func dim3(d [3]C.uint32_t) gpu.Dim3 { return gpu.Dim3{X: int(d[0]), Y: int(d[1]), Z: int(d[2])} }
