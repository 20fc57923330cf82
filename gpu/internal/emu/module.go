package emu

// #include <stdlib.h>
// #include "module.h"
import "C"

import (
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/emuimage"
	"github.com/mscclgo/mscclgo/internal/race"
)

// module is a shared object, loaded from a memory file of its own. The system's loader
// tells objects apart by their files, so two modules of one image have variables of
// their own.
type module struct {
	dev     *device
	c       C.module
	fd      int // open while loaded, since the loader remembers its name; not an os.File, which has a finalizer
	size    int // of the file
	object  *object
	base    uint64 // address that the object's addresses are relative to
	kernels map[string]*kernel
	raced   race.Module

	mu     sync.Mutex
	users  int // queued launches
	closed bool
}

func (d *device) LoadModule(image []byte) (backend.Module, error) {
	op := d.op("load a module of %d bytes", len(image))
	data, err := emuimage.Open(image)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the image is not for emulated devices; devicecode.Compile makes such images for %q: %w", d.info.Arch, err)
	}
	o, err := parseObject(data)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
	}
	fd, err := unix.MemfdCreate("mscclgo-module", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot make a memory file: %w", err)
	}
	m := &module{dev: d, fd: fd, size: len(data), object: o, kernels: map[string]*kernel{}}
	if err := writeAll(fd, data); err != nil {
		unix.Close(fd)
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot write a memory file: %w", err)
	}
	var text [512]C.char
	var lacked C.int
	if C.module_open(&m.c, C.int(fd), &text[0], C.uint64_t(len(text)), &lacked) == 0 {
		unix.Close(fd)
		if lacked != 0 {
			return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "the system's loader cannot load it: %w (%s)", unix.Errno(lacked), C.GoString(&text[0]))
		}
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%s", C.GoString(&text[0]))
	}
	if why := m.race(data); why != "" {
		C.module_close(&m.c)
		unix.Close(fd)
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%s", why)
	}
	m.base = addressOf(m.c.table) - o.table
	m.watchVariables()
	m.lines(data)
	for i := C.uint64_t(0); ; i++ {
		k := C.module_kernel(&m.c, i)
		if k == nil {
			break
		}
		m.kernels[C.GoString(k.name)] = newKernel(m, k)
	}
	names := m.names()
	for name, k := range m.kernels {
		k.static = o.staticShared(name, names)
		k.dynamic = max(0, defaultShared-k.static)
	}
	if !d.keep(m) {
		m.Close()
		return nil, d.gone(op)
	}
	return m, nil
}

// keep has Close unload a module that is still loaded then. It reports false if the device is closed.
func (d *device) keep(m *module) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.modules[m] = true
	return true
}

// writeAll writes all data to a descriptor.
func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// names returns the names of the kernels, sorted.
func (m *module) names() []string {
	names := make([]string, 0, len(m.kernels))
	for name := range m.kernels {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (m *module) Kernel(name string) (backend.Kernel, error) {
	if k, ok := m.kernels[name]; ok {
		return k, nil
	}
	op := m.dev.op("find kernel %s", name)
	if len(m.kernels) == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the module has no kernels; declare it extern \"C\" __global__")
	}
	return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the module has no such kernel; it has %s; declare it extern \"C\" __global__", strings.Join(m.names(), ", "))
}

func (m *module) Symbol(name string) (ptr, size uint64, err error) {
	v, ok := m.object.variables[name]
	if !ok {
		return 0, 0, mscclgo.Errorf(mscclgo.ErrInvalid, m.dev.op("find symbol %s", name), "the module has no such variable; declare it extern \"C\" __device__")
	}
	return m.base + v.address, v.size, nil
}

// use keeps the module loaded until unuse.
func (m *module) use(op string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the kernel's module is closed")
	}
	m.users++
	return nil
}

func (m *module) unuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users--
	m.unload()
}

// unload unloads the object if it is closed and no launch needs it. The caller holds mu.
func (m *module) unload() {
	if m.closed && m.users == 0 && m.fd >= 0 {
		m.forgetVariables()
		C.module_close(&m.c)
		unix.Close(m.fd)
		m.fd = -1
	}
}

// Close unloads the module when the launches of its kernels have ended.
func (m *module) Close() error {
	m.dev.mu.Lock()
	delete(m.dev.modules, m)
	m.dev.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.unload()
	return nil
}
