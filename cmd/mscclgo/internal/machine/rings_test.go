package machine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/topology"
)

// read returns a machine of the file of a name: one of topology's tests, or of this package's.
func read(t testing.TB, name string) *topology.Machine {
	t.Helper()
	text, err := os.ReadFile("../../../../topology/testdata/" + name + ".json")
	if err != nil {
		text, err = os.ReadFile("testdata/" + name + ".json")
	}
	testerr.Check(t, err)
	return parse(t, string(text))
}

// parse returns the machine of a file's text.
func parse(t testing.TB, text string) *topology.Machine {
	t.Helper()
	return testerr.Must(topology.Read(strings.NewReader(text)))(t)
}

// linkedMachine returns a machine whose GPUs are each below a root port of one of some
// sockets, and have so many NVLinks to each other.
func linkedMachine(t testing.TB, links [][]int, sockets int) *topology.Machine {
	id := func(gpu int) string { return fmt.Sprintf("%04x:01:00.0", gpu) }
	var gpus, devices []string
	for i := range links {
		devices = append(devices, fmt.Sprintf(`{"id":%q,"under":"pci%04x:00","numa_node":%d,"gigatransfers":16,"lanes":16}`, id(i), i, i%sockets))
		var of []string
		for j, n := range links[i] {
			for range n {
				of = append(of, fmt.Sprintf(`{"numbers":"%d","active":true,"version":2,"peer":"GPU","peer_pci":%q}`, len(of), id(j)))
			}
		}
		gpus = append(gpus, fmt.Sprintf(`{"index":%d,"pci":%q,"nvlinks":[%s]}`, i, id(i), strings.Join(of, ",")))
	}
	return parse(t, fmt.Sprintf(`{"format":"mscclgo-machine","version":1,"gpus":[%s],"pci":[%s]}`, strings.Join(gpus, ","), strings.Join(devices, ",")))
}

// cubeMesh returns the links of a DGX-1 with V100s: two squares with diagonals, and an edge from each
// corner to the same corner of the other square. Half of the connections have two links.
func cubeMesh() [][]int {
	links := make([][]int, 8)
	for i := range links {
		links[i] = make([]int, 8)
	}
	for _, c := range [][3]int{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2},
		{2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2},
	} {
		links[c[0]][c[1]], links[c[1]][c[0]] = c[2], c[2]
	}
	return links
}

// TestCubeMesh finds the rings that use all links of all GPUs, both ways: 6 links of 25 GB/s.
func TestCubeMesh(t *testing.T) {
	rings := testerr.Must(Rings(linkedMachine(t, cubeMesh(), 2), 1))(t)
	sum := 0.0
	for _, r := range rings {
		if r.Path != topology.PathNVL {
			t.Errorf("%+v", r)
		}
		sum += r.Bandwidth
	}
	if sum != 150 || rings[0].Bandwidth != 50 {
		t.Errorf("%v GB/s in %+v", sum, rings)
	}
}

// widthOf returns the bandwidth of one ring alone.
func widthOf(m *topology.Machine, order []int) float64 {
	flows := make([][]inside.Hop, len(order))
	for i, gpu := range order {
		flows[i] = m.Internal().Hops(gpu, order[(i+1)%len(order)])
	}
	return slices.Min(inside.Share(flows))
}

// TestRingsAgainstAllOrders compares the first ring with all orders of the GPUs of random
// machines, and counts what all rings take of each link.
func TestRingsAgainstAllOrders(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		n := 2 + random.IntN(6)
		links := make([][]int, n)
		for i := range links {
			links[i] = make([]int, n)
		}
		for i := range n {
			for j := range i {
				if random.IntN(3) > 0 {
					links[i][j] = random.IntN(4)
					links[j][i] = links[i][j]
				}
			}
		}
		m := linkedMachine(t, links, 1+random.IntN(2))
		most := 0.0
		var permute func(order []int, k int)
		permute = func(order []int, k int) {
			if k == n {
				most = max(most, widthOf(m, order))
				return
			}
			for i := k; i < n; i++ {
				order[k], order[i] = order[i], order[k]
				permute(order, k+1)
				order[k], order[i] = order[i], order[k]
			}
		}
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		permute(all, 1)
		rings, err := Rings(m, 1)
		if err != nil || len(rings) == 0 {
			t.Fatalf("%v, %v", rings, err)
		}
		if r := rings[0]; math.Abs(r.Bandwidth-most) > 1e-6*most {
			t.Errorf("links %v: the ring %v has %v GB/s, the best %v", links, r.GPUs, r.Bandwidth, most)
		}
		checkRings(t, m, rings)
		again, _ := Rings(m, 1)
		testcmp.Equal(t, "rings that are asked for again", again, rings)
	}
}

