package topology

import (
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestNICs(t *testing.T) {
	m := discover(t, dgxTree(), noNVML())
	want := []NIC{
		{"mlx5_0", InfiniBand, "0000:0c:00.0", 0, []Port{{1, true, "ACTIVE", 200}}, []string{"ib0"}},
		{"mlx5_2", RoCE, "0000:12:00.0", 0, []Port{{1, false, "DOWN", 40}}, []string{"enp18s0"}},
		{"mlx5_10", InfiniBand, "0000:4b:00.0", 0, []Port{{1, true, "ACTIVE", 200}}, []string{"ib1"}},
		{"eno1", Ethernet, "0000:e1:00.0", 1, []Port{{1, true, "up", 10}}, []string{"eno1"}},
		{"enp18s0", Ethernet, "0000:12:00.0", 0, []Port{{1, true, "up", 400}}, []string{"enp18s0"}},
	}
	testcmp.Equal(t, "NICs", m.NICs, want)
	if !m.NICs[0].Active() || m.NICs[1].Active() {
		t.Error("mlx5_0 is up, mlx5_2 is down")
	}
}

// TestSoftRoCE has a device that is not on PCI and runs over one that is.
func TestSoftRoCE(t *testing.T) {
	root := dgxTree()
	dir := "devices/virtual/infiniband/rxe0"
	root.file(dir+"/node_type", "1: CA")
	root.file(dir+"/parent", "eno1")
	root.file(dir+"/ports/1/link_layer", "Ethernet")
	root.file(dir+"/ports/1/state", "4: ACTIVE")
	root.file(dir+"/ports/1/rate", "2.5 Gb/sec (1X SDR)")
	root.link("class/infiniband/rxe0", dir)
	want := NIC{"rxe0", RoCE, "0000:e1:00.0", 1, []Port{{1, true, "ACTIVE", 2.5}}, []string{"eno1"}}
	testcmp.Equal(t, "rxe0", nicNamed(t, root, "rxe0"), want)
	root.file(dir+"/parent", "../../bus")
	if got := nicNamed(t, root, "rxe0"); got.PCIBusID != "" || got.NUMANode != Unknown || got.Interfaces != nil {
		t.Errorf("with a parent that is no name: %+v", got)
	}
}

// TestKinds covers ports that differ, and devices that are not InfiniBand's.
func TestKinds(t *testing.T) {
	root := dgxTree()
	dir := "devices/" + dgxNICs["mlx5_0"] + "/infiniband/mlx5_0/"
	root.file(dir+"ports/1/state", "1: DOWN")
	root.file(dir+"ports/2/state", "4: ACTIVE")
	root.file(dir+"ports/2/link_layer", "Ethernet")
	got := nicNamed(t, root, "mlx5_0")
	if got.Kind != RoCE || len(got.Ports) != 2 || got.Ports[0].Active || got.Ports[1].Number != 2 || !got.Active() {
		t.Errorf("with Ethernet up on port 2: %+v", got)
	}
	for _, node := range []string{"4: RNIC", "7: unspecified"} {
		root.file(dir+"node_type", node)
		if got := nicNamed(t, root, "mlx5_0"); got.Kind != OtherRDMA {
			t.Errorf("node type %q: %v", node, got.Kind)
		}
	}
}

// TestUnknownRates has drivers report malformed rates.
func TestUnknownRates(t *testing.T) {
	root := dgxTree()
	for _, speed := range []string{"-1", "", "fast", "NaN", "Inf", "1e300", "4294967295"} {
		root.file("devices/"+dgxNICs["eno1"]+"/net/eno1/speed", speed)
		if got := nicNamed(t, root, "eno1"); got.Ports[0].Gbps != 0 {
			t.Errorf("speed %q: %v Gb/s", speed, got.Ports[0].Gbps)
		}
	}
	dir := "devices/" + dgxNICs["mlx5_0"] + "/infiniband/mlx5_0/ports/1/"
	root.file(dir+"rate", "much")
	root.file(dir+"state", "ACTIVE")
	if got := nicNamed(t, root, "mlx5_0"); got.Ports[0].Gbps != 0 || got.Active() {
		t.Errorf("rate and state without sense: %+v", got)
	}
}

func nicNamed(t *testing.T, root tree, name string) NIC {
	t.Helper()
	for _, n := range discover(t, root, noNVML()).NICs {
		if n.Name == name {
			return n
		}
	}
	t.Fatalf("there is no %s", name)
	return NIC{}
}
