package topology

import (
	"errors"
	"fmt"
	"path"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestPaths(t *testing.T) {
	root := dgxTree()
	const behindBridge = "0000:21:00.0" // on the switch of GPU 1, a bridge further away
	root.pci("pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:02.0/0000:20:00.0/"+behindBridge, 0, "0")
	m := discover(t, root, noNVML())
	gpu := func(i int) string { return path.Base(dgxGPUs[i]) }
	nic := func(name string) string { return path.Base(dgxNICs[name]) }
	for _, c := range []struct {
		a, b string
		want Path
	}{
		{gpu(0), gpu(0), PathSelf},
		{gpu(0), nic("mlx5_0"), PathPIX}, // two ports of one switch
		{gpu(0), gpu(1), PathPXB},        // two switches, one below the other
		{gpu(1), behindBridge, PathPXB},
		{gpu(0), nic("mlx5_2"), PathPHB}, // two root ports of one host bridge
		{gpu(0), gpu(2), PathNODE},       // two host bridges of one node
		{gpu(0), nic("mlx5_10"), PathNODE},
		{gpu(0), gpu(4), PathSYS},
		{gpu(4), nic("eno1"), PathNODE},
		{gpu(3), nic("eno1"), PathSYS},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			r, err := m.LinkBetween(pair[0], pair[1])
			if err != nil || r.Path != c.want || r.NVLinks != 0 || r.Switched || r.Kind() != c.want {
				t.Errorf("from %s to %s: %v, %v; want %v", pair[0], pair[1], r, err, c.want)
			}
		}
	}
}

func TestCPUsNear(t *testing.T) {
	m := discover(t, dgxTree(), dgxServer())
	for id, want := range map[string]string{
		"0000:07:00.0": "0-31,64-95", "00000000:BD:00.0": "32-63,96-127", "e1:00.0": "32-63,96-127",
	} {
		cpus, err := m.CPUsNear(id)
		if err != nil || CPUList(cpus) != want {
			t.Errorf("near %s: %v, %v; want %s", id, cpus, err, want)
		}
		for i := range cpus {
			cpus[i] = -1 // the caller's own
		}
	}
	if m.Nodes[0].CPUs[0] != 0 || m.Nodes[1].CPUs[0] != 32 {
		t.Error("the caller wrote into the machine")
	}
}

func TestNICsNear(t *testing.T) {
	m := discover(t, dgxTree(), dgxServer())
	for id, want := range map[string][]string{
		"0000:07:00.0": {"mlx5_0 PIX", "mlx5_2 PHB", "enp18s0 PHB", "mlx5_10 NODE", "eno1 SYS"},
		"0000:47:00.0": {"mlx5_10 PHB", "mlx5_0 NODE", "mlx5_2 NODE", "enp18s0 NODE", "eno1 SYS"},
		"0000:87:00.0": {"eno1 NODE", "mlx5_0 SYS", "mlx5_2 SYS", "mlx5_10 SYS", "enp18s0 SYS"},
	} {
		near, err := m.NICsNear(id)
		var got []string
		for _, n := range near {
			got = append(got, fmt.Sprint(n.Name, " ", n.Path))
		}
		if err != nil {
			t.Errorf("near %s: %v", id, err)
		}
		testcmp.Equal(t, "NICs near "+id, got, want)
	}
}

// TestNICsByDistance has four nodes, of which pairs share a socket.
func TestNICsByDistance(t *testing.T) {
	root := newTree()
	root.file("devices/system/node/online", "0-3")
	for i, distance := range []string{"10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10"} {
		root.node(i, fmt.Sprint(i), distance)
		at := fmt.Sprintf("pci0000:%d0/0000:%d0:00.0", i, i)
		root.pci(at, i, fmt.Sprint(i))
		root.net(at, fmt.Sprintf("eth%d", i), "1", "up", "1", "1000")
	}
	root.net("platform/soc", "eth9", "1", "up", "1", "1000") // not on PCI
	m := discover(t, root, noNVML())
	near, err := m.NICsNear("0000:20:00.0")
	var got []string
	for _, n := range near {
		got = append(got, fmt.Sprint(n.Name, " ", n.Path))
	}
	want := []string{"eth2 X", "eth3 SYS", "eth0 SYS", "eth1 SYS", "eth9 ?"}
	if err != nil {
		t.Error(err)
	}
	testcmp.Equal(t, "NICs", got, want)
}