// checkRings checks that rings visit each topology.GPU once, and take no more than there is.
func checkRings(t *testing.T, m *topology.Machine, rings []Ring) {
	t.Helper()
	taken, there := map[string]float64{}, map[string]float64{}
	for _, r := range rings {
		sorted := slices.Sorted(slices.Values(r.GPUs))
		for i := range m.GPUs {
			if len(sorted) != len(m.GPUs) || sorted[i] != i {
				t.Fatalf("the ring %v of %d GPUs", r.GPUs, len(m.GPUs))
			}
		}
		for i, gpu := range r.GPUs {
			next := r.GPUs[(i+1)%len(r.GPUs)]
			for _, h := range m.Internal().Hops(gpu, next) {
				taken[h.Name] += r.Bandwidth
				there[h.Name] = h.Bandwidth
			}
		}
	}
	for name, v := range taken {
		if v > there[name]*1.000001 {
			t.Errorf("rings take %v GB/s %s, which has %v: %+v", v, name, there[name], rings)
		}
	}
}

// TestManyGPUs has more GPUs than all orders can be compared of: two chains of doubled links
// that a few single ones join, hidden in a machine of 16.
func TestManyGPUs(t *testing.T) {
	const n = 16
	links := make([][]int, n)
	for i := range links {
		links[i] = make([]int, n)
	}
	for i := range n {
		next := (i*7 + 7) % n // a permutation, as 7 and 16 have no common factor
		from := i * 7 % n
		links[from][next], links[next][from] = 2, 2
	}
	for i := range n {
		if j := (i + 5) % n; links[i][j] == 0 {
			links[i][j], links[j][i] = 1, 1
		}
	}
	m := linkedMachine(t, links, 2)
	rings, err := Rings(m, 1)
	if err != nil || rings[0].Bandwidth != 50 || rings[0].Path != topology.PathNVL {
		t.Errorf("%+v, %v", rings, err)
	}
	checkRings(t, m, rings)
}

func TestRingsAcrossHosts(t *testing.T) {
	for _, name := range []string{"switches", "sockets", "bridges", "cloud", "cards"} {
		m := read(t, name)
		served := m.Internal().Serving()
		by := func(gpu int, nic string) int {
			return slices.IndexFunc(served, func(s servedGPU) bool { return s.GPU == gpu && s.Near.Name == nic })
		}
		rings, err := Rings(m, 3)
		if err != nil || len(rings) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		in := map[string]int{}
		for _, r := range rings {
			in[r.In]++
			first, last := r.GPUs[0], r.GPUs[len(r.GPUs)-1]
			enters := by(first, r.In)
			if enters < 0 || by(last, r.Out) < 0 {
				t.Fatalf("%s: the ring %v enters by %s and leaves by %s, which serve others", name, r.GPUs, r.In, r.Out)
			}
			if len(r.GPUs) != len(m.GPUs) || r.Bandwidth <= 0 || r.Bandwidth > served[enters].Near.Bandwidth {
				t.Errorf("%s: %+v", name, r)
			}
		}
		for nic, n := range in {
			if n != 1 {
				t.Errorf("%s: %d rings enter by %s", name, n, nic)
			}
		}
	}
}

