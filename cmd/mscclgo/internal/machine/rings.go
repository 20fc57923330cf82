// Package machine shows a machine: tables and a picture for people, and rings around its GPUs.
package machine

import (
	"cmp"
	"math"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/topology"
)

// Ring is an order in which data go around the GPUs of a machine, each to the next, or around
// the GPUs of several machines that are like it.
type Ring struct {
	// GPUs are indexes of topology.Machine.GPUs, in the order of the ring. On every second of several
	// hosts it is the opposite order.
	GPUs []int
	// In and Out are the NICs by which the ring enters a host, at its first GPU, and leaves it,
	// from its last. On every second host they are exchanged, so that data that leave a host by
	// a NIC enter the next one by the NIC of the same name, on one rail of the network. (If the
	// number of hosts is odd, and In is not Out, data from the last host to the first change
	// rails.) Both are empty on one host.
	In, Out string
	// Path is the farthest connection between two GPUs that follow each other; PathSelf if
	// there is one GPU.
	Path topology.Path
	// Bandwidth is what the ring carries if all rings are used at once, in GB/s.
	Bandwidth float64
}

// Bounds of the search for rings.
const (
	maxRings  = 16
	exactGPUs = 8       // up to so many, all orders are compared
	budget    = 20000   // steps of the search where there are more
	leastPart = 1.0 / 8 // of the first ring's bandwidth
)

// Rings returns rings around the machine's GPUs and, for more than one host, around the GPUs of
// so many machines that are like it. The first ring is that whose narrowest connection is the
// widest; each other one has what the rings before leave, as long as its connections are no farther
// and it has at least an eighth of the first one's bandwidth. For up to eight GPUs all
// orders are compared, for more the orders that look best. The same machine has the same rings
// whenever they are asked for. There is none around one GPU of one host.
//
// Several hosts have a ring for each NIC that serves a GPU (see [topology.Machine.NICsFor]), which
// enters the host there.
//
// Errors: ErrInvalid for hosts below 1; ErrUnsupported if the machine has no GPU, or for
// several hosts no NIC that is up.
func Rings(m *topology.Machine, hosts int) ([]Ring, error) {
	const op = "topology: find rings"
	switch {
	case hosts < 1:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d hosts: there is at least one", hosts)
	case len(m.GPUs) == 0:
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "the machine has no GPU")
	}
	rings := newSearch(m).rings()
	if hosts == 1 {
		return rings, nil
	}
	served := m.Internal().Serving()
	if len(served) == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%d hosts are connected by NICs, and none of the machine's %d is up", hosts, len(m.NICs))
	}
	return acrossHosts(m, rings, served), nil
}

// search looks for rings around the GPUs of a machine.
type search struct {
	edges [][]edge  // from GPU to GPU
	left  []float64 // GB/s of each hop that no ring has taken
	uses  []int     // of each hop by the ring under way

	steps     int           // that may still be made; negative for any number
	enough    float64       // the bandwidth that no ring can exceed
	most      topology.Path // connections of the ring are no farther
	best      []int
	bestWidth float64
	under     []int // the ring under way
	visited   []bool
}

// edge is the connection of two GPUs.
type edge struct {
	hops []int // indexes of search.left
	path topology.Path
}

func newSearch(m *topology.Machine) *search {
	n := len(m.GPUs)
	s := &search{edges: make([][]edge, n), most: topology.PathUnknown}
	index := map[string]int{}
	for i, a := range m.GPUs {
		s.edges[i] = make([]edge, n)
		for j, b := range m.GPUs {
			if i == j {
				continue
			}
			e := edge{path: m.Internal().Route(a.PCIBusID, b.PCIBusID).Kind()}
			for _, h := range m.Internal().Hops(i, j) {
				at, known := index[h.Name]
				if !known {
					at = len(s.left)
					index[h.Name] = at
					s.left = append(s.left, h.Bandwidth)
				}
				e.hops = append(e.hops, at)
			}
			s.edges[i][j] = e
		}
	}
	s.uses = make([]int, len(s.left))
	return s
}

// rings finds one ring after the other.
func (s *search) rings() (rings []Ring) {
	n := len(s.edges)
	if n == 1 {
		return nil
	}
	for len(rings) < maxRings {
		order, width := s.widest()
		if width <= 0 || len(rings) > 0 && width < leastPart*rings[0].Bandwidth {
			break
		}
		ring := Ring{GPUs: order, Bandwidth: width}
		for i, from := range order {
			e := s.edges[from][order[(i+1)%n]]
			ring.Path = max(ring.Path, e.path)
			for _, h := range e.hops {
				s.left[h] = max(0, s.left[h]-width)
			}
		}
		s.most = ring.Path
		rings = append(rings, ring)
	}
	return rings
}