func TestSwitched(t *testing.T) {
	s := dgxServer()
	fewer := switchedLinks(12)
	fewer[4].down = true
	setLinks(s.Devices[6].(*dgxa100.Device), fewer)
	setLinks(s.Devices[7].(*dgxa100.Device), nil)
	m := discover(t, dgxTree(), s)
	for _, c := range []struct {
		a, b int
		want Route
		text string
	}{
		{0, 0, Route{0, false, PathSelf, 0}, "X"},
		{0, 5, Route{12, true, PathSYS, 300}, "NV12"},
		{4, 6, Route{11, true, PathNODE, 275}, "NV11"},
		{4, 7, Route{0, false, PathNODE, unknownPCIe}, "NODE"},
	} {
		for _, pair := range [][2]int{{c.a, c.b}, {c.b, c.a}} {
			r, err := m.LinkBetween(m.GPUs[pair[0]].PCIBusID, m.GPUs[pair[1]].PCIBusID)
			if err != nil || r.String() != c.text {
				t.Errorf("from GPU %d to %d: %v, %v; want %s", pair[0], pair[1], r, err, c.text)
			}
			testcmp.Equal(t, "the route of "+c.text, r, c.want)
		}
	}
}

// TestDirect has GPUs connected without switches, and a driver that reports the
// addresses of peers and not their types.
func TestDirect(t *testing.T) {
	s := dgxServer()
	peers := [][]int{{1, 1, 2}, {0, 0, 3}, {0}, {1}, {}, {}, {}, {}}
	for i, d := range s.Devices {
		var links []fakeLink
		for _, p := range peers[i] {
			links = append(links, fakeLink{kind: nvml.NVLINK_DEVICE_TYPE_UNKNOWN, peer: path.Base(dgxGPUs[p])})
		}
		// A link to a device that is not a GPU of this machine.
		links = append(links, fakeLink{kind: nvml.NVLINK_DEVICE_TYPE_UNKNOWN, peer: switchID})
		setLinks(d.(*dgxa100.Device), links)
	}
	m := discover(t, dgxTree(), s)
	for pair, want := range map[[2]int]Route{
		{0, 1}: {2, false, PathPXB, 50}, {0, 2}: {1, false, PathNODE, 25}, {1, 3}: {1, false, PathNODE, 25},
		{0, 3}: {0, false, PathNODE, unknownPCIe}, {6, 7}: {0, false, PathPHB, unknownPCIe},
	} {
		for _, p := range [][2]int{pair, {pair[1], pair[0]}} {
			r, err := m.LinkBetween(m.GPUs[p[0]].PCIBusID, m.GPUs[p[1]].PCIBusID)
			if err != nil {
				t.Error(err)
			}
			testcmp.Equal(t, fmt.Sprintf("the route from GPU %d to %d", p[0], p[1]), r, want)
		}
	}
}

func TestStrangers(t *testing.T) {
	m := discover(t, dgxTree(), dgxServer())
	for _, id := range []string{"", "GPU0", "0000:ff:00.0", "../../../etc"} {
		_, cpus := m.CPUsNear(id)
		_, nics := m.NICsNear(id)
		_, from := m.LinkBetween(id, "0000:07:00.0")
		_, to := m.LinkBetween("0000:07:00.0", id)
		for _, err := range []error{cpus, nics, from, to} {
			if !errors.Is(err, mscclgo.ErrInvalid) {
				t.Errorf("%q: %v; want ErrInvalid", id, err)
			}
		}
	}
}

func TestLinksTo(t *testing.T) {
	gpu := func(id string, links ...Link) GPU { return GPU{PCIBusID: id, NVLinks: links} }
	to := func(id string) Link { return Link{Active: true, Peer: PeerGPU, PeerPCI: id} }
	toSwitch, unsaid, down := Link{Active: true, Peer: PeerSwitch}, Link{Active: true}, Link{}
	for what, c := range map[string]struct {
		a, b  GPU
		links int
		known bool
	}{
		"bridged":                 {gpu("a", to("b"), to("b"), down), gpu("b", to("a"), to("a")), 2, true},
		"of another pair":         {gpu("a", to("b")), gpu("c", to("d")), 0, true},
		"by switches":             {gpu("a", toSwitch, toSwitch), gpu("b", toSwitch), 1, true},
		"one has no switch":       {gpu("a", toSwitch), gpu("b", to("c")), 0, true},
		"one end is said":         {gpu("a", to("b"), to("b")), gpu("b", unsaid, unsaid), 2, true},
		"the other end is said":   {gpu("a", unsaid, unsaid), gpu("b", to("a"), to("a")), 2, false},
		"it is not said":          {gpu("a", unsaid), gpu("b", unsaid), 0, false},
		"which GPU is not said":   {gpu("a", to("")), gpu("", to("")), 0, false},
		"a GPU that NVML has not": {gpu("a", to("b")), GPU{}, 0, true},
		"none":                    {gpu("a", down), gpu("b"), 0, true},
	} {
		if links, known := (machineInside{}).LinksTo(c.a, c.b); links != c.links || known != c.known {
			t.Errorf("%s: %d links, known: %v; want %d, %v", what, links, known, c.links, c.known)
		}
	}
}
