package topology

import "slices"

// second returns which of a GPU's candidates serves it besides the first: the one that adds most, of the
// candidates that serve no GPU. It is -1 if there is none.
func (m *Machine) second(gpu int, candidates, first, serves []int) int {
	if len(first) == 0 {
		return -1
	}
	id, best, most := m.GPUs[gpu].PCIBusID, -1, 0.0
	for _, nic := range candidates {
		if serves[nic] > 0 || !m.together(id, m.NICs[first[0]], m.NICs[nic]) {
			continue
		}
		if adds := m.adds(id, m.NICs[first[0]], m.NICs[nic]); better(adds, most) {
			best, most = nic, adds
		}
	}
	return best
}

// together reports whether two NICs can serve a GPU at once, if they are as near.
func (m *Machine) together(id string, first, second NIC) bool {
	// Over several sockets both would take the link between these, which other GPUs need. An
	// RDMA device in software is at the address of the card that it goes through.
	return RDMA(second) && first.Kind == second.Kind && first.PCIBusID != second.PCIBusID &&
		m.path(id, second.PCIBusID) <= PathNODE &&
		!m.devices[first.PCIBusID].virtual && !m.devices[second.PCIBusID].virtual
}

// adds returns what a second NIC carries besides the first: less than alone where both paths
// from the GPU have a part in common.
func (m *Machine) adds(id string, first, second NIC) float64 {
	taken, left := m.nearNIC(id, first).Bandwidth, m.nearNIC(id, second).Bandwidth
	both := m.hops(id, first.PCIBusID)
	for _, h := range m.hops(id, second.PCIBusID) {
		if slices.Contains(both, h) {
			left = min(left, h.Bandwidth-taken)
		}
	}
	return max(left, 0)
}

// better reports whether a width is above another by more than the rounding of numbers.
func better(width, than float64) bool { return width > than*(1+1e-9) }
