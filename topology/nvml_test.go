package topology

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestDGX(t *testing.T) {
	server := dgxServer()
	m := discover(t, dgxTree(), server)
	if m.GPUError != nil || len(m.GPUs) != 8 {
		t.Fatalf("%d GPUs, %v", len(m.GPUs), m.GPUError)
	}
	for i, g := range m.GPUs {
		at := dgxGPUs[i]
		if g.Index != i || !strings.HasSuffix(at, "/"+g.PCIBusID) || g.NUMANode != i/4 || len(g.CPUs) != 64 ||
			g.Model != "Mock NVIDIA A100-SXM4-40GB" {
			t.Errorf("GPU %d is %+v", i, g)
		}
		if want := [16]byte{4: 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x44, 0x44, 0x44, byte(i)}; g.UUID != want {
			t.Errorf("GPU %d has UUID %x, want %x", i, g.UUID, want)
		}
		if found, ok := m.GPU(g.UUID); !ok || found.Index != i {
			t.Errorf("GPU %d is not found by its UUID", i)
		}
		if len(g.NVLinks) != 12 {
			t.Fatalf("GPU %d has %d NVLinks", i, len(g.NVLinks))
		}
		for n, l := range g.NVLinks {
			want := Link{Number: n, Active: true, Version: 3, Peer: PeerSwitch, PeerPCI: switchID}
			testcmp.Equal(t, fmt.Sprintf("link %d of GPU %d", n, i), l, want)
		}
	}
	if _, ok := m.GPU([16]byte{}); ok {
		t.Error("found a GPU by no UUID")
	}
	if up, down := len(server.InitCalls()), len(server.ShutdownCalls()); up != 1 || down != 1 {
		t.Errorf("%d calls of Init, %d of Shutdown", up, down)
	}
}

// TestPeers has links of every kind, and one that is down.
func TestPeers(t *testing.T) {
	s := dgxServer()
	const other = "0000:0f:00.0"
	setLinks(s.Devices[0].(*dgxa100.Device), []fakeLink{
		{kind: nvml.NVLINK_DEVICE_TYPE_GPU, peer: other},
		{kind: nvml.NVLINK_DEVICE_TYPE_IBMNPU, peer: switchID},
		{kind: 77, peer: switchID},
		{kind: nvml.NVLINK_DEVICE_TYPE_UNKNOWN, peer: "nowhere"},
		{kind: nvml.NVLINK_DEVICE_TYPE_SWITCH, peer: switchID, down: true},
	})
	m := discover(t, dgxTree(), s)
	want := []Link{
		{0, true, 3, PeerGPU, other},
		{1, true, 3, PeerCPU, switchID},
		{2, true, 3, PeerUnknown, switchID},
		{3, true, 3, PeerUnknown, ""},
		{4, false, 3, PeerUnknown, ""},
	}
	testcmp.Equal(t, "links", m.GPUs[0].NVLinks, want)
}

// TestBareMock uses go-nvml's mock as it is, whose GPUs have no addresses.
func TestBareMock(t *testing.T) {
	server := dgxa100.New()
	server.LookupSymbolFunc = func(symbol string) error {
		if symbol == affinitySymbol || strings.Contains(symbol, "NvLink") {
			return errors.New("this mock has no such function")
		}
		return nil
	}
	m := discover(t, dgxTree(), server)
	if len(m.GPUs) != 8 || m.GPUError != nil {
		t.Fatalf("%d GPUs, %v", len(m.GPUs), m.GPUError)
	}
	for _, g := range m.GPUs {
		if g.PCIBusID != "" || g.NUMANode != Unknown || g.UUID == [16]byte{} || g.NVLinks != nil {
			t.Errorf("%+v", g)
		}
	}
	if !strings.Contains(m.GPUs[0].Model, "Mock NVIDIA A100") {
		t.Errorf("the model is %q", m.GPUs[0].Model)
	}
}

func TestNoGPUs(t *testing.T) {
	failing := func(ret nvml.Return) nvml.Interface {
		s := dgxServer()
		s.InitFunc = func() nvml.Return { return ret }
		return s
	}
	uncounted := dgxServer()
	uncounted.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	old := dgxServer()
	old.LookupSymbolFunc = func(string) error { return errors.New("undefined symbol") }
	for name, c := range map[string]struct {
		lib  nvml.Interface
		kind mscclgo.Kind
		says string
	}{
		"no library": {noNVML(), mscclgo.ErrUnsupported, "libnvidia-ml.so.1"},
		"no driver":  {failing(nvml.ERROR_DRIVER_NOT_LOADED), mscclgo.ErrUnsupported, "driver is not loaded"},
		"refused":    {failing(nvml.ERROR_NO_PERMISSION), mscclgo.ErrSystem, "NVML failed"},
		"no count":   {uncounted, mscclgo.ErrSystem, "NVML failed"},
		"old":        {old, mscclgo.ErrUnsupported, "newer NVIDIA driver"},
	} {
		m := discover(t, dgxTree(), c.lib)
		if len(m.GPUs) != 0 || !errors.Is(m.GPUError, c.kind) || !strings.Contains(m.GPUError.Error(), c.says) {
			t.Errorf("%s: %d GPUs, %v", name, len(m.GPUs), m.GPUError)
		}
		if len(m.NICs) != 5 {
			t.Errorf("%s: the rest is missing: %+v", name, m.NICs)
		}
		// CUDA may know a GPU that NVML does not.
		if cpus, err := m.CPUsNear("0000:07:00.0"); err != nil || len(cpus) != 64 {
			t.Errorf("%s: CPUs near a GPU: %v, %v", name, cpus, err)
		}
	}
}

