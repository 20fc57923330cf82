package topology

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// namesOf joins the names of NICs.
func namesOf(nics []NearNIC) string {
	var names []string
	for _, n := range nics {
		names = append(names, n.Name)
	}
	return strings.Join(names, " ")
}

// TestNICsFor has GPUs that are as near to several NICs, and one that is near to one of these.
func TestNICsFor(t *testing.T) {
	up := func(gbps float64) []Port { return []Port{{Number: 1, Active: true, Gbps: gbps}} }
	m := &Machine{
		devices: map[string]device{
			"0000:01:00.0": {path: []string{"pci0000:00", "0000:00:01.0", "0000:01:00.0"}, node: 0},
			"0000:02:00.0": {path: []string{"pci0000:00", "0000:00:02.0", "0000:02:00.0"}, node: 0},
			"0000:03:00.0": {path: []string{"pci0000:00", "0000:00:03.0", "0000:03:00.0"}, node: 0},
			"0000:04:00.0": {path: []string{"pci0000:00", "0000:00:04.0", "0000:04:00.0"}, node: 0},
			"0000:05:00.0": {path: []string{"pci0000:00", "0000:00:05.0", "0000:05:00.0"}, node: 0},
			"0000:05:00.1": {path: []string{"pci0000:00", "0000:00:01.0", "0000:05:00.1"}, node: 0},
		},
		GPUs: []GPU{{Index: 0, PCIBusID: "0000:02:00.0"}, {Index: 1, PCIBusID: "0000:03:00.0"}, {Index: 2, PCIBusID: "0000:04:00.0"}, {Index: 3, PCIBusID: "0000:05:00.1"}},
		NICs: []NIC{
			{Name: "a", Kind: RoCE, PCIBusID: "0000:01:00.0", Ports: up(100)},
			{Name: "slow", Kind: RoCE, PCIBusID: "0000:01:00.0", Ports: up(10)},
			{Name: "b", Kind: InfiniBand, PCIBusID: "0000:05:00.0", Ports: up(100)},
			{Name: "down", Kind: RoCE, PCIBusID: "0000:02:00.0"},
			{Name: "eth0", Kind: Ethernet, PCIBusID: "0000:02:00.0", Ports: up(400)},
		},
	}
	for range 3 { // the same each time
		var got []string
		for _, g := range m.GPUs {
			got = append(got, namesOf(m.NICsFor(g.PCIBusID, RDMA)))
		}
		// GPU 3 is near to "a" alone, so that b serves two of the GPUs that may have either.
		testcmp.Equal(t, "NICs", got, []string{"b", "a", "b", "a"})
	}
	for _, c := range []struct {
		id     string
		usable func(NIC) bool
		want   string
	}{
		{"", RDMA, "a"},
		{"0000:02:00.0", func(n NIC) bool { return n.Kind == Ethernet }, "eth0"},
		{"0000:02:00.0", func(NIC) bool { return false }, ""},
	} {
		if got := namesOf(m.NICsFor(c.id, c.usable)); got != c.want {
			t.Errorf("%q has %q, not %q", c.id, got, c.want)
		}
	}
	if !slices.ContainsFunc(m.Internal().Serving(), func(s servedGPU) bool { return s.Near.Name == "b" && s.Sharing == 2 }) {
		t.Errorf("%+v", m.Internal().Serving())
	}
	// Where Ethernet is faster, by rates that are known, it serves all.
	for rate, want := range map[float64]bool{10: true, 0: false} {
		m.NICs[0].Ports, m.NICs[2].Ports = up(rate), up(10)
		all := m.Internal().Serving()
		ethernet := !slices.ContainsFunc(all, func(s servedGPU) bool { return s.Near.Name != "eth0" })
		if len(all) < len(m.GPUs) || ethernet != want {
			t.Errorf("beside RDMA at %g Gbit/s they are served by %+v", rate, all)
		}
	}
}

