// Package topology finds out what is in the machine: GPUs and the NVLinks
// between them, NUMA nodes and their CPUs, network devices, and how far apart
// they are. GPUs come from NVML, NVIDIA's management library, which is loaded
// if it is there; everything else comes from sysfs.
//
// [Discover] takes a picture. A [Machine] does not change afterwards, so any
// goroutine may read it. What the system does not tell is marked as unknown,
// and a machine without GPUs or without NVML is an ordinary machine: only
// content of sysfs that makes no sense is an error.
//
// In a virtual machine the picture is what the hypervisor shows: PCI paths may
// be flat and NUMA nodes missing.
package topology

// Unknown stands for a NUMA node that the system does not tell.
const Unknown = -1

// Machine is what [Discover] found. Its slices belong to it: read, do not write.
type Machine struct {
	CPUs  []int  // the CPUs that are online, ascending; empty if sysfs does not tell
	Nodes []Node // NUMA nodes, by ID; empty if sysfs tells of none
	GPUs  []GPU  // in NVML's order, which is that of PCI addresses
	NICs  []NIC  // RDMA devices by name, then Ethernet devices by name

	// GPUError says why GPUs is empty or lacks some; nil if NVML named all.
	// Its kind is ErrUnsupported where there is no NVML or no driver,
	// otherwise ErrSystem.
	GPUError error

	devices map[string]device // every PCI device, by bus ID
}

// Node is a NUMA node.
type Node struct {
	ID   int
	CPUs []int // ascending; empty for a node of memory alone

	// Distances to each of Machine.Nodes, in their order, in the units of
	// ACPI's SLIT: 10 is the node itself, 20 is twice as far. Nil if unknown.
	Distances []int
}

// GPU is one NVIDIA GPU.
type GPU struct {
	Index    int      // NVML's, which CUDA_VISIBLE_DEVICES does not change
	UUID     [16]byte // as CUDA gives it; zero if unknown
	Model    string   // "NVIDIA H200"; empty if unknown
	PCIBusID string   // "0000:1b:00.0"; empty if unknown
	NUMANode int      // or Unknown
	CPUs     []int    // those near it, ascending; empty if unknown
	NVLinks  []Link   // those that the GPU has, active or not
}

// Link is one NVLink of a GPU.
type Link struct {
	Number  int    // of the link on its GPU
	Active  bool   // up; of a link that is down the peer is unknown
	Version int    // of NVLink: 3 on A100, 4 on H100; 0 if unknown
	Peer    Peer   // what is at the other end
	PeerPCI string // its bus ID; empty if unknown, as often in virtual machines
}

// Peer is what an NVLink leads to.
type Peer uint8

// What an NVLink may lead to.
const (
	PeerUnknown Peer = iota
	PeerGPU          // straight to another GPU
	PeerSwitch       // to an NVSwitch
	PeerCPU          // to a CPU with NVLink
)

// String names the peer.
func (p Peer) String() string {
	switch p {
	case PeerGPU:
		return "GPU"
	case PeerSwitch:
		return "switch"
	case PeerCPU:
		return "CPU"
	}
	return "unknown"
}

// GPU finds a GPU by its UUID, as CUDA gives it.
func (m *Machine) GPU(uuid [16]byte) (GPU, bool) {
	for _, g := range m.GPUs {
		if g.UUID == uuid && uuid != [16]byte{} {
			return g, true
		}
	}
	return GPU{}, false
}