func TestNoRings(t *testing.T) {
	one := linkedMachine(t, [][]int{{0}}, 1)
	if rings, err := Rings(one, 1); err != nil || len(rings) != 0 {
		t.Errorf("one GPU: %v, %v", rings, err)
	}
	if _, err := Rings(one, 2); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("no NIC: %v", err)
	}
	if _, err := Rings(one, 0); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("no host: %v", err)
	}
	if _, err := Rings(&topology.Machine{}, 1); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("no GPU: %v", err)
	}
	one.NICs = []topology.NIC{{Name: "eth0", Ports: []topology.Port{{Number: 1, Active: true, Gbps: 100}}}}
	rings, err := Rings(one, 2)
	testcmp.Equal(t, "rings of one topology.GPU a host", rings, []Ring{{GPUs: []int{0}, In: "eth0", Out: "eth0", Bandwidth: 12.5}})
	if err != nil {
		t.Error(err)
	}
	// GPUs whose place nobody knows have a ring all the same.
	nowhere := &topology.Machine{GPUs: []topology.GPU{{Index: 0}, {Index: 1}}}
	if rings, err := Rings(nowhere, 1); err != nil || len(rings) != 1 || rings[0].Path != topology.PathUnknown || math.IsInf(rings[0].Bandwidth, 0) {
		t.Errorf("GPUs without addresses: %+v, %v", rings, err)
	}
}

// TestRingsCarry counts what all rings between two hosts take of each part of their paths: some part is full, and
// none carries more than it can.
func TestRingsCarry(t *testing.T) {
	for _, name := range []string{"narrow-nic", "narrow-switch", "narrow-sockets", "switches", "sockets", "cards"} {
		m := read(t, name)
		rings := testerr.Must(Rings(m, 2))(t)
		carried, whole := map[string]float64{}, map[string]float64{}
		for _, r := range rings {
			var path []inside.Hop
			for i, gpu := range r.GPUs {
				if i > 0 {
					path = append(path, m.Internal().Hops(r.GPUs[i-1], gpu)...)
				}
			}
			for _, s := range m.Internal().Serving() {
				if s.GPU == r.GPUs[0] && s.Near.Name == r.In {
					path = append(path, m.Internal().FromNIC(s)...)
				}
				if s.GPU == r.GPUs[len(r.GPUs)-1] && s.Near.Name == r.Out {
					path = append(path, m.Internal().ToNIC(s)...)
				}
			}
			for _, h := range path {
				carried[h.Name] += r.Bandwidth
				whole[h.Name] = h.Bandwidth
			}
		}
		full := false
		for name, sum := range carried {
			full = full || sum > whole[name]*0.999
			if sum > whole[name]*1.001 {
				t.Errorf("%s is shared: rings carry %v GB/s over %s, of %v", name, sum, name, whole[name])
			}
		}
		if !full {
			t.Errorf("%s: no part of the rings is full", name)
		}
	}
}

// TestRingsWithoutAddresses has GPUs and NICs whose places are unknown: each has a link of its own, of 16 lanes of PCIe 3.
func TestRingsWithoutAddresses(t *testing.T) {
	m := &topology.Machine{}
	for i := range 4 {
		m.GPUs = append(m.GPUs, topology.GPU{Index: i, NUMANode: topology.Unknown})
		m.NICs = append(m.NICs, topology.NIC{Name: fmt.Sprint("n", i), Kind: topology.RoCE, NUMANode: topology.Unknown, Ports: []topology.Port{{Number: 1, Active: true, Gbps: 400}}})
	}
	for hosts, want := range map[int]int{1: 1, 2: 4} { // those between hosts share the links of GPUs
		rings, err := Rings(m, hosts)
		if err != nil || len(rings) != want {
			t.Fatalf("%d hosts: %v, %v", hosts, rings, err)
		}
		if sum := float64(len(rings)) * rings[0].Bandwidth; math.Abs(sum-(16*8*128.0/130/8)) > 0.01 {
			t.Errorf("%d hosts: rings carry %v GB/s, of %v", hosts, sum, (16 * 8 * 128.0 / 130 / 8))
		}
	}
}
