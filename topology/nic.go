package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// NIC is a network device. A RoCE card is listed twice, as an RDMA device and as an
// Ethernet device.
type NIC struct {
	Name     string // "mlx5_0" or "eth0"
	Kind     NICKind
	PCIBusID string // empty if it is not on PCI
	NUMANode int    // or Unknown
	Ports    []Port // by number; an Ethernet device has one

	// Interfaces are the names of the network interfaces of the card: an RDMA
	// device's, or the Ethernet device's own name.
	Interfaces []string
}

// Active reports whether any port is up.
func (n NIC) Active() bool {
	for _, p := range n.Ports {
		if p.Active {
			return true
		}
	}
	return false
}

// RateKnown reports whether a port that is up has a rate.
func (n NIC) RateKnown() bool {
	return slices.ContainsFunc(n.Ports, func(p Port) bool { return p.Active && p.Gbps > 0 })
}

// Port is a port of a NIC.
type Port struct {
	Number int     // from 1
	Active bool    // the link is up
	State  string  // as the kernel names it: "ACTIVE", "DOWN"; "up", "down" for Ethernet
	Gbps   float64 // 10^9 bits per second; 0 if unknown
}

// NICKind is the kind of a NIC.
type NICKind uint8

// The kinds of NIC.
const (
	Ethernet   NICKind = iota // a network interface of a device
	InfiniBand                // an RDMA device on InfiniBand
	RoCE                      // an RDMA device on Ethernet, Soft-RoCE included
	OtherRDMA                 // an RDMA device with another transport: iWARP, EFA
)

// String returns the name of the kind.
func (k NICKind) String() string {
	switch k {
	case Ethernet:
		return "Ethernet"
	case InfiniBand:
		return "InfiniBand"
	case RoCE:
		return "RoCE"
	}
	return "other RDMA"
}

// nics reads the RDMA devices and the Ethernet devices.
func (s sysfs) nics(devices map[string]device) ([]NIC, error) {
	rdma, err := s.names("class/infiniband")
	if err != nil {
		return nil, err
	}
	interfaces, err := s.names("class/net")
	if err != nil {
		return nil, err
	}
	var nics []NIC
	for _, name := range rdma {
		nic, err := s.rdma(name)
		if err != nil {
			return nil, err
		}
		nics = append(nics, nic)
	}
	for _, name := range interfaces {
		if nic, ok := s.ethernet(name); ok {
			nics = append(nics, nic)
		}
	}
	for i := range nics {
		nics[i].NUMANode = Unknown
		if d, ok := devices[nics[i].PCIBusID]; ok {
			nics[i].NUMANode = d.node
		}
	}
	return nics, nil
}

// rdma reads a device of class infiniband
// (Documentation/ABI/stable/sysfs-class-infiniband in the kernel's source).
func (s sysfs) rdma(name string) (NIC, error) {
	dir := "class/infiniband/" + name
	nic := NIC{Name: name, PCIBusID: busID(pciPath(s.where(dir)))}
	var err error
	if nic.Interfaces, err = s.names(dir + "/device/net"); err != nil {
		return nic, err
	}
	// Soft-RoCE is not on PCI; it names the interface that it runs over.
	if parent, known := s.attribute(dir + "/parent"); known && len(nic.Interfaces) == 0 && isName(parent) {
		nic.Interfaces = []string{parent}
		nic.PCIBusID = busID(pciPath(s.where("class/net/" + parent)))
	}
	numbers, err := s.names(dir + "/ports")
	if err != nil {
		return nic, err
	}
	nic.Kind = OtherRDMA
	for _, text := range numbers {
		number, err := parseID(text)
		if err != nil {
			return nic, nonsense(dir+"/ports", err)
		}
		port, layer := s.port(fmt.Sprintf("%s/ports/%s", dir, text))
		port.Number = number
		// The ports of a card may differ; one that is up decides.
		if len(nic.Ports) == 0 || port.Active && !nic.Active() {
			nic.Kind = s.kind(dir, layer)
		}
		nic.Ports = append(nic.Ports, port)
	}
	return nic, nil
}

// kind returns the kind of an RDMA device. The node type "1: CA" is a channel adapter,
// which has InfiniBand's transport, and "4: RNIC" is iWARP.
func (s sysfs) kind(dir, layer string) NICKind {
	node, known := s.attribute(dir + "/node_type")
	switch adapter := !known || strings.HasPrefix(node, "1:"); {
	case adapter && layer == "InfiniBand":
		return InfiniBand
	case adapter && layer == "Ethernet":
		return RoCE
	}
	return OtherRDMA
}

// port reads a port. A state is "4: ACTIVE", a rate "400 Gb/sec (4X NDR)".
func (s sysfs) port(dir string) (port Port, layer string) {
	state, _ := s.attribute(dir + "/state")
	number, word, _ := strings.Cut(state, ": ")
	port.Active, port.State = number == "4", word
	rate, _ := s.attribute(dir + "/rate")
	if digits, _, ok := strings.Cut(rate, " Gb/sec"); ok {
		port.Gbps = gbps(digits, 1)
	}
	layer, _ = s.attribute(dir + "/link_layer")
	return port, layer
}

// ethernet reads a network interface, if it is of type Ethernet (ARPHRD_ETHER
// is 1) and not virtual
// (Documentation/ABI/testing/sysfs-class-net in the kernel's source).
func (s sysfs) ethernet(name string) (NIC, bool) {
	dir := "class/net/" + name
	place := s.where(dir)
	if place == "" || strings.HasPrefix(place, "devices/virtual/") {
		return NIC{}, false
	}
	if hardware, _ := s.attribute(dir + "/type"); hardware != "1" {
		return NIC{}, false
	}
	port := Port{Number: 1}
	port.State, _ = s.attribute(dir + "/operstate")
	carrier, _ := s.attribute(dir + "/carrier") // cannot be read while the interface is down
	port.Active = carrier == "1"
	speed, _ := s.attribute(dir + "/speed") // Mbit/s; -1 if the driver does not know
	port.Gbps = gbps(speed, 1000)
	return NIC{
		Name: name, Kind: Ethernet, PCIBusID: busID(pciPath(place)),
		Ports: []Port{port}, Interfaces: []string{name},
	}, true
}

// gbps parses a rate, in units of which each make a Gbit/s. It returns 0 if the rate is
// unknown.
func gbps(s string, each float64) float64 {
	rate, err := strconv.ParseFloat(s, 64)
	if err != nil || !(rate < 1e9) || !isRate(rate/each) { // 4294967295 is an unknown one
		return 0
	}
	return rate / each
}

// isRate reports whether a port can have a rate, in Gbit/s.
func isRate(rate float64) bool { return rate >= 1e-3 && rate < 1e9 }

// isName reports whether s can be the name of a network interface (dev_valid_name in the
// kernel's source), and so part of a path.
func isName(s string) bool {
	return s != "" && len(s) < 16 && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n")
}
