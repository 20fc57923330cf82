package topology

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
)

// TestWrongFabrics asks for links of no hosts, and of too many.
func TestWrongFabrics(t *testing.T) {
	m := &Machine{GPUs: make([]GPU, 8)}
	for name, f := range map[string]func() (fabric, error){
		"no hosts":       func() (fabric, error) { return m.Internal().Fabric(0) },
		"too many ranks": func() (fabric, error) { return m.Internal().Fabric(math.MaxInt/8 + 1) },
	} {
		if f, err := f(); !errors.Is(err, mscclgo.ErrInvalid) || f != (fabric{}) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

// TestFabricOfTwoNICs has GPUs that have two NICs each, of 25 GB/s, and some that share one.
func TestFabricOfTwoNICs(t *testing.T) {
	for name, want := range map[string][2]float64{"cards": {50, 50}, "sockets": {25, 12.5}, "bridges": {12.5, 3.125}} {
		if f, err := machineFrom(t, name).Internal().Fabric(2); err != nil || f.NIC != want[0] || f.Net != want[1] || !f.RDMA {
			t.Errorf("%s: a rank alone has %v GB/s, with all %v; not %v", name, f.NIC, f.Net, want)
		}
	}
}

// TestSharedNIC has two GPUs send by a NIC that is faster than the link of either, and two that
// reach a NIC each by the link of one switch.
func TestSharedNIC(t *testing.T) {
	nic := func(i int) string {
		return fmt.Sprintf(`{"id":"0000:2%d:00.0","under":"pci0000:00","gigatransfers":32,"lanes":16}`, i)
	}
	for text, want := range map[string]float64{
		`"nics":[{"name":"a","kind":"RoCE","pci":"0000:20:00.0","ports":[{"number":1,"active":true,"gbps":400}]}],
		"pci":[{"id":"0000:10:00.0","under":"pci0000:00","gigatransfers":16,"lanes":16},
		{"id":"0000:11:00.0","under":"pci0000:00","gigatransfers":16,"lanes":16},` + nic(0): 25,
		`"nics":[{"name":"a","kind":"RoCE","pci":"0000:20:00.0","ports":[{"number":1,"active":true,"gbps":200}]},
		{"name":"b","kind":"RoCE","pci":"0000:21:00.0","ports":[{"number":1,"active":true,"gbps":200}]}],
		"pci":[{"id":"0000:00:01.0","under":"pci0000:00","gigatransfers":8,"lanes":16},
		{"id":"0000:10:00.0","under":"pci0000:00/0000:00:01.0","gigatransfers":16,"lanes":16},
		{"id":"0000:11:00.0","under":"pci0000:00/0000:00:01.0","gigatransfers":16,"lanes":16},` + nic(0) + "," + nic(1): 15.754 / 2,
	} {
		m, err := Read(strings.NewReader(`{"format":"mscclgo-machine","version":1,
			"gpus":[{"index":0,"pci":"0000:10:00.0"},{"index":1,"pci":"0000:11:00.0"}],` + text + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		f, err := m.Internal().Fabric(2)
		if err != nil || math.Abs(f.Net-want) > 0.01 {
			t.Errorf("a rank sends %v GB/s beside the other, %v; want %v", f.Net, err, want)
		}
	}
}
