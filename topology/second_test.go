package topology

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// place is where a device of a machine made by hand is, by numbers: below one switch it is PIX
// from others, below one host bridge PHB, on one NUMA node NODE.
type place struct{ node, bridge, above int }

// nicAt is a NIC of a machine made by hand.
type nicAt struct {
	name string
	place
	NICKind
	gbps    float64
	virtual bool
}

// handMade returns a machine with GPUs and NICs at these places. Each device has a link of 16
// lanes of PCIe 5, which carries 63 GB/s.
func handMade(gpus []place, nics []nicAt) *Machine {
	m := &Machine{devices: map[string]device{}}
	add := func(p place, number int, virtual bool) string {
		root := p.node*16 + p.bridge
		id := fmt.Sprintf("0000:%02x:%02x.0", 0x80+number, p.above)
		m.devices[id] = device{
			path: []string{fmt.Sprintf("pci0000:%02x", root), fmt.Sprintf("0000:%02x:%02x.0", root, p.above), id},
			node: p.node, gigatransfers: 32, lanes: 16, virtual: virtual,
		}
		return id
	}
	for i, p := range gpus {
		m.GPUs = append(m.GPUs, GPU{Index: i, PCIBusID: add(p, i, false), NUMANode: p.node})
	}
	for i, n := range nics {
		m.NICs = append(m.NICs, NIC{
			Name: n.name, Kind: n.NICKind, NUMANode: n.node, PCIBusID: add(n.place, len(gpus)+i, n.virtual),
			Ports: []Port{{Number: 1, Active: true, Gbps: n.gbps}},
		})
	}
	return m
}

// TestSecondNIC has machines whose GPUs have one NIC, or two.
func TestSecondNIC(t *testing.T) {
	ib := func(name string, p place) nicAt { return nicAt{name, p, InfiniBand, 200, false} }
	one, other := place{0, 0, 0}, place{0, 0, 1} // two switches
	for _, c := range []struct {
		name string
		gpus []place
		nics []nicAt
		want string // the NICs of each GPU
	}{
		{"one GPU and two NICs on one switch", []place{one}, []nicAt{ib("a", one), ib("b", one)}, "a b"},
		{"one GPU and three", []place{one}, []nicAt{ib("a", one), ib("b", one), ib("c", one)}, "a b"},
		{"the second is farther", []place{one}, []nicAt{ib("a", one), ib("b", other)}, "a"},
		{"both are needed", []place{one, one}, []nicAt{ib("a", one), ib("b", one)}, "a, b"},
		{"both are shared", []place{one, one, one}, []nicAt{ib("a", one), ib("b", one)}, "a, b, a"},
		{"one to spare", []place{one, one}, []nicAt{ib("a", one), ib("b", one), ib("c", one)}, "a c, b"},
		{"two each", []place{one, one}, []nicAt{ib("a", one), ib("b", one), ib("c", one), ib("d", one)}, "a c, b d"},
		{"needed by a GPU that has no other", []place{{0, 0, 2}, one}, []nicAt{ib("a", one), ib("b", other)}, "b, a"},
		{
			"two sockets with four NICs and two GPUs each, at bridges of their own",
			[]place{{0, 0, 0}, {0, 1, 0}, {1, 0, 0}, {1, 1, 0}},
			[]nicAt{
				ib("a", place{0, 2, 0}), ib("b", place{0, 3, 0}), ib("c", place{0, 4, 0}), ib("d", place{0, 5, 0}),
				ib("e", place{1, 2, 0}), ib("f", place{1, 3, 0}), ib("g", place{1, 4, 0}), ib("h", place{1, 5, 0}),
			},
			"a c, b d, e g, f h",
		},
		{"on the other socket", []place{one}, []nicAt{{"a", place{1, 0, 0}, InfiniBand, 100, false}, {"b", place{1, 1, 0}, InfiniBand, 100, false}}, "a"},
		{"of another rate", []place{one}, []nicAt{ib("a", one), {"b", one, InfiniBand, 100, false}}, "a"},
		{"of another kind", []place{one}, []nicAt{ib("a", one), {"b", one, RoCE, 200, false}}, "a"},
		{"Ethernet", []place{one}, []nicAt{{"a", one, Ethernet, 100, false}, {"b", one, Ethernet, 100, false}}, "a"},
		{"virtual functions", []place{one}, []nicAt{ib("a", one), {"b", one, InfiniBand, 200, true}, {"c", one, InfiniBand, 200, true}}, "a"},
		{"the GPU's link is full", []place{one}, []nicAt{{"a", one, InfiniBand, 800, false}, {"b", one, InfiniBand, 800, false}}, "a"},
	} {
		m := handMade(c.gpus, c.nics)
		var got []string
		var served []servedGPU
		for i, g := range m.GPUs {
			near := m.NICsFor(g.PCIBusID, m.network())
			got = append(got, namesOf(near))
			for _, n := range near {
				served = append(served, servedGPU{GPU: i, Near: n, Sharing: 1})
			}
		}
		testcmp.Equal(t, c.name, strings.Join(got, ", "), c.want)
		for i, s := range m.Internal().Serving() {
			if s.GPU != served[i].GPU || s.Near.Name != served[i].Near.Name {
				t.Errorf("%s: GPU %d is said to have %s", c.name, s.GPU, s.Near.Name)
			}
		}
	}
}

