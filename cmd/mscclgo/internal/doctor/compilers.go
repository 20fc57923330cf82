package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/deathwatch"
)

// source is a kernel that needs the library's headers.
const source = `#include <mscclgo/copy.cuh>
extern "C" __global__ void probe(unsigned* out) { out[threadIdx.x] = threadIdx.x * 3; }
`

// compile compiles the kernel anew.
func (e *examination) compile(arch string) (image []byte, took time.Duration, err error) {
	dir, watch, err := deathwatch.Folder("mscclgo-doctor-")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(dir)
	defer watch.Close()
	began := time.Now()
	image, err = devicecode.Compile(e.ctx, arch, "probe.cu", []byte(source), devicecode.Options{CacheDir: dir})
	return image, time.Since(began), err
}

// emulation finds out whether emulated devices work.
func (e *examination) emulation() Finding {
	const mend = "apt-get install g++  # or set CXX to a C++ compiler"
	image, took, err := e.compile(devicecode.ArchEmu)
	if err != nil {
		return failed(mend, "%v", err)
	}
	if err := e.probe(image); err != nil {
		return failed("", "a kernel on an emulated device: %v", err)
	}
	return ok("the C++ compiler makes kernels for emulated devices (%v), and they run", took.Round(10*time.Millisecond))
}

// probe runs the kernel on an emulated device.
func (e *examination) probe(image []byte) error {
	d, err := gpu.Open("emu:0")
	if err != nil {
		return err
	}
	return errors.Join(e.probeOn(d, image), d.Close())
}

func (e *examination) probeOn(d *gpu.Device, image []byte) (err error) {
	out, err := gpu.Upload(d, make([]uint32, 32))
	if err != nil {
		return err
	}
	defer out.Close()
	m, err := d.LoadModule(image)
	if err != nil {
		return err
	}
	defer m.Close()
	k, err := m.Kernel("probe")
	if err != nil {
		return err
	}
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	if err := k.Launch(s, gpu.Blocks(1, 32), out); err != nil {
		return err
	}
	if err := s.Synchronize(e.ctx); err != nil {
		return err
	}
	got := make([]uint32, 32)
	if err := gpu.CopyOut(got, out); err != nil {
		return err
	}
	for i, v := range got {
		if v != uint32(3*i) {
			return fmt.Errorf("element %d is %d, want %d", i, v, 3*i)
		}
	}
	return nil
}

// cudaCompiler finds out whether kernels can be compiled for GPUs.
func (e *examination) cudaCompiler() Finding {
	arch, have := "sm_90", false
	if gpus := e.gpus(); len(gpus) > 0 {
		arch, have = gpus[0].Arch, true
	}
	const mend = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime  # and set MSCCLGO_NVRTC to the folder of libnvrtc.so; or install CUDA's toolkit and set CUDA_HOME"
	_, took, err := e.compile(arch)
	switch {
	case err == nil:
		return ok("NVIDIA's compiler makes kernels for %s (%v)", arch, took.Round(10*time.Millisecond))
	case have:
		return failed(mend, "%v", err)
	}
	f := absent("%v", err) // it takes no GPU to compile for one
	f.Mend = mend
	return f
}

// cache finds out whether compiled kernels are kept.
func (e *examination) cache() Finding {
	const mend = "export MSCCLGO_CACHE=/var/tmp/mscclgo-$USER"
	dir := e.env("MSCCLGO_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return warning(mend, "%v: kernels are compiled anew in each process", err)
		}
		dir = filepath.Join(user, "mscclgo")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return warning(mend, "%v: kernels are compiled anew in each process", err)
	}
	f, err := os.CreateTemp(dir, ".doctor-")
	if err != nil {
		return warning(mend, "%v: kernels are compiled anew in each process", err)
	}
	os.Remove(f.Name())
	f.Close()
	return ok("compiled kernels are kept in %s", dir)
}
