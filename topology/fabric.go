package topology

import (
	"math"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/inside"
)

func (m machineInside) Fabric(hosts int) (fabric, error) {
	const op = "topology: find what joins ranks"
	n := len(m.GPUs)
	served := m.Serving()
	switch {
	case hosts < 1:
		return fabric{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d hosts: there is at least one", hosts)
	case n == 0:
		return fabric{}, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "the machine has no GPU")
	case hosts > math.MaxInt/n:
		return fabric{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d machines of %d GPUs have more ranks than can be counted", hosts, n)
	case hosts > 1 && len(served) == 0:
		return fabric{}, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%d hosts are connected by NICs, and none of the machine's %d is up", hosts, len(m.NICs))
	}
	f := fabric{Ranks: hosts * n, Hosts: hosts}
	var all, next [][2]int
	for i, a := range m.GPUs {
		for j, b := range m.GPUs {
			if i == j {
				continue
			}
			all = append(all, [2]int{i, j})
			f.Path = max(f.Path, m.route(a.PCIBusID, b.PCIBusID).Kind())
		}
		if n > 1 {
			next = append(next, [2]int{i, (i + 1) % n})
		}
	}
	f.All, f.Next = m.atOnce(all)*float64(max(n-1, 1)), m.atOnce(next)
	if hosts > 1 {
		alone, shared := make([]float64, n), make([]float64, n)
		for _, s := range served {
			alone[s.GPU] += s.Near.Bandwidth
			shared[s.GPU] += s.Together
			f.RDMA = RDMA(s.Near.NIC)
		}
		f.NIC, f.Net = slices.Min(alone), slices.Min(shared)
	}
	return f, nil
}

// atOnce returns what each of several connections of GPUs, from the first of a pair to the
// second, carries if all are used at once. It is infinite for no connections.
func (m machineInside) atOnce(pairs [][2]int) float64 {
	flows := make([][]hop, len(pairs))
	for i, p := range pairs {
		flows[i] = m.Hops(p[0], p[1])
	}
	return slices.Min(append(inside.Share(flows), math.Inf(1)))
}
