// Package topology describes the hardware of the machine: GPUs and the NVLinks between
// them, NUMA nodes and their CPUs, network devices, and how close these are to each
// other. GPUs are found through NVML, NVIDIA's management library, which is loaded if it
// is installed; everything else through sysfs.
//
// [Discover] returns a [Machine], which does not change and can be read from any
// goroutine. What the system does not report is marked as unknown. A machine without
// GPUs or NVML is not an error; only malformed content of sysfs is.
//
// In a virtual machine the hardware is what the hypervisor shows: PCI paths may be flat
// and NUMA nodes missing.
package topology

// Unknown is the NUMA node of a device for which the system reports none.
const Unknown = -1

// Machine is the hardware that [Discover] found. Its slices must not be modified.
type Machine struct {
	CPUs  []int  // the CPUs that are online, ascending; empty if unknown
	Nodes []Node // the NUMA nodes, by ID; empty if unknown
	GPUs  []GPU  // in NVML's order, which is the order of PCI addresses
	NICs  []NIC  // RDMA devices by name, then Ethernet devices by name

	// GPUError is the reason for which GPUs is empty or lacks some, or nil if NVML
	// reported all. It is of kind ErrUnsupported if there is no NVML or no driver,
	// and ErrSystem otherwise.
	GPUError error

	devices map[string]device // every PCI device, by bus ID
}

// Node is a NUMA node.
type Node struct {
	ID   int
	CPUs []int // ascending; empty for a node with memory only

	// Distances are the distances to Machine.Nodes, in the same order, in the units of ACPI's
	// SLIT: 10 is the node itself, 20 is twice as far. It is nil if unknown.
	Distances []int
}

// GPU is one NVIDIA GPU.
type GPU struct {
	Index    int      // NVML's, which CUDA_VISIBLE_DEVICES does not change
	UUID     [16]byte // the same as CUDA's; zero if unknown
	Model    string   // "NVIDIA H200"; empty if unknown
	PCIBusID string   // "0000:1b:00.0"; empty if unknown
	NUMANode int      // or Unknown
	CPUs     []int    // the CPUs near it, ascending; empty if unknown
	NVLinks  []Link   // the GPU's links, active or not
}

// Link is one NVLink of a GPU.
type Link struct {
	Number  int    // the number of the link on its GPU
	Active  bool   // the link is up; otherwise its peer is unknown
	Version int    // of NVLink: 3 on A100, 4 on H100; 0 if unknown
	Peer    Peer   // the kind of device at the other end
	PeerPCI string // its PCI bus ID; empty if unknown, as is common in virtual machines
}

// Peer is the kind of device at the other end of an NVLink.
type Peer uint8

// The kinds of peers.
const (
	PeerUnknown Peer = iota
	PeerGPU          // another GPU, connected directly
	PeerSwitch       // an NVSwitch
	PeerCPU          // a CPU with NVLink
)

// String returns the name of the kind.
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

// GPU returns the GPU with this UUID, which is the same as CUDA's.
func (m *Machine) GPU(uuid [16]byte) (GPU, bool) {
	for _, g := range m.GPUs {
		if g.UUID == uuid && uuid != [16]byte{} {
			return g, true
		}
	}
	return GPU{}, false
}
