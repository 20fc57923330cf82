package cuda

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed testdata/driver.c
var fakeSource []byte

// buildFake compiles testdata/driver.c into a library that the loader can open.
func buildFake(t *testing.T, flags ...string) string {
	t.Helper()
	compiler, err := exec.LookPath(cmp.Or(os.Getenv("CC"), "cc"))
	if err != nil {
		t.Skip("no C compiler to build a fake driver with:", err)
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "driver.c"), filepath.Join(dir, "libfake.so")
	check(t, os.WriteFile(source, fakeSource, 0o600))
	out, err := exec.Command(compiler, append(flags, "-shared", "-fPIC", "-o", library, source)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return library
}

func TestNoDriver(t *testing.T) {
	d := newDriver("libcuda-absent.so.1")
	for range 2 {
		_, err := d.List()
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "libcuda-absent.so.1 not found", "emu:0")
		_, err = d.Open(0)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "libcuda-absent.so.1 not found", "emu:0")
	}
}

func TestNoGPU(t *testing.T) {
	d := newDriver(buildFake(t, "-DINIT=NO_DEVICE"))
	_, err := d.List()
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "no GPU", "CUDA_VISIBLE_DEVICES")
}

// TestBrokenDriver has drivers that are there and do not work. Their errors are not ErrUnsupported, the kind where
// there is no driver.
func TestBrokenDriver(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "libcuda.so.1")
	check(t, os.WriteFile(empty, nil, 0o700))
	needed := buildFake(t, "-Wl,-soname,libneeded.so.1")
	lacking := buildFake(t, "-Wl,--no-as-needed", needed)
	check(t, os.Remove(needed))
	for library, want := range map[string]string{
		buildFake(t, "-DINIT=803"):              "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): fake; libcuda.so.1 and the kernel module are of different versions: reboot",
		buildFake(t, "-DINIT=34"):               "CUDA error 34, for which the driver has no text; this libcuda.so.1 is a stub",
		buildFake(t, "-DINIT=999"):              "999",
		buildFake(t, "-DcuInit=lacks"):          "the driver lacks cuInit",
		buildFake(t, "-DcuDeviceGetUuid=lacks"): "the driver lacks cuDeviceGetUuid",
		empty:                                   "file too short",
		lacking:                                 "libneeded.so.1: cannot open shared object file",
	} {
		_, err := newDriver(library).List()
		testerr.Expect(t, err, mscclgo.ErrSystem, want, "MSCCLGO_DEVICE=emu")
	}
}

// TestOldDriver: missing functions are errors when they are used and not before.
func TestOldDriver(t *testing.T) {
	driver := newDriver(buildFake(t))
	infos := must(driver.List())(t)
	if len(infos) != 1 || infos[0].Model != "Fake" || infos[0].PCIBusID != "0000:1b:00.0" || infos[0].DescriptorExport ||
		infos[0].MemoryGranularity != plainGranularity || infos[0].Arch != "sm_80" || infos[0].UUID[15] != 7 {
		t.Errorf("devices: %+v", infos)
	}
	d := must(driver.Open(0))(t)
	closeAtEnd(t, d.Close)
	other := must(driver.Open(0))(t) // the fake hands out its context once
	check(t, other.Close())

	m := must(d.Alloc(64))(t)
	closeAtEnd(t, m.Free)
	_, err := m.ExportFD()
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "IPC handle")
	_, err = d.ImportFD(0, 4096)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "descriptor")
	_, err = d.Alloc(1 << 20)
	testerr.Expect(t, err, mscclgo.ErrSystem, "CUDA_ERROR_OUT_OF_MEMORY (2)", "allocate 1048576 bytes on cuda:0",
		"4096 of the device's 1048576 bytes are free")
	if !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v is not ENOMEM", err)
	}

	_, err = d.LoadModule(kernels)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "cuModuleGetFunctionCount", "it is for CUDA 11.0", "12.4 or later")
	_, err = d.NewEvent()
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "cuEventCreate")

	s := must(d.NewStream())(t)
	closeAtEnd(t, s.Close)
	testerr.Expect(t, s.WriteValue64(8, 1), mscclgo.ErrUnsupported, "cuStreamWriteValue64_v2", "11.7")
	testerr.Expect(t, s.BeginCapture(), mscclgo.ErrUnsupported, "cuStreamBeginCapture_v2")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testerr.Expect(t, s.Synchronize(ctx), mscclgo.ErrTimeout, "synchronize a stream on cuda:0")
	testerr.Expect(t, d.CopyToHost(make([]byte, 8), 4096), mscclgo.ErrSystem,
		"CUDA_ERROR_LAUNCH_FAILED (719)", "copy 8 bytes from 0x1000", "the context is lost")
	check(t, d.CopyToHost(nil, 4096))
}