func TestLostGPU(t *testing.T) {
	s := dgxServer()
	answer := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 3 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return answer(i)
	}
	m := discover(t, dgxTree(), s)
	if len(m.GPUs) != 7 || m.GPUs[3].Index != 4 {
		t.Errorf("GPUs %+v", m.GPUs)
	}
	if !errors.Is(m.GPUError, mscclgo.ErrSystem) || !errors.Is(m.GPUError, nvml.ERROR_GPU_IS_LOST) ||
		!strings.Contains(m.GPUError.Error(), "GPU 3") {
		t.Errorf("%v", m.GPUError)
	}
}

// TestNothingSupported is a virtual machine at its worst: NVML supports only the number
// of GPUs.
func TestNothingSupported(t *testing.T) {
	const no = nvml.ERROR_NOT_SUPPORTED
	s := dgxServer()
	for _, d := range s.Devices {
		d := d.(*dgxa100.Device)
		d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, no }
		d.GetUUIDFunc = func() (string, nvml.Return) { return "", no }
		d.GetNameFunc = func() (string, nvml.Return) { return "", no }
		d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, no }
	}
	m := discover(t, newTree(), s)
	if len(m.GPUs) != 8 || m.GPUError != nil {
		t.Fatalf("%d GPUs, %v", len(m.GPUs), m.GPUError)
	}
	for i, g := range m.GPUs {
		testcmp.Equal(t, "a GPU", g, GPU{Index: i, NUMANode: Unknown})
	}
}

// TestHiddenPCI is a container whose sysfs has no PCI devices: the node follows from the
// CPUs that NVML reports.
func TestHiddenPCI(t *testing.T) {
	root := dgxTree()
	for name := range root.MapFS {
		if strings.HasPrefix(name, "bus/") || strings.HasPrefix(name, "class/") {
			delete(root.MapFS, name)
		}
	}
	s := dgxServer()
	for i, d := range s.Devices {
		d.(*dgxa100.Device).GetCpuAffinityFunc = func(int) ([]uint, nvml.Return) {
			return []uint{0xffffffff << (32 * (i / 4)), 0xffffffff << (32 * (i / 4))}, nvml.SUCCESS
		}
	}
	m := discover(t, root, s)
	for i, g := range m.GPUs {
		if g.NUMANode != i/4 || CPUList(g.CPUs) != CPUList(m.Nodes[i/4].CPUs) {
			t.Errorf("GPU %d: node %d, CPUs %v", i, g.NUMANode, g.CPUs)
		}
		if cpus, err := m.CPUsNear(g.PCIBusID); err != nil || CPUList(cpus) != CPUList(g.CPUs) {
			t.Errorf("GPU %d: CPUs %v, %v", i, cpus, err)
		}
	}
	if r, err := m.LinkBetween(m.GPUs[0].PCIBusID, m.GPUs[1].PCIBusID); err != nil || r.Path != PathNODE || r.NVLinks != 12 {
		t.Errorf("on one node: %+v, %v", r, err)
	}
	if r, err := m.LinkBetween(m.GPUs[0].PCIBusID, m.GPUs[7].PCIBusID); err != nil || r.Path != PathSYS {
		t.Errorf("on two nodes: %+v, %v", r, err)
	}
}

func TestParseUUID(t *testing.T) {
	for _, text := range []string{
		"", "GPU-", "MIG-00000000-1111-2222-3333-444444444400", "GPU-00000000-1111-2222-3333-44444444440",
		"GPU-00000000-1111-2222-3333-4444444444zz", "GPU-" + strings.Repeat("-", 36), "GPU-" + strings.Repeat("0", 36),
	} {
		if uuid, ok := parseUUID(text); ok {
			t.Errorf("parseUUID(%q) = %x", text, uuid)
		}
	}
}

// TestGeneration has the numbers that NVML gives the versions of NVLink.
func TestGeneration(t *testing.T) {
	for version, want := range []int{0, 1, 2, 2, 3, 3, 4, 5, 6, 0} {
		if got := generation(nvml.NvlinkVersion(version), false); got != want {
			t.Errorf("number %d is version %d, want %d", version, got, want)
		}
	}
	if got := generation(nvml.NVLINK_VERSION_5_0, true); got != 4 {
		t.Errorf("Hopper has version %d", got)
	}
	server := dgxServer()
	for _, d := range server.Devices {
		d := d.(*dgxa100.Device)
		d.GetNvLinkVersionFunc = func(int) (uint32, nvml.Return) { return uint32(nvml.NVLINK_VERSION_5_0), nvml.SUCCESS }
		d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS }
	}
	if got := discover(t, dgxTree(), server).GPUs[0].NVLinks[0].Version; got != 4 {
		t.Errorf("a link of Hopper has version %d", got)
	}
}
