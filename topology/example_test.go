package topology_test

import (
	"fmt"
	"io/fs"
	"log"
	"testing/fstest"

	"github.com/mscclgo/mscclgo/topology"
)

// A program has Discover look at the machine itself; this one brings a sysfs
// of its own, with one PCI device on the second of two NUMA nodes.
func ExampleMachine_CPUsNear() {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	sysfs := fstest.MapFS{
		"devices/system/cpu/online":                 file("0-7\n"),
		"devices/system/node/online":                file("0-1\n"),
		"devices/system/node/node0/cpulist":         file("0-3\n"),
		"devices/system/node/node1/cpulist":         file("4-7\n"),
		"devices/pci0000:80/0000:80:00.0/numa_node": file("1\n"),
		"bus/pci/devices/0000:80:00.0":              {Data: []byte("../../../devices/pci0000:80/0000:80:00.0"), Mode: fs.ModeSymlink},
	}
	machine, err := topology.Discover(topology.Options{Sysfs: sysfs})
	if err != nil {
		log.Fatal(err)
	}
	cpus, err := machine.CPUsNear("0000:80:00.0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cpus)
	// Output: [4 5 6 7]
}

// The GPUs of this machine, and their NUMA nodes.
func ExampleDiscover() {
	machine, err := topology.Discover(topology.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range machine.GPUs {
		fmt.Println(g.Index, g.Model, g.NUMANode)
	}
}
