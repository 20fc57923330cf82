package topology

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo"
)

// Path is the kind of a connection in the terms of nvidia-smi topo and NCCL. Smaller
// values are closer.
type Path uint8

// The paths. NCCL counts PathNODE as PHB.
const (
	PathSelf    Path = iota // the same device
	PathNVL                 // by NVLink, directly or through NVSwitches
	PathPIX                 // through one PCIe switch at most
	PathPXB                 // through several PCIe switches but no host bridge
	PathPHB                 // through a PCIe host bridge, which is typically the CPU
	PathNODE                // between host bridges of one NUMA node
	PathSYS                 // between NUMA nodes
	PathNET                 // over the network, between hosts
	PathUnknown             // unknown to sysfs
)

// String returns the abbreviation: "X" for the device itself, "NVL", "PIX", "PXB", "PHB",
// "NODE", "SYS" or "NET"; "?" if unknown.
func (p Path) String() string {
	switch p {
	case PathSelf:
		return "X"
	case PathNVL:
		return "NVL"
	case PathNET:
		return "NET"
	case PathPIX:
		return "PIX"
	case PathPXB:
		return "PXB"
	case PathPHB:
		return "PHB"
	case PathNODE:
		return "NODE"
	case PathSYS:
		return "SYS"
	}
	return "?"
}

// Route is the connection of two GPUs.
type Route struct {
	NVLinks  int  // the number of active NVLinks between the two
	Switched bool // the links go through NVSwitches and are shared with other GPUs
	Path     Path // the connection without NVLink

	// Bandwidth is the bandwidth of the narrowest part of the connection, in GB/s (10^9 bytes per
	// second) each way: of the NVLinks if there are any, else of the PCIe links, and of what
	// joins two NUMA nodes. It is what the links' specifications say, without what packets'
	// headers take. Other connections may share it. It is 0 for a device and itself.
	Bandwidth float64
}

// Kind returns the kind of the connection: PathNVL where there are NVLinks, else the path.
func (r Route) Kind() Path {
	if r.NVLinks > 0 {
		return PathNVL
	}
	return r.Path
}

// String returns what nvidia-smi topo shows: "NV18" for 18 links, or the path.
func (r Route) String() string {
	if r.NVLinks > 0 {
		return fmt.Sprintf("NV%d", r.NVLinks)
	}
	return r.Path.String()
}

// NearNIC is a NIC and its connection to a device.
type NearNIC struct {
	NIC
	Path Path

	// Bandwidth is what data from the device to the network get at most, in GB/s each way:
	// the NIC's line rate or the narrowest part of the path. It is 0 if no port is up.
	Bandwidth float64
}

// CPUsNear returns the CPUs of the NUMA node of the PCI device with this bus ID,
// ascending. If the node is unknown, it returns the CPUs that the system reports as
// local to the device, or else all that are online. The process may not be allowed to
// run on some of them; sched_setaffinity ignores these, and fails only if none is left.
//
// Errors: ErrInvalid if there is no device with this ID.
func (m *Machine) CPUsNear(pciBusID string) ([]int, error) {
	_, d, err := m.device("find the CPUs near", pciBusID)
	if err != nil {
		return nil, err
	}
	for _, n := range m.Nodes {
		if n.ID == d.node && len(n.CPUs) > 0 {
			return slices.Clone(n.CPUs), nil
		}
	}
	if len(d.cpus) > 0 {
		return slices.Clone(d.cpus), nil
	}
	return slices.Clone(m.CPUs), nil
}

// NICsNear returns all NICs, up or not, ordered by how close they are to the PCI device
// with this bus ID: by path, then by the distance between NUMA nodes, then as in
// [Machine].NICs.
//
// Errors: ErrInvalid if there is no device with this ID.
func (m *Machine) NICsNear(pciBusID string) ([]NearNIC, error) {
	id, d, err := m.device("find the NICs near", pciBusID)
	if err != nil {
		return nil, err
	}
	near := make([]NearNIC, len(m.NICs))
	for i, n := range m.NICs {
		near[i] = m.nearNIC(id, n)
	}
	slices.SortStableFunc(near, func(a, b NearNIC) int {
		return cmp.Or(
			cmp.Compare(a.Path, b.Path),
			cmp.Compare(m.distance(d.node, a.NUMANode), m.distance(d.node, b.NUMANode)))
	})
	return near, nil
}