// TestRDMAOrdered asks drivers whether kernels see the writes of RDMA devices in order. The values are of the
// enumeration CUGPUDirectRDMAWritesOrdering.
func TestRDMAOrdered(t *testing.T) {
	for ordering, want := range map[string]bool{"0": false, "100": true, "200": true} {
		if infos := must(newDriver(buildFake(t, "-DRDMA_ORDERING="+ordering)).List())(t); infos[0].RDMAOrdered != want {
			t.Errorf("ordering %s: %v, want %v", ordering, infos[0].RDMAOrdered, want)
		}
	}
}

// TestReopen releases the context with its last holder and takes it anew.
func TestReopen(t *testing.T) {
	driver := newDriver(buildFake(t))
	for range 3 {
		d := must(driver.Open(0))(t)
		s := must(d.NewStream())(t)
		check(t, d.Close())
		check(t, d.Close()) // which leaves the stream its context
		_, err := s.Query()
		check(t, err)
		check(t, s.Close())
		check(t, s.Close())
		_, err = d.NewStream()
		testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
	}
}

// TestEnter makes a stream's context current, which the fake refuses once it is released.
func TestEnter(t *testing.T) {
	d := must(newDriver(buildFake(t)).Open(0))(t)
	s := must(d.NewStream())(t)
	e := s.(backend.Enterer)
	check(t, e.Enter())
	check(t, s.Close())
	check(t, d.Close())
	testerr.Expect(t, e.Enter(), mscclgo.ErrInvalid, "201", "make the context current on cuda:0")
}

// TestOverlapByImage launches kernels so that they may overlap with those before. Code for
// older architectures, which the driver compiles for a new device, does not wait, so that
// it must not be launched so.
func TestOverlapByImage(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DOVERLAP")).Open(0))(t)
	closeAtEnd(t, d.Close)
	m := must(d.LoadModule(kernels))(t)
	closeAtEnd(t, m.Close)
	s := must(d.NewStream())(t)
	closeAtEnd(t, s.Close)
	for version, overlaps := range map[string]bool{"70": false, "80": false, "89": false, "90": true, "100": true} {
		k := must(m.Kernel(version))(t)
		for _, asked := range []bool{false, true} {
			err := s.Launch(k, backend.LaunchConfig{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Overlap: asked}, nil)
			if asked && overlaps {
				testerr.Expect(t, err, mscclgo.ErrSystem, "719")
			} else if err != nil {
				t.Errorf("compiled for %s, overlap asked for: %v: it was launched as one that may overlap (%v)", version, asked, err)
			}
		}
	}
}

// TestBuiltinsAllocateNothing queues what a launch of this package's own kernels does.
func TestBuiltinsAllocateNothing(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DOVERLAP")).Open(0))(t)
	closeAtEnd(t, d.Close)
	s := must(d.NewStream())(t)
	closeAtEnd(t, s.Close)
	const word, other = 0x7f0000001000, 0x7f0000002000
	for name, queue := range map[string]func() error{
		"Add64":      func() error { return s.Add64(word, 1<<40) },
		"Exchange64": func() error { return s.Exchange64(word, 1<<40, other) },
		"Stamp":      func() error { return s.Stamp(other, 1<<40, 1<<41) },
	} {
		if n := testing.AllocsPerRun(100, func() { check(t, queue()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
