package model

import (
	"github.com/mscclgo/mscclgo/topology"
)

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
// takes is an estimate that nothing here was measured against, and so is what a network takes.
func (f Fabric) costs() costs {
	net, share := 30.0, 0.7 // by TCP, as [topology.TCPIsFaster] has them
	if f.RDMA {
		net, share = 6, 0.92
	}
	c := costs{trip: 0.67, signal: 1.4, port: 3.4, net: net}
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
	c.nic, c.perRank = f.NIC*share*scale, f.Net*share*scale
	c.rings = f.Rings * write * scale
	if f.Hosts > 1 {
		c.rings = f.Rings * share * scale
	}
	return c
}
