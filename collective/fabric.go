package collective

import (
	"math"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/topology"
)

// Fabric is what the model of time knows of the links between ranks; see [Fabric.Time].
// Bandwidths are in GB/s each way, by the links' specifications.
type Fabric struct {
	Ranks int // on all hosts together, as many on each
	Hosts int
	// Path is the farthest connection of two ranks of a host.
	Path topology.Path
	// All is what a rank exchanges with all others of its host, and Next what it sends to
	// the next one, where all ranks do so at once. They are infinite on a host with one rank.
	All, Next float64
	// Rings is what the rings of [topology.Machine.Rings] carry together.
	Rings float64
	// NIC is what a rank sends to another host alone, by all NICs that serve it, and Net what it
	// does where all ranks of its host send at once, which may share NICs and the links to them. They
	// are 0 for one host.
	NIC, Net float64
	// RDMA is set where the hosts are connected by InfiniBand or RoCE.
	RDMA bool
}

// FabricOf returns the links between one rank on each of the GPUs of so many machines.
//
// Errors: ErrInvalid for a machine that is nil, and for more ranks than can be counted; the errors of
// [topology.Machine.Rings].
func FabricOf(m *topology.Machine, hosts int) (Fabric, error) {
	const op = "collective: links between machines"
	switch {
	case m == nil:
		return Fabric{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the machine is nil")
	case len(m.GPUs) > 0 && hosts > math.MaxInt/len(m.GPUs):
		return Fabric{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d machines of %d GPUs have more ranks than can be counted", hosts, len(m.GPUs))
	}
	f := Fabric{Ranks: hosts * len(m.GPUs), Hosts: hosts}
	rings, err := m.Rings(hosts)
	if err != nil {
		return Fabric{}, err
	}
	for _, r := range rings {
		f.Rings += r.Bandwidth
	}
	n := len(m.GPUs)
	var all, next [][2]int
	for i, a := range m.GPUs {
		for j, b := range m.GPUs {
			if i == j {
				continue
			}
			all = append(all, [2]int{i, j})
			path := topology.PathUnknown
			if r, err := m.LinkBetween(a.PCIBusID, b.PCIBusID); err == nil {
				path = r.Kind()
			}
			f.Path = max(f.Path, path)
		}
		if n > 1 {
			next = append(next, [2]int{i, (i + 1) % n})
		}
	}
	f.All, f.Next = m.Together(all)*float64(max(n-1, 1)), m.Together(next)
	if hosts > 1 {
		alone, shared := make([]float64, n), make([]float64, n)
		for _, s := range m.Serving() {
			alone[s.GPU] += s.Bandwidth
			shared[s.GPU] += s.Together
			f.RDMA = topology.RDMA(s.NIC)
		}
		f.NIC, f.Net = slices.Min(alone), slices.Min(shared)
	}
	return f, nil
}

// perHost returns the ranks of a host.
func (f Fabric) perHost() float64 { return float64(f.Ranks) / float64(f.Hosts) }

// costs are what the steps of a collective cost on a fabric: latencies in us, bandwidths in
// bytes per us.
type costs struct {
	trip   float64 // from a store of a packet to the peer's load
	signal float64 // from a signal that orders all memory to the end of the peer's wait
	port   float64 // from a trigger to the signal that follows a small put by copy engine
	net    float64 // the same between hosts

	write, read, both, engine float64 // a rank, to and from all others of its host
	next, nextEngine          float64 // to the next rank
	slots                     float64
	nic, perRank              float64 // between hosts: one rank alone, and each of all
	rings                     float64
}

// What calls cost besides their steps, in us. Measured over NVLink, on H200s.
const (
	start    = 1.5  // a launch in a graph, and the kernel's first and last instructions
	eachPeer = 0.25 // for each rank beyond the first that a rank receives from
	copying  = 9.0  // until a copy engine runs
	relaying = 10.0 // until the relays of a broadcast have their first chunk
	posting  = 1.0  // by a proxy, for each put
)

// costs returns the costs of the fabric. What NVLink takes was measured on H200s
// (docs/MEASUREMENTS.md): a packet 1.33 us there and back, a signal 2.77, a port's put and signal
// of 1 KiB 6.85, Ethernet's 41 over the loopback interface. There links of 450 GB/s carry writes
// at 366, reads at 336, half of each at 341, copies by engines at 387 and slots at 327. What PCIe
// takes is an estimate that nothing here was measured against, as is what [topology.Network] says.
func (f Fabric) costs() costs {
	network := topology.Network{RDMA: f.RDMA}
	c := costs{trip: 0.67, signal: 1.4, port: 3.4, net: network.Latency()}
	write, read, both, engine, slots := 366.0/450, 336.0/450, 341.0/450, 387.0/450, 327.0/450
	if f.Path > topology.PathNVL {
		write, read, both, engine, slots = 0.85, 0.70, 0.75, 0.90, 0.75
		switch {
		case f.Path <= topology.PathPXB:
			c.trip = 0.9
		case f.Path <= topology.PathNODE:
			c.trip = 1.1
		default:
			c.trip = 1.5
		}
		c.signal, c.port = c.trip+0.75, c.trip+3
	}
	const scale = 1000 // bytes per us of a GB/s
	c.write, c.read, c.both = f.All*write*scale, f.All*read*scale, f.All*both*scale
	c.engine, c.slots = f.All*engine*scale, f.All*slots*scale
	c.next, c.nextEngine = f.Next*write*scale, f.Next*engine*scale
	c.nic, c.perRank = f.NIC*network.Share()*scale, f.Net*network.Share()*scale
	c.rings = f.Rings * write * scale
	if f.Hosts > 1 {
		c.rings = f.Rings * network.Share() * scale
	}
	return c
}

// fabricBytes is enough for a fabric that is encoded.
const fabricBytes = 128

// encode writes a fabric, or that there is none, for the other ranks.
func (f *Fabric) encode(w *wire.Writer) {
	w.Bool(f != nil)
	if f == nil {
		return
	}
	w.U8(uint8(f.Path))
	w.Bool(f.RDMA)
	for _, v := range f.bandwidths() {
		w.U64(math.Float64bits(*v))
	}
}

// decodeFabric reads what encode wrote. Ranks and Hosts are 0.
func decodeFabric(r *wire.Reader) *Fabric {
	if !r.Bool() {
		return nil
	}
	f := &Fabric{Path: topology.Path(r.U8()), RDMA: r.Bool()}
	for _, v := range f.bandwidths() {
		*v = math.Float64frombits(r.U64())
	}
	return f
}

// bandwidths returns all bandwidths.
func (f *Fabric) bandwidths() []*float64 {
	return []*float64{&f.All, &f.Next, &f.Rings, &f.NIC, &f.Net}
}

// narrower returns a fabric that is as f in the numbers of ranks, and has the farther paths and
// the narrower links of both; nil if either is.
func (f *Fabric) narrower(other *Fabric) *Fabric {
	if f == nil || other == nil {
		return nil
	}
	both := *f
	both.Path, both.RDMA = max(f.Path, other.Path), f.RDMA && other.RDMA
	theirs := other.bandwidths()
	for i, v := range both.bandwidths() {
		*v = min(*v, *theirs[i])
	}
	return &both
}
