package topology

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files of testdata anew")

// machineFrom reads one of the machines of testdata.
func machineFrom(t testing.TB, name string) *Machine {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// machines are the names of the machines of testdata.
func machines(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 6 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names
}

// TestKindsAndBandwidths has what is known of these machines by hand: 18 links of 25 GB/s;
// 16 lanes of PCIe 5 (32 GT/s) are 63.0 GB/s, of PCIe 4 31.5, of PCIe 3 15.75.
func TestKindsAndBandwidths(t *testing.T) {
	for _, c := range []struct {
		machine   string
		a, b      int
		kind      Path
		bandwidth float64
	}{
		{"switches", 0, 7, PathNVL, 450},
		{"bridges", 0, 1, PathNVL, 300},
		{"bridges", 0, 2, PathSYS, 20.8},
		{"sockets", 0, 1, PathPIX, 31.508},
		{"sockets", 0, 2, PathNODE, 31.508},
		{"sockets", 3, 4, PathSYS, 20.8},
		{"cloud", 0, 3, PathPHB, 15.754},
	} {
		m := machineFrom(t, c.machine)
		r, err := m.LinkBetween(m.GPUs[c.a].PCIBusID, m.GPUs[c.b].PCIBusID)
		if err != nil || r.Kind() != c.kind || r.Bandwidth < c.bandwidth-0.001 || r.Bandwidth > c.bandwidth+0.001 {
			t.Errorf("%s, from %d to %d: %v, %v GB/s, %v; want %v, %v", c.machine, c.a, c.b, r.Kind(), r.Bandwidth, err, c.kind, c.bandwidth)
		}
	}
	for _, c := range []struct {
		machine, nic string
		gpu, sharing int
		kind         Path
		bandwidth    float64
	}{
		{"switches", "mlx5_3", 3, 1, PathPIX, 50},
		{"bridges", "mlx5_0", 0, 4, PathPHB, 12.5},
		{"bridges", "mlx5_0", 3, 4, PathSYS, 12.5},
		{"sockets", "mlx5_2", 5, 2, PathPIX, 25},
		{"cloud", "ens5", 2, 4, PathPHB, 1.25},
		{"cards", "mlx5_4", 2, 1, PathPIX, 25},
	} {
		served := machineFrom(t, c.machine).Internal().Serving()
		first := slices.IndexFunc(served, func(s servedGPU) bool { return s.GPU == c.gpu })
		if s := served[first]; s.Near.Name != c.nic || s.Sharing != c.sharing || s.Near.Path != c.kind || s.Near.Bandwidth != c.bandwidth {
			t.Errorf("%s: GPU %d has %s, %v, %v GB/s, shared by %d", c.machine, c.gpu, s.Near.Name, s.Near.Path, s.Near.Bandwidth, s.Sharing)
		}
	}
	if served := machineFrom(t, "laptop").Internal().Serving(); len(served) != 0 {
		t.Errorf("a laptop's GPUs have the NICs %v", served)
	}
}

// TestLinkSpeeds reads the links of PCI devices, and attributes that say nothing.
func TestLinkSpeeds(t *testing.T) {
	root := dgxTree()
	at := func(name string) string { return "devices/" + dgxGPUs[0] + "/" + name }
	for _, c := range []struct {
		speed, current, most string
		bandwidth            float64
	}{
		{"2.5 GT/s PCIe", "16", "16", 4},
		{"5.0 GT/s PCIe", "8", "16", 4},
		{"16.0 GT/s PCIe", "8", "16", 15.753846},
		{"32 GT/s", "16", "16", 63.015385},
		{"64.0 GT/s PCIe", "16", "16", 118},
		{"16.0 GT/s PCIe", "0", "4", 7.876923},
		{"Unknown", "16", "16", unknownPCIe},
		{"16.0 GT/s PCIe", "63", "255", unknownPCIe},
		{"-16.0 GT/s", "1", "1", unknownPCIe},
		{"1e9 GT/s", "1", "1", unknownPCIe},
	} {
		root.file(at("max_link_speed"), c.speed)
		root.file(at("current_link_width"), c.current)
		root.file(at("max_link_width"), c.most)
		m := discover(t, root, dgxServer())
		// Both others have faster links: the switch's links are unknown.
		r := narrowest(m.pciHops(m.GPUs[0].PCIBusID, "0000:02:01.0"))
		want := c.bandwidth
		if want > unknownPCIe {
			want = unknownPCIe // of the port at the other end
		}
		if d := m.devices[m.GPUs[0].PCIBusID].bandwidth(); c.bandwidth != unknownPCIe && (d < c.bandwidth*0.999999 || d > c.bandwidth*1.000001) || r < want*0.999999 || r > want*1.000001 {
			t.Errorf("%s, %s of %s lanes: the link has %v GB/s, and the connection %v", c.speed, c.current, c.most, d, r)
		}
	}
}
