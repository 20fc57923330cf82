package topology

import (
	"math"
	"slices"

	"github.com/mscclgo/mscclgo"
)

// Fabric is what joins ranks, one on each GPU of one or several machines. Bandwidths are in GB/s each way, by
// the links' specifications.
type Fabric struct {
	Ranks int // on all hosts together, as many on each
	Hosts int
	// Path is the farthest connection of two ranks of a host.
	Path Path
	// All is what a rank exchanges with all others of its host, and Next what it sends to
	// the next one, where all ranks do so at once. They are infinite on a host with one rank.
	All, Next float64
	// NIC is what a rank sends to another host alone, by all NICs that serve it, and Net what it
	// does where all ranks of its host send at once, which may share NICs and the links to them. They
	// are 0 for one host.
	NIC, Net float64
	// RDMA is set where the hosts are connected by InfiniBand or RoCE.
	RDMA bool
}

// Fabric returns what joins one rank on each GPU of so many machines like this one.
//
// Errors: ErrInvalid for hosts below 1, and for more ranks than can be counted; ErrUnsupported if the machine
// has no GPU, or for several hosts no NIC that is up.
func (m *Machine) Fabric(hosts int) (Fabric, error) {
	const op = "topology: find what joins ranks"
	n := len(m.GPUs)
	served := m.Serving()
	switch {
	case hosts < 1:
		return Fabric{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d hosts: there is at least one", hosts)
	case n == 0:
		return Fabric{}, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "the machine has no GPU")
	case hosts > math.MaxInt/n:
		return Fabric{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d machines of %d GPUs have more ranks than can be counted", hosts, n)
	case hosts > 1 && len(served) == 0:
		return Fabric{}, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%d hosts are connected by NICs, and none of the machine's %d is up", hosts, len(m.NICs))
	}
	f := Fabric{Ranks: hosts * n, Hosts: hosts}
	var all, next [][2]int
	for i, a := range m.GPUs {
		for j, b := range m.GPUs {
			if i == j {
				continue
			}
			all = append(all, [2]int{i, j})
			f.Path = max(f.Path, m.Route(a.PCIBusID, b.PCIBusID).Kind())
		}
		if n > 1 {
			next = append(next, [2]int{i, (i + 1) % n})
		}
	}
	f.All, f.Next = m.atOnce(all)*float64(max(n-1, 1)), m.atOnce(next)
	if hosts > 1 {
		alone, shared := make([]float64, n), make([]float64, n)
		for _, s := range served {
			alone[s.GPU] += s.Bandwidth
			shared[s.GPU] += s.Together
			f.RDMA = RDMA(s.NIC)
		}
		f.NIC, f.Net = slices.Min(alone), slices.Min(shared)
	}
	return f, nil
}

// atOnce returns what each of several connections of GPUs, from the first of a pair to the
// second, carries if all are used at once. It is infinite for no connections.
func (m *Machine) atOnce(pairs [][2]int) float64 {
	flows := make([][]Hop, len(pairs))
	for i, p := range pairs {
		flows[i] = m.Hops(p[0], p[1])
	}
	return slices.Min(append(Share(flows), math.Inf(1)))
}
