package gpu_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

func TestList(t *testing.T) {
	all, err := gpu.List()
	check(t, err)
	seen := map[string]bool{}
	uuids := map[[16]byte]bool{}
	for _, info := range all {
		if seen[info.Name] || uuids[info.UUID] {
			t.Errorf("%s or its UUID is listed twice", info.Name)
		}
		seen[info.Name], uuids[info.UUID] = true, true
	}
	if !seen["emu:0"] {
		t.Errorf("there is no emu:0 among %v", all)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, bad := range []string{"", "gpu", "emu:", "emu:x", "emu:-1", "emu:99999999", "emu:60000", "emu:0:0", "cuda:x", "EMU:0"} {
		d, err := gpu.Open(bad)
		if err == nil {
			t.Errorf("opened %q as %v", bad, d)
			continue
		}
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), bad) {
			t.Errorf("opening %q: %v", bad, err)
		}
	}
	if d, err := gpu.Open("cuda:60000"); err == nil {
		t.Errorf("opened %v", d)
	} else if !errors.Is(err, mscclgo.ErrInvalid) && !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("opening cuda:60000: %v", err)
	}
}

// TestOpenShort opens number 0 by its kind, and the first device there is.
func TestOpenShort(t *testing.T) {
	kind, _, _ := strings.Cut(name(t), ":")
	d := must[*gpu.Device](t)(gpu.Open(kind))
	if d.String() != kind+":0" {
		t.Errorf("%q opened %v", kind, d)
	}
	all, err := gpu.List()
	check(t, err)
	if d := must[*gpu.Device](t)(gpu.Open("auto")); d.String() != all[0].Name {
		t.Errorf("auto opened %v, not %s", d, all[0].Name)
	}
}

func TestAssign(t *testing.T) {
	if got, err := gpu.Assign("any:7", 3); got != "any:7" || err != nil {
		t.Errorf("a name returned %q, %v", got, err)
	}
	for rank := range 20 {
		got, err := gpu.Assign("emu", rank)
		check(t, err)
		must[*gpu.Device](t)(gpu.Open(got))
		auto, err := gpu.Assign("auto", rank)
		check(t, err)
		must[*gpu.Device](t)(gpu.Open(auto))
	}
	first, _ := gpu.Assign("emu", 0)
	second, _ := gpu.Assign("emu", 1)
	if first != "emu:0" || second != "emu:1" {
		t.Errorf("ranks 0 and 1 got %s and %s", first, second)
	}
	_, err := gpu.Assign("emu", -1)
	invalid(t, err, "-1")
	_, err = gpu.Assign("fpga", 0)
	invalid(t, err, "fpga", "emu", "cuda")
}

func TestInfo(t *testing.T) {
	d := testdev.Open(t, 0)
	info := d.Info()
	if info.Name != d.String() || info.Arch == "" || info.Model == "" || info.DriverVersion == "" ||
		info.Multiprocessors < 1 || info.MaxBlocksPerSM < 1 || info.MaxThreadsPerBlock < 256 ||
		info.MaxThreadsPerSM < info.MaxThreadsPerBlock || info.MaxSharedPerBlock < 48<<10 || info.WarpSize != 32 || !info.RDMAOrdered ||
		info.TotalMemory == 0 || info.MemoryGranularity == 0 || info.UUID == [16]byte{} {
		t.Errorf("%v says %+v", d, info)
	}
	if !d.CanAccess(info.UUID) {
		t.Error("a device cannot access itself")
	}
	if !d.Internal().CanUpdate(info.UUID) || d.Internal().CanUpdate([16]byte{1}) {
		t.Errorf("%v: atomics in its own memory %v, in memory of no device %v", d, d.Internal().CanUpdate(info.UUID), d.Internal().CanUpdate([16]byte{1}))
	}
	if d.CanAccess([16]byte{1}) {
		t.Error("a device can access one that is not there")
	}
}

func TestMemoryInfo(t *testing.T) {
	d := testdev.Open(t, 0)
	const size = 64 << 20
	before, total, err := d.MemoryInfo()
	check(t, err)
	b, err := d.Alloc(size)
	check(t, err)
	during, _, err := d.MemoryInfo()
	check(t, err)
	check(t, b.Close())
	after, _, err := d.MemoryInfo()
	check(t, err)
	if before > total || during > before-size || after < during+size {
		t.Errorf("of %d bytes %d were free, %d with %d allocated, %d after", total, before, during, size, after)
	}
}

// TestDeviceClosed calls all methods of a closed device.
func TestDeviceClosed(t *testing.T) {
	d, err := gpu.Open(name(t))
	check(t, err)
	other := testdev.Open(t, 1)
	theirs := alloc(t, other, 8)
	m, err := d.LoadModule(image(t, d))
	check(t, err)
	k := kernel(t, m, "nothing")
	b, err := d.Alloc(8)
	check(t, err)
	h, err := d.AllocHost(8)
	check(t, err)
	s, err := d.NewStream()
	check(t, err)
	e, err := d.NewEvent()
	check(t, err)
	check(t, d.Close())
	check(t, d.Close())

	calls := map[string]error{}
	try := func(what string, err error) { calls[what] = err }
	_, err = d.Alloc(8)
	try("Alloc", err)
	_, err = d.AllocHost(8)
	try("AllocHost", err)
	_, err = d.Wrap(b.Ptr(), 8)
	try("Wrap", err)
	_, err = d.Internal().Import(nil, 8)
	try("Import", err)
	_, err = d.Internal().OpenIPC([64]byte{}, 8)
	try("OpenIPC", err)
	_, err = d.Access(theirs)
	try("Access", err)
	_, err = d.NewStream()
	try("NewStream", err)
	_, err = d.NewEvent()
	try("NewEvent", err)
	_, err = d.LoadModule([]byte{1})
	try("LoadModule", err)
	_, _, err = d.MemoryInfo()
	try("MemoryInfo", err)
	_, err = gpu.Upload(d, []int32{1})
	try("Upload", err)
	try("CopyIn", gpu.CopyIn(b, []byte{1}))
	try("CopyOut", gpu.CopyOut(make([]byte, 1), b))
	_, err = b.Slice(0, 1)
	try("Slice", err)
	_, err = b.Internal().Export()
	try("Export", err)
	_, _, err = b.Internal().IPCHandle()
	try("IPCHandle", err)
	try("Fill", s.Fill(b, 0, 0, 8))
	try("Copy", s.Copy(b, 0, b, 0, 8))
	try("Synchronize", s.Synchronize(t.Context()))
	try("Record", s.Record(e))
	_, err = e.Query()
	try("Event.Query", err)
	_, err = m.Kernel("nothing")
	try("Kernel", err)
	_, err = m.Symbol("counter")
	try("Symbol", err)
	_, err = k.Attributes()
	try("Attributes", err)
	try("Launch", k.Launch(s, gpu.Blocks(1, 1)))
	for what, err := range calls {
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), d.String()+" is closed") {
			t.Errorf("%s of a closed device: %v", what, err)
		}
	}

	if b.HostBytes() != nil || h.HostBytes() != nil || h.Bytes() != nil {
		t.Error("a buffer has bytes though its device is closed")
	}

	// What was made of it can still be closed, in any order.
	for _, c := range []interface{ Close() error }{e, b, h, m, s} {
		check(t, c.Close())
		check(t, c.Close())
	}
}