// nearNIC returns a NIC and its connection to the device with this bus ID.
func (m *Machine) nearNIC(id string, n NIC) NearNIC {
	near := NearNIC{n, m.path(id, n.PCIBusID), n.Bandwidth()}
	if hops := m.hops(id, n.PCIBusID); len(hops) > 0 {
		near.Bandwidth = min(near.Bandwidth, narrowest(hops))
	}
	return near
}

// LinkBetween returns the connection of the GPUs with these bus IDs. Any two GPUs with
// links to NVSwitches are connected by them, with as many links as the GPU with fewer
// has. Other links are counted where NVML reports, for one GPU or both, that they lead to the other.
// Other PCI devices have no NVLinks, only a path.
//
// Errors: ErrInvalid if there is no device with one of the IDs.
func (m *Machine) LinkBetween(a, b string) (Route, error) {
	const op = "find the link from"
	idA, _, err := m.device(op, a)
	if err != nil {
		return Route{}, err
	}
	idB, _, err := m.device(op, b)
	if err != nil {
		return Route{}, err
	}
	return m.route(idA, idB), nil
}

// route is [Machine.LinkBetween] for bus IDs as sysfs writes them. Without such a device the path is PathUnknown.
func (m *Machine) route(a, b string) Route {
	r := Route{Path: m.path(a, b)}
	if a == b {
		return r
	}
	r.NVLinks, r.Switched, _ = m.gpuAt(a).linksTo(m.gpuAt(b))
	r.Bandwidth = narrowest(m.hops(a, b))
	return r
}

func (g GPU) linksTo(other GPU) (links int, switched, known bool) {
	direct, switches, known := g.ends(other)
	back, theirs, _ := other.ends(g)
	if direct = max(direct, back); direct > 0 { // a link counts if one of its ends tells the other
		return direct, false, known
	}
	links = min(switches, theirs)
	return links, links > 0, known
}

// ends counts the links of g to another GPU and to switches. Only active links have a
// known peer.
func (g GPU) ends(other GPU) (direct, switched int, known bool) {
	known = true
	for _, l := range g.NVLinks {
		switch {
		case l.Peer == PeerGPU && l.PeerPCI != "" && l.PeerPCI == other.PCIBusID:
			direct++
		case l.Peer == PeerSwitch:
			switched++
		case l.Active && (l.Peer == PeerUnknown || l.Peer == PeerGPU && l.PeerPCI == ""):
			known = false
		}
	}
	return direct, switched, known
}

// device returns a PCI device and its bus ID as sysfs writes it.
func (m *Machine) device(op, pciBusID string) (string, device, error) {
	id, ok := normalBusID(pciBusID)
	if !ok {
		return "", device{}, mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("topology: %s %.40q", op, pciBusID),
			"not a PCI bus ID, such as 0000:1b:00.0")
	}
	d, ok := m.devices[id]
	if !ok {
		return "", device{}, mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("topology: %s %s", op, id),
			"this machine has no such PCI device; lspci -D lists them")
	}
	return id, d, nil
}

// path compares the PCI paths of two devices.
func (m *Machine) path(idA, idB string) Path {
	a, okA := m.devices[idA]
	b, okB := m.devices[idB]
	switch {
	case !okA || !okB:
		return PathUnknown
	case idA == idB:
		return PathSelf
	}
	common := 0
	for common < min(len(a.path), len(b.path)) && a.path[common] == b.path[common] {
		common++
	}
	if common == 0 { // under different host bridges, or a path is unknown
		switch {
		case a.node != Unknown && a.node == b.node:
			return PathNODE
		case a.node != Unknown && b.node != Unknown, a.path != nil && b.path != nil:
			return PathSYS
		}
		return PathUnknown
	}
	if common == 1 {
		return PathPHB
	}
	// Both are below the bridge path[common-1]. A switch consists of two levels of
	// bridges, its upstream port and the downstream ports, so with one more bridge on
	// either side the switch is still the same.
	if len(a.path)-common <= 2 && len(b.path)-common <= 2 {
		return PathPIX
	}
	return PathPXB
}

// farthest is larger than every distance in a SLIT.
const farthest = 256

// distance returns the SLIT's distance between two nodes.
func (m *Machine) distance(from, to int) int {
	for _, n := range m.Nodes {
		if n.ID != from {
			continue
		}
		for i, d := range n.Distances {
			if m.Nodes[i].ID == to {
				return d
			}
		}
	}
	return farthest
}
