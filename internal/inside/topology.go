package inside

import (
	"math"
	"slices"
)

// Machine is the inside of a *topology.Machine. G is topology.GPU, P topology.Path,
// N topology.NearNIC, and R topology.Route.
type Machine[G, P, N, R any] interface {
	// Fabric returns what joins one rank on each GPU of so many machines like this one.
	//
	// Errors: ErrInvalid for hosts below 1, and for more ranks than can be counted; ErrUnsupported if the machine
	// has no GPU, or for several hosts no NIC that is up.
	Fabric(hosts int) (Fabric[P], error)
	// Serving returns the NICs of each GPU, as NICsFor chooses them: of the NICs for RDMA, or of the Ethernet
	// devices if there are none or TCPIsFaster. A GPU's second NIC follows its first. It is empty if no NIC is up.
	Serving() []Served[N]
	// Hops returns the path from one GPU to another, by their indexes, by NVLink if that connects the two. It is
	// empty from a GPU to itself.
	Hops(from, to int) []Hop
	// ToNIC returns the path from a GPU to the network by a NIC that serves it, and FromNIC the path back.
	ToNIC(s Served[N]) []Hop
	FromNIC(s Served[N]) []Hop
	// Route is LinkBetween for bus IDs as sysfs writes them. Without such a device the path is PathUnknown.
	Route(a, b string) R
	// LinksTo returns the number of active NVLinks between two GPUs, directly or through
	// switches, as LinkBetween does. known is false if NVML does not report the other
	// end of a link of the first, as in virtual machines: there may be more links then.
	LinksTo(g, other G) (links int, known bool)
}

// Fabric is what joins ranks, one on each GPU of one or several machines. Bandwidths are in GB/s each way, by
// the links' specifications.
type Fabric[P any] struct {
	Ranks int // on all hosts together, as many on each
	Hosts int
	// Path is the farthest connection of two ranks of a host.
	Path P
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

// Served is a GPU with a NIC that serves it. Of a second NIC, Bandwidth is what it adds to
// the first.
type Served[N any] struct {
	GPU     int // as an index of topology.Machine.GPUs
	Near    N
	Sharing int // how many GPUs the NIC serves
	// Together is what the GPU sends by the NIC where all GPUs send by theirs at once, in GB/s:
	// they share NICs, and the links of switches and between sockets.
	Together float64
}

// Hop is a part of a path, in one direction, that other paths may share.
type Hop struct {
	Name      string  // of the link and the direction
	Bandwidth float64 // GB/s
}

// Share returns what each of several flows carries, in GB/s, if all flow at once. Flows divide a
// part that they share equally. If another part leaves a flow less, the others divide the rest.
// A flow without parts is infinite.
func Share(flows [][]Hop) []float64 {
	whole, left, uses := map[string]float64{}, map[string]float64{}, map[string]int{}
	widths, grows := make([]float64, len(flows)), make([]bool, len(flows))
	for i, flow := range flows {
		for _, h := range flow {
			whole[h.Name], left[h.Name] = h.Bandwidth, h.Bandwidth
			uses[h.Name]++
		}
		if grows[i] = len(flow) > 0; !grows[i] {
			widths[i] = math.Inf(1)
		}
	}
	for slices.Contains(grows, true) {
		more := math.Inf(1)
		for name, n := range uses {
			if n > 0 {
				more = min(more, left[name]/float64(n))
			}
		}
		for name, n := range uses {
			if left[name] -= more * float64(n); left[name] < 1e-9*whole[name] { // but for rounding
				left[name] = 0
			}
		}
		for i, flow := range flows {
			if !grows[i] {
				continue
			}
			widths[i] += more
			grows[i] = !slices.ContainsFunc(flow, func(h Hop) bool { return left[h.Name] == 0 })
		}
		clear(uses)
		for i, flow := range flows {
			for _, h := range flow {
				if grows[i] {
					uses[h.Name]++
				}
			}
		}
	}
	return widths
}