// widest returns the order with the most bandwidth, and that bandwidth: of several the first
// in the order of numbers, if all are compared.
func (s *search) widest() ([]int, float64) {
	n := len(s.edges)
	s.best, s.bestWidth, s.steps = nil, 0, -1
	if n > exactGPUs {
		s.steps = budget
	}
	// No ring has more than the best connection of any of its GPUs.
	s.enough = math.Inf(1)
	for from := range n {
		most := 0.0
		for to := range n {
			if e := s.edges[from][to]; to != from && e.path <= s.most {
				most = max(most, s.widthOf(e))
			}
		}
		s.enough = min(s.enough, most)
	}
	s.under, s.visited = []int{0}, make([]bool, n)
	s.visited[0] = true
	s.extend(math.Inf(1))
	return s.best, s.bestWidth
}

// widthOf returns what a ring has if it uses a connection besides those it uses already.
func (s *search) widthOf(e edge) float64 {
	width := math.Inf(1)
	for _, h := range e.hops {
		width = min(width, s.left[h]/float64(s.uses[h]+1))
	}
	return width
}

// better reports whether a width is above another by more than the rounding of numbers.
func better(width, than float64) bool { return width > than*(1+1e-9) }

// extend tries all ways to complete the ring under way, which has a width so far.
func (s *search) extend(width float64) {
	n, last := len(s.edges), s.under[len(s.under)-1]
	if len(s.under) == n {
		if e := s.edges[last][0]; e.path <= s.most {
			if width = min(width, s.widthOf(e)); better(width, s.bestWidth) {
				s.best, s.bestWidth = slices.Clone(s.under), width
			}
		}
		return
	}
	type candidate struct {
		to    int
		width float64
	}
	var candidates []candidate // for the next GPU
	for to := range n {
		if e := s.edges[last][to]; !s.visited[to] && e.path <= s.most {
			candidates = append(candidates, candidate{to, min(width, s.widthOf(e))})
		}
	}
	if n > exactGPUs {
		slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(b.width, a.width) })
	}
	for _, next := range candidates {
		if s.steps == 0 || s.best != nil && !better(s.enough, s.bestWidth) {
			return
		}
		if !better(next.width, s.bestWidth) {
			continue
		}
		s.steps--
		s.use(s.edges[last][next.to], 1)
		s.under, s.visited[next.to] = append(s.under, next.to), true
		s.extend(next.width)
		s.under, s.visited[next.to] = s.under[:len(s.under)-1], false
		s.use(s.edges[last][next.to], -1)
	}
}

func (s *search) use(e edge, n int) {
	for _, h := range e.hops {
		s.uses[h] += n
	}
}

// servedGPU is a GPU with a NIC that serves it.
type servedGPU = inside.Served[topology.NearNIC]

// acrossHosts returns rings around several hosts, each a ring around the GPUs of one that is
// open where it enters and leaves the host.
func acrossHosts(m *topology.Machine, within []Ring, served []servedGPU) (rings []Ring) {
	if len(within) == 0 { // one GPU
		within = []Ring{{GPUs: []int{0}}}
	}
	var nics []string
	of := map[int][]servedGPU{} // the NICs of each GPU
	for _, s := range served {
		if !slices.Contains(nics, s.Near.Name) {
			nics = append(nics, s.Near.Name)
		}
		of[s.GPU] = append(of[s.GPU], s)
	}
	by := func(gpu int, nic string) (servedGPU, bool) {
		i := slices.IndexFunc(of[gpu], func(s servedGPU) bool { return s.Near.Name == nic })
		if i < 0 {
			return servedGPU{}, false
		}
		return of[gpu][i], true
	}
	leaves := map[string]int{}
	for i, nic := range nics {
		cycle := within[i%len(within)].GPUs
		n := len(cycle)
		best, exit := -1, ""
		for at, gpu := range cycle {
			if _, enters := by(gpu, nic); !enters {
				continue
			}
			for _, last := range of[cycle[(at+n-1)%n]] {
				if best < 0 || prefers(last.Near.Name == nic, exit == nic, leaves[last.Near.Name], leaves[exit]) {
					best, exit = at, last.Near.Name
				}
			}
		}
		ring := within[i%len(within)]
		ring.GPUs = append(slices.Clone(cycle[best:]), cycle[:best]...)
		ring.In, ring.Out = nic, exit
		leaves[exit]++
		rings = append(rings, ring)
	}
	flows := make([][]inside.Hop, len(rings))
	for i, r := range rings {
		first, _ := by(r.GPUs[0], r.In)
		last, _ := by(r.GPUs[len(r.GPUs)-1], r.Out)
		flows[i] = m.Internal().FromNIC(first)
		for at, gpu := range r.GPUs[1:] {
			flows[i] = append(flows[i], m.Internal().Hops(r.GPUs[at], gpu)...)
		}
		flows[i] = append(flows[i], m.Internal().ToNIC(last)...)
	}
	for i, width := range inside.Share(flows) {
		rings[i].Bandwidth = width
	}
	return rings
}

// prefers reports whether a place to leave a host is better than another: by the NIC by which
// the ring enters, else by the one by which fewer rings leave.
func prefers(same, otherSame bool, leaves, otherLeaves int) bool {
	if same != otherSame {
		return same
	}
	return leaves < otherLeaves
}
