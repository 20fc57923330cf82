package topology

import (
	"cmp"
	"slices"

	"github.com/mscclgo/mscclgo/internal/inside"
)

// RDMA reports whether a NIC is an InfiniBand or RoCE device with a port that is up, which
// is what RDMA needs.
func RDMA(n NIC) bool { return (n.Kind == InfiniBand || n.Kind == RoCE) && n.Active() }

// NICsFor returns the NICs that serve the PCI device with this bus ID: one, and for some GPUs
// a second one, over which large puts are spread.
//
// The first is the nearest of the usable ones, by path and then by the distance
// between NUMA nodes; of these the one with the most bandwidth; and of these the one that
// serves the fewest GPUs, so that GPUs that are as near to several NICs share them evenly. A
// device that is not one of the machine's GPUs gets one NIC: the first with the most bandwidth
// of the nearest. If its place is unknown, or pciBusID is empty, all NICs are as near.
//
// The second is as near as the first and has as much bandwidth, and no other GPU needs it: it
// is the first of none, and the second of one. Both are RDMA devices of one kind, on the GPU's
// NUMA node (up to [PathNODE]), and neither is a virtual function, whose port belongs to another
// device. The second adds bandwidth: the GPU's link, and each other part of both paths, carries
// more than the first alone. Of several NICs the one that adds most is taken, and of several GPUs
// that may have it the one that is as near to the fewest NICs.
//
// Processes that see the same GPUs find the same; containers with a GPU each may all take the
// same NICs. NICsFor returns nothing if no NIC is usable.
func (m *Machine) NICsFor(pciBusID string, usable func(NIC) bool) (serving []NearNIC) {
	id, _ := normalBusID(pciBusID)
	nics := m.candidates(id, usable)
	nics = nics[:min(len(nics), 1)]
	if gpu := slices.IndexFunc(m.GPUs, func(g GPU) bool { return g.PCIBusID == id }); gpu >= 0 && id != "" {
		nics = m.assign(usable)[gpu]
	}
	for _, nic := range nics {
		serving = append(serving, m.nearNIC(id, m.NICs[nic]))
	}
	return serving
}

// candidates returns which of NICs are the nearest that are usable, and have the most
// bandwidth.
func (m *Machine) candidates(id string, usable func(NIC) bool) (best []int) {
	from := Unknown
	if d, ok := m.devices[id]; ok {
		from = d.node
	}
	var least NearNIC
	for i, n := range m.NICs {
		if !usable(n) {
			continue
		}
		near := m.nearNIC(id, n)
		order := -1
		if len(best) > 0 {
			order = cmp.Or(
				cmp.Compare(near.Path, least.Path),
				cmp.Compare(m.distance(from, n.NUMANode), m.distance(from, least.NUMANode)),
				cmp.Compare(least.Bandwidth, near.Bandwidth))
		}
		switch {
		case order < 0:
			best, least = []int{i}, near
		case order == 0:
			best = append(best, i)
		}
	}
	return best
}

// assign returns which of NICs serve each of GPUs, the first one first. GPUs with the fewest
// candidates choose first.
func (m *Machine) assign(usable func(NIC) bool) [][]int {
	candidates := make([][]int, len(m.GPUs))
	order := make([]int, len(m.GPUs))
	for i, g := range m.GPUs {
		order[i], candidates[i] = i, m.candidates(g.PCIBusID, usable)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(candidates[a]), len(candidates[b])) })
	serves := make([]int, len(m.NICs))
	assigned := make([][]int, len(m.GPUs))
	for _, gpu := range order {
		first := -1
		for _, nic := range candidates[gpu] {
			if first < 0 || serves[nic] < serves[first] {
				first = nic
			}
		}
		if first >= 0 {
			serves[first]++
			assigned[gpu] = []int{first}
		}
	}
	for _, gpu := range order {
		if second := m.second(gpu, candidates[gpu], assigned[gpu], serves); second >= 0 {
			serves[second]++
			assigned[gpu] = append(assigned[gpu], second)
		}
	}
	return assigned
}

// network returns which NICs carry data between hosts: the NICs for RDMA if there are any, else the
// Ethernet devices that are up; these too where the fastest is known to be faster than all of those.
func (m *Machine) network() func(NIC) bool {
	if !slices.ContainsFunc(m.NICs, RDMA) || TCPIsFaster(m.fastest(RDMA), m.fastest(upEthernet)) {
		return upEthernet
	}
	return RDMA
}

func upEthernet(n NIC) bool { return n.Kind == Ethernet && n.Active() }

// fastest returns the bandwidth of the fastest of some NICs, or 0 if the bandwidth of one is unknown.
func (m *Machine) fastest(of func(NIC) bool) (most float64) {
	for _, n := range m.NICs {
		switch {
		case !of(n):
		case !n.RateKnown():
			return 0
		default:
			most = max(most, n.Bandwidth())
		}
	}
	return most
}

func (m machineInside) Serving() (all []servedGPU) {
	assigned := m.assign(m.network())
	sharing := make([]int, len(m.NICs))
	for _, nics := range assigned {
		for _, nic := range nics {
			sharing[nic]++
		}
	}
	for gpu, nics := range assigned {
		for i, nic := range nics {
			id := m.GPUs[gpu].PCIBusID
			near := m.nearNIC(id, m.NICs[nic])
			if i > 0 {
				near.Bandwidth = m.adds(id, m.NICs[nics[0]], m.NICs[nic])
			}
			all = append(all, servedGPU{GPU: gpu, Near: near, Sharing: sharing[nic]})
		}
	}
	flows := make([][]hop, len(all))
	for i, s := range all {
		flows[i] = m.ToNIC(s)
	}
	for i, width := range inside.Share(flows) {
		all[i].Together = width
	}
	return all
}

func (m machineInside) ToNIC(s servedGPU) []hop {
	path := own(m.hops(m.GPUs[s.GPU].PCIBusID, s.Near.PCIBusID), gpuName(s.GPU), s.Near.Name)
	return append(path, hop{Name: s.Near.Name + " to network", Bandwidth: s.Near.NIC.Bandwidth()})
}

func (m machineInside) FromNIC(s servedGPU) []hop {
	path := own(m.hops(s.Near.PCIBusID, m.GPUs[s.GPU].PCIBusID), s.Near.Name, gpuName(s.GPU))
	return append(path, hop{Name: s.Near.Name + " from network", Bandwidth: s.Near.NIC.Bandwidth()})
}