// TestNICsForNothing has no device, or one whose place is unknown, and NICs that may not serve.
func TestNICsForNothing(t *testing.T) {
	up := []Port{{Number: 1, Active: true}}
	m := &Machine{NICs: []NIC{
		{Name: "down", Kind: RoCE}, {Name: "efa", Kind: OtherRDMA, Ports: up},
		{Name: "rxe0", Kind: RoCE, Ports: up}, {Name: "rxe1", Kind: RoCE, Ports: up}, {Name: "eth0", Kind: Ethernet, Ports: up},
	}}
	for _, id := range []string{"", "0000:01:00.0", "nonsense"} {
		if got := namesOf(m.NICsFor(id, RDMA)); got != "rxe0" {
			t.Errorf("%q: %q", id, got)
		}
	}
	if got := namesOf((&Machine{}).NICsFor("", RDMA)); got != "" {
		t.Errorf("found %q", got)
	}
}

// TestSendingTogether has all GPUs send by their NICs at once: what they share is divided.
func TestSendingTogether(t *testing.T) {
	const pcie4 = 16 * 16 * 128.0 / 130 / 8 // 31.5 GB/s
	place := func(id, under string, node int) (string, device) {
		return id, device{path: append(strings.Split(under, "/"), id), node: node, gigatransfers: 16, lanes: 16}
	}
	machine := func(gpuAt, nicAt func(i int) (string, int), nics int, gbps float64) *Machine {
		m := &Machine{devices: map[string]device{}}
		for i := range 4 {
			under, node := gpuAt(i)
			id, d := place("0000:1"+strconv.Itoa(i)+":00.0", under, node)
			m.devices[id] = d
			m.GPUs = append(m.GPUs, GPU{Index: i, PCIBusID: id, NUMANode: node})
		}
		for i := range nics {
			under, node := nicAt(i)
			id, d := place("0000:2"+strconv.Itoa(i)+":00.0", under, node)
			d.gigatransfers = 32
			m.devices[id] = d
			m.NICs = append(m.NICs, NIC{Name: "n" + strconv.Itoa(i), Kind: RoCE, PCIBusID: id, NUMANode: node,
				Ports: []Port{{Number: 1, Active: true, Gbps: gbps}}})
		}
		for _, uplink := range []string{"0000:00:01.0", "0000:00:02.0"} {
			m.devices[uplink] = device{path: []string{"pci0000:00", uplink}, gigatransfers: 16, lanes: 16}
		}
		return m
	}
	root := func(node int) func(int) (string, int) {
		return func(i int) (string, int) { return "pci000" + strconv.Itoa(node) + ":00", node }
	}
	below := func(uplink string) func(int) (string, int) {
		return func(int) (string, int) { return "pci0000:00/" + uplink, 0 }
	}
	for what, c := range map[string]struct {
		m     *Machine
		alone float64
		want  float64
	}{
		"a NIC that is faster than a GPU's link": {machine(root(0), root(0), 2, 400), pcie4, 50.0 / 2},
		"the link of a switch above the GPUs":    {machine(below("0000:00:01.0"), below("0000:00:02.0"), 4, 200), 25, pcie4 / 4},
		"the link between sockets":               {machine(root(0), root(1), 4, 100), 12.5, betweenSockets / 4},
		"nothing":                                {machine(root(0), root(0), 4, 100), 12.5, 12.5},
	} {
		for _, s := range c.m.Internal().Serving() {
			if math.Abs(s.Near.Bandwidth-c.alone) > 0.01 || math.Abs(s.Together-c.want) > 0.01 {
				t.Errorf("%s is shared: GPU %d sends %v GB/s alone, %v with the others; want %v, %v", what, s.GPU, s.Near.Bandwidth, s.Together, c.alone, c.want)
			}
		}
	}
}

// TestWithoutAddresses has GPUs and NICs whose places are unknown: each has a link of its own.
func TestWithoutAddresses(t *testing.T) {
	m := &Machine{}
	for i := range 4 {
		m.GPUs = append(m.GPUs, GPU{Index: i, NUMANode: Unknown})
		m.NICs = append(m.NICs, NIC{Name: "n" + strconv.Itoa(i), Kind: RoCE, NUMANode: Unknown, Ports: []Port{{Number: 1, Active: true, Gbps: 400}}})
	}
	for _, s := range m.Internal().Serving() {
		if s.Sharing != 1 || s.Together != unknownPCIe {
			t.Errorf("GPU %d: %+v", s.GPU, s)
		}
	}
}
