package gpu

import (
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// Module is device code loaded on a device.
type Module struct {
	dev  *Device
	b    backend.Module
	life lifetime
	// kernels has the parameters of the kernels that the image describes.
	kernels map[string][]signature.Param
}

// LoadModule loads device code: PTX, a cubin or a fatbin on an NVIDIA GPU, an image
// made by package devicecode on an emulated device. The image is copied.
//
// CUDA's driver loads a module when the kernels of the process on that GPU have ended, and
// has calls of other threads wait meanwhile. LoadModule waits up to a second for kernels on
// streams of [Device.NewStream] to end; load what is needed before a kernel starts that
// runs for longer. Code without variables that another rank of the process has loaded is
// shared with it, at once.
//
// Errors: ErrInvalid, with the driver's message, if the image is of another kind or
// cannot be loaded; ErrUnsupported if it is for another architecture or needs a newer
// driver.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	op := fmt.Sprintf("gpu: load a module of %d bytes on %v", len(image), d)
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if len(image) == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the image is empty")
	}
	_, described, err := signature.Split(image)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the image is damaged: %w", err)
	}
	defer d.driver("loads code onto the GPU")()
	b, err := d.b.LoadModule(image)
	if err != nil {
		return nil, err
	}
	m := &Module{dev: d, b: b, kernels: map[string][]signature.Param{}}
	for _, k := range described {
		m.kernels[k.Name] = k.Params
	}
	return m, nil
}

// Device returns the device that the module is loaded on.
func (m *Module) Device() *Device { return m.dev }

// Kernel returns the extern "C" __global__ function of this name.
//
// Errors: ErrInvalid if there is none.
func (m *Module) Kernel(name string) (*Kernel, error) {
	if err := m.usable("gpu: find kernel " + name); err != nil {
		return nil, err
	}
	b, err := m.b.Kernel(name)
	if err != nil {
		return nil, err
	}
	return newKernel(m, name, b), nil
}

// Symbol returns the memory of the extern "C" __device__ variable of this name, which
// is valid as long as the module is open.
//
// Errors: ErrInvalid if there is none.
func (m *Module) Symbol(name string) (*Buffer, error) {
	if err := m.usable("gpu: find symbol " + name); err != nil {
		return nil, err
	}
	ptr, size, err := m.b.Symbol(name)
	if err != nil {
		return nil, err
	}
	return &Buffer{dev: m.dev, ptr: Ptr(ptr), size: size, view: true, mem: &allocation{
		release: func() error { return nil }, base: Ptr(ptr), capacity: size, life: &m.life,
	}}, nil
}

// Close unloads the code. Its kernels must have ended. It is safe to call twice, and
// does nothing on nil.
func (m *Module) Close() error {
	if m == nil || !m.life.end() {
		return nil
	}
	return m.b.Close()
}

func (m *Module) usable(op string) error {
	if m == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the module is nil")
	}
	if m.life.over() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the module on %v is closed", m.dev)
	}
	return m.dev.usable(op)
}
