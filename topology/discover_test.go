package topology

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestThisMachine(t *testing.T) {
	m, err := Discover(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%v", m)
	if len(m.GPUs) == 0 && m.GPUError == nil {
		t.Log("NVML is here and names no GPU")
	}
	for _, g := range m.GPUs {
		if g.PCIBusID == "" || g.UUID == [16]byte{} || g.Model == "" {
			t.Errorf("GPU %d lacks an address, a UUID or a model: %+v", g.Index, g)
			continue
		}
		if same, ok := m.GPU(g.UUID); !ok || same.Index != g.Index {
			t.Errorf("GPU %d is not found by its UUID", g.Index)
		}
		if cpus, err := m.CPUsNear(g.PCIBusID); err != nil || len(cpus) == 0 {
			t.Errorf("CPUs near GPU %d: %v, %v", g.Index, cpus, err)
		}
		for _, other := range m.GPUs {
			route, err := m.LinkBetween(g.PCIBusID, other.PCIBusID)
			back, _ := m.LinkBetween(other.PCIBusID, g.PCIBusID)
			if err != nil || route != back {
				t.Errorf("from GPU %d to %d: %v, back %v, %v", g.Index, other.Index, route, back, err)
			}
		}
	}
	if _, err := os.Stat("/sys/devices/system/cpu/online"); err == nil && len(m.CPUs) == 0 {
		t.Error("a machine without CPUs")
	}
}

// Without GPUs NVML is not used, which here would be a panic.
func TestNoGPUsWanted(t *testing.T) {
	m, err := Discover(Options{NoGPUs: true, NVML: struct{ nvml.Interface }{}})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.GPUs) != 0 || m.GPUError != nil || len(m.CPUs) == 0 {
		t.Errorf("found %d CPUs, GPUs %v, %v", len(m.CPUs), m.GPUs, m.GPUError)
	}
}

func TestSeveralAtOnce(t *testing.T) {
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if _, err := Discover(Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

func TestNodes(t *testing.T) {
	m := discover(t, dgxTree(), noNVML())
	want := []Node{
		{ID: 0, CPUs: append(span(0, 31), span(64, 95)...), Distances: []int{10, 32}},
		{ID: 1, CPUs: append(span(32, 63), span(96, 127)...), Distances: []int{32, 10}},
	}
	testcmp.Equal(t, "nodes", m.Nodes, want)
	testcmp.Equal(t, "CPUs", m.CPUs, span(0, 127))
}

func span(first, last int) (list []int) {
	for n := first; n <= last; n++ {
		list = append(list, n)
	}
	return list
}

func TestEmptySysfs(t *testing.T) {
	m := discover(t, newTree(), noNVML())
	if len(m.CPUs)+len(m.Nodes)+len(m.NICs)+len(m.GPUs) != 0 {
		t.Errorf("found something in nothing: %+v", m)
	}
}

func TestNoSysfs(t *testing.T) {
	if m, err := Discover(Options{Sysfs: os.DirFS("/nowhere-at-all"), NVML: noNVML()}); !errors.Is(err, mscclgo.ErrSystem) {
		t.Errorf("%v, %v; want ErrSystem", m, err)
	}
}

// TestNonsense damages one file at a time and expects an error that names it.
func TestNonsense(t *testing.T) {
	gpu := "devices/" + dgxGPUs[0]
	for _, c := range []struct{ name, content, says string }{
		{"devices/system/cpu/online", "0-", "devices/system/cpu/online"},
		{"devices/system/node/online", "0-1,zero", "devices/system/node/online"},
		{"devices/system/node/online", strings.Repeat("1", 100), "devices/system/node/online"},
		{"devices/system/node/node0/cpulist", "7-3", "node0/cpulist"},
		{"devices/system/node/node1/distance", "10", "1 distances for 2 nodes"},
		{"devices/system/node/node1/distance", "10 256", "256"},
		{gpu + "/numa_node", "-2", "0000:07:00.0/numa_node"},
		{gpu + "/numa_node", "one", "0000:07:00.0/numa_node"},
		{gpu + "/local_cpulist", "all", "0000:07:00.0/local_cpulist"},
		{"bus/pci/devices/tree", "", "\"tree\" is not a PCI bus ID"},
		{"class/infiniband/mlx5_0/ports/one", "", "mlx5_0/ports"},
		{"class/net", "", "class/net"},
	} {
		root := dgxTree()
		if c.name == "class/net" {
			for name := range root.MapFS {
				if strings.HasPrefix(name, c.name) {
					delete(root.MapFS, name)
				}
			}
		}
		if rest, ok := strings.CutPrefix(c.name, "class/infiniband/mlx5_0/"); ok {
			c.name = "devices/" + dgxNICs["mlx5_0"] + "/infiniband/mlx5_0/" + rest
		}
		root.file(c.name, c.content)
		_, err := Discover(Options{Sysfs: root, NVML: noNVML()})
		if !errors.Is(err, mscclgo.ErrSystem) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s holds %.20q: %v; want ErrSystem with %q", c.name, c.content, err, c.says)
		}
	}
}

// TestHugeAttribute: an endless file counts as unknown.
func TestHugeAttribute(t *testing.T) {
	root := dgxTree()
	root.file("devices/system/cpu/online", strings.Repeat("0,", maxAttribute))
	if m := discover(t, root, noNVML()); m.CPUs != nil {
		t.Errorf("read %d CPUs", len(m.CPUs))
	}
}

// TestLinksOutside: links that lead out of sysfs, or are not links, count as unknown.
func TestLinksOutside(t *testing.T) {
	root := dgxTree()
	for _, target := range []string{"/etc", "../../../../etc", "../../bus", "missing"} {
		root.MapFS["class/net/eno1"] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
		for _, n := range discover(t, root, noNVML()).NICs {
			if n.Name == "eno1" {
				t.Errorf("eno1 leads to %s and is %+v", target, n)
			}
		}
	}
}

// TestInferredNode covers firmware that gives a device CPUs and no node.
func TestInferredNode(t *testing.T) {
	root := dgxTree()
	root.file("devices/"+dgxGPUs[0]+"/numa_node", "-1")
	root.file("devices/"+dgxGPUs[1]+"/numa_node", "-1")
	root.file("devices/"+dgxGPUs[1]+"/local_cpulist", "0-127")
	root.file("devices/"+dgxNICs["eno1"]+"/numa_node", "-1")
	if n := nicNamed(t, root, "eno1"); n.NUMANode != 1 {
		t.Errorf("node %d of eno1, want 1", n.NUMANode)
	}
	m := discover(t, root, dgxServer())
	if m.GPUs[0].NUMANode != 0 || m.GPUs[1].NUMANode != Unknown {
		t.Errorf("nodes %d and %d, want 0 and unknown", m.GPUs[0].NUMANode, m.GPUs[1].NUMANode)
	}
	cpus, err := m.CPUsNear(m.GPUs[1].PCIBusID)
	if err != nil {
		t.Error(err)
	}
	testcmp.Equal(t, "CPUs near a GPU of no node", cpus, span(0, 127))
}