// TestSecondAdds has two NICs of 50 GB/s, of which a link of 63 carries no more than 13 besides
// 50, if it is the GPU's or a card's with two ports.
func TestSecondAdds(t *testing.T) {
	at := place{0, 0, 0}
	nics := []nicAt{{"a", at, RoCE, 400, false}, {"b", at, RoCE, 400, false}}
	served := handMade([]place{at}, nics).Internal().Serving()
	if len(served) != 2 || served[0].Near.Bandwidth != 50 || served[1].Near.Bandwidth < 13 || served[1].Near.Bandwidth > 13.1 {
		t.Errorf("it has %+v", served)
	}
	// Of three the one with the most is taken: the one that is not below the first one's bridge.
	m := handMade([]place{at}, append(nics, nicAt{"c", at, RoCE, 400, false}))
	gpu := m.GPUs[0].PCIBusID
	m.devices[gpu] = device{path: m.devices[gpu].path, gigatransfers: 64, lanes: 16}
	for i, n := range m.NICs {
		card := "0000:77:00.0"
		if i == 2 {
			card = "0000:78:00.0"
		}
		d := m.devices[n.PCIBusID]
		d.path = slices.Insert(slices.Clone(d.path), 2, card)
		m.devices[n.PCIBusID] = d
		m.devices[card] = device{path: d.path[:3], gigatransfers: 32, lanes: 16}
	}
	if got := namesOf(m.NICsFor(gpu, RDMA)); got != "a c" {
		t.Errorf("it has %s, of which a and b are on one card", got)
	}
}

// TestSecondInSoftware has Soft-RoCE over a card that is an RDMA device itself.
func TestSecondInSoftware(t *testing.T) {
	at := place{0, 0, 0}
	m := handMade([]place{at}, []nicAt{{"mlx5_0", at, RoCE, 100, false}, {"rxe0", at, RoCE, 100, false}})
	m.NICs[1].PCIBusID = m.NICs[0].PCIBusID
	if got := namesOf(m.NICsFor(m.GPUs[0].PCIBusID, RDMA)); got != "mlx5_0" {
		t.Errorf("it has %s", got)
	}
}

// TestVirtualFunction finds a virtual function in sysfs, and in a machine that was saved.
func TestVirtualFunction(t *testing.T) {
	root := dgxTree()
	at, id := dgxGPUs[2], "0000:47:00.0"
	root.MapFS["devices/"+at+"/physfn"] = &fstest.MapFile{Data: []byte("../0000:4e:00.0"), Mode: fs.ModeSymlink}
	m := roundTrip(t, discover(t, root, dgxServer()))
	for one, d := range m.devices {
		if d.virtual != (one == id) {
			t.Errorf("%s: virtual is %v", one, d.virtual)
		}
	}
}

// TestSecondOfMachines has the machines of testdata: one has NICs to spare.
func TestSecondOfMachines(t *testing.T) {
	for _, name := range machines(t) {
		m := machineFrom(t, name)
		first, second := map[string]bool{}, map[string]bool{}
		for _, g := range m.GPUs {
			for i, n := range m.NICsFor(g.PCIBusID, m.network()) {
				switch {
				case i == 0:
					first[n.Name] = true
				case i > 1 || second[n.Name]:
					t.Errorf("%s: GPU %d has %s too", name, g.Index, n.Name)
				default:
					second[n.Name] = true
				}
			}
		}
		want := 0
		if name == "cards" {
			want = 4
		}
		if len(second) != want {
			t.Errorf("%s: %v are second NICs", name, second)
		}
		for n := range second {
			if first[n] {
				t.Errorf("%s: %s is another GPU's first", name, n)
			}
		}
	}
}
