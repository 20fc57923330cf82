package topology

import (
	"slices"
	"strconv"
	"strings"
)

// Bandwidths are in GB/s, which is 10^9 bytes per second, each way, as the links'
// specifications give them, without what packets' headers take. What the system does not
// tell is taken to be as follows.
const (
	// unknownPCIe is the link of a device whose speed or width is unknown, as in virtual
	// machines: 16 lanes of PCIe 3.0.
	unknownPCIe = 16 * 8 * 128.0 / 130 / 8
	// betweenSockets is what goes from one NUMA node to another: one link of Intel's Ultra
	// Path Interconnect at 10.4 GT/s, which moves 2 bytes in each transfer. Sysfs does not
	// show how many links there are, nor of which kind.
	betweenSockets = 20.8
	// unknownNIC is a network device that is up and does not report its rate: 10 Gbit/s.
	unknownNIC = 10.0 / 8
)

// laneBandwidth returns what a PCIe lane carries at so many transfers, 10^9 a second: a bit
// each, of which PCIe 1 and 2 use 8 in 10, and 3 to 5 use 128 in 130. Since PCIe 6, 236 of
// the 256 bytes of a flit are packets (PCI Express Base Specification 6.0, section 4.2).
func laneBandwidth(gigatransfers float64) float64 {
	switch {
	case gigatransfers <= 5:
		return gigatransfers / 8 * 8 / 10
	case gigatransfers <= 32:
		return gigatransfers / 8 * 128 / 130
	}
	return gigatransfers / 8 * 236 / 256
}

// bandwidth returns the bandwidth of the device's own link, or of the link of a bridge; 0 if unknown.
func (d device) bandwidth() float64 { return float64(d.lanes) * laneBandwidth(d.gigatransfers) }

// bandwidth returns what an active link carries, by NVIDIA's data sheets: 20 GB/s each way
// in version 1 (P100), 25 in versions 2 to 4 (V100, A100, H100), and 50 in version 5 (B200).
// It is 25 where the version is unknown, and 0 for a link that is down.
func (l Link) bandwidth() float64 {
	switch {
	case !l.Active:
		return 0
	case l.Version == 1:
		return 20
	case l.Version >= 5:
		return 50
	}
	return 25
}

// Bandwidth returns the line rate of the fastest port that is up, in GB/s each way: 1.25
// if the device is up and does not report its rate, and 0 if no port is up.
func (n NIC) Bandwidth() float64 {
	rate := 0.0
	for _, p := range n.Ports {
		switch {
		case p.Active && p.Gbps > 0:
			rate = max(rate, p.Gbps/8)
		case p.Active:
			rate = max(rate, unknownNIC)
		}
	}
	return rate
}

// narrowest returns the bandwidth of a path.
func narrowest(hops []hop) float64 {
	least := 0.0
	for i, h := range hops {
		if i == 0 || h.Bandwidth < least {
			least = h.Bandwidth
		}
	}
	return least
}

// hops returns the path from one device to another, by NVLink if that connects the two. It is
// empty from a device to itself.
func (m *Machine) hops(from, to string) []hop {
	if from == to && from != "" {
		return nil
	}
	a, b := m.gpuAt(from), m.gpuAt(to)
	links, switched, _ := a.linksTo(b)
	switch {
	case links > 0 && switched:
		return []hop{{Name: from + " to switches", Bandwidth: switchBandwidth(a)}, {Name: to + " from switches", Bandwidth: switchBandwidth(b)}}
	case links > 0:
		return []hop{{Name: from + " to " + to, Bandwidth: max(a.bandwidthTo(to), b.bandwidthTo(from))}}
	}
	return m.pciHops(from, to)
}

func (m machineInside) Hops(from, to int) []hop {
	return own(m.hops(m.GPUs[from].PCIBusID, m.GPUs[to].PCIBusID), gpuName(from), gpuName(to))
}

// own names the links of devices without an address in a path, which else seem to be one and
// the same.
func own(path []hop, from, to string) []hop {
	for i, h := range path {
		switch h.Name {
		case " up":
			path[i].Name = from + " up"
		case " down":
			path[i].Name = to + " down"
		}
	}
	return path
}

// gpuName names a GPU that may have no address.
func gpuName(gpu int) string { return "GPU " + strconv.Itoa(gpu) }

// gpuAt returns the GPU with this bus ID, or one without links.
func (m *Machine) gpuAt(id string) GPU {
	for _, g := range m.GPUs {
		if g.PCIBusID == id && id != "" {
			return g
		}
	}
	return GPU{}
}

// switchBandwidth returns the bandwidth of all of a GPU's links to switches.
func switchBandwidth(g GPU) (sum float64) {
	for _, l := range g.NVLinks {
		if l.Peer == PeerSwitch {
			sum += l.bandwidth()
		}
	}
	return sum
}

// bandwidthTo returns the bandwidth of the links to a GPU.
func (g GPU) bandwidthTo(id string) (sum float64) {
	for _, l := range g.NVLinks {
		if l.Peer == PeerGPU && l.PeerPCI == id {
			sum += l.bandwidth()
		}
	}
	return sum
}

// pciHops returns the path over PCIe. Of a switch, the links of its ports and of the device
// below are counted; the two ends of a link may both report its speed, and the slower counts.
func (m *Machine) pciHops(from, to string) []hop {
	a, b := m.devices[from], m.devices[to]
	common := 0
	for common < min(len(a.path), len(b.path)) && a.path[common] == b.path[common] {
		common++
	}
	var hops []hop
	for _, end := range []struct {
		id, direction string
		path          []string
	}{{from, " up", a.path[common:]}, {to, " down", b.path[common:]}} {
		path := end.path
		if len(path) == 0 {
			path = []string{end.id}
		}
		for _, id := range path {
			bandwidth := m.devices[id].bandwidth()
			if bandwidth == 0 && id == end.id {
				bandwidth = unknownPCIe
			}
			if bandwidth > 0 {
				hops = append(hops, hop{Name: id + end.direction, Bandwidth: bandwidth})
			}
		}
	}
	if m.path(from, to) == PathSYS {
		hops = append(hops, hop{Name: "node " + number(a.node) + " to " + number(b.node), Bandwidth: betweenSockets})
	}
	return hops
}

// number writes the number of a node.
func number(node int) string {
	if node == Unknown {
		return "-"
	}
	return strconv.Itoa(node)
}

// link reads the speed and width of a PCI device's link. The speed is the highest that the
// device supports, since one that does nothing runs at a lower one; the width is the present one.
// (Documentation/ABI/testing/sysfs-bus-pci in the kernel's source.)
func (s sysfs) link(dir string) (gigatransfers float64, lanes int) {
	text, _ := s.attribute(dir + "/max_link_speed") // "32.0 GT/s PCIe", or "Unknown"
	digits, _, _ := strings.Cut(text, " GT/s")
	speed, err := strconv.ParseFloat(digits, 64)
	if err != nil || !slices.Contains(linkSpeeds, speed) {
		return 0, 0
	}
	for _, name := range []string{"/current_link_width", "/max_link_width"} {
		text, _ := s.attribute(dir + name)
		if n, err := strconv.Atoi(text); err == nil && 1 <= n && n <= maxLanes {
			return speed, n
		}
	}
	return 0, 0
}

// linkSpeeds are the speeds of PCIe 1 to 7, in 10^9 transfers a second.
var linkSpeeds = []float64{2.5, 5, 8, 16, 32, 64, 128}

// maxLanes bounds the width of a link: PCIe has up to 32 lanes.
const maxLanes = 32
