// Package model predicts how long collectives take, from what the links between the ranks carry. Its choices
// are the rules of collective/modelled.txt; see docs/PATHS.md.
package model

import (
	"math"
	"time"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/machine"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/topology"
)

// Fabric is what the model knows of the links between ranks.
type Fabric struct {
	inside.Fabric[topology.Path]
	Rings float64 // what the rings of [machine.Rings] carry together, in GB/s
}

// FabricOf returns the links between one rank on each of the GPUs of so many machines.
//
// Errors: as for Fabric of inside.Machine.
func FabricOf(m *topology.Machine, hosts int) (Fabric, error) {
	f, err := m.Internal().Fabric(hosts)
	if err != nil {
		return Fabric{}, err
	}
	all := Fabric{Fabric: f}
	rings, err := machine.Rings(m, hosts)
	for _, r := range rings {
		all.Rings += r.Bandwidth
	}
	return all, err
}

// Prediction is the time that the model gives a collective.
type Prediction struct {
	Algorithm string
	// Built is false for an algorithm that this package does not have, and whose time is
	// predicted for comparison.
	Built bool
	Time  time.Duration
}

// The algorithms of an all-reduce that are predicted and not built.
const (
	// rings goes around all rings of the search at once, each with its part.
	rings = "rings"
	// tree is two binary trees over the hosts, each with half of the data, and chains within
	// hosts: Sanders, Speck, Träff: "Two-tree algorithms for full bandwidth broadcast, reduction
	// and scan", 2009.
	tree = "tree"
)

// Predict returns the time of each algorithm that can do a collective of so many bytes (as
// [collective.Kind.Parts] counts them) on the fabric, the algorithms of [collective.Kind.Algorithms] first. See [Fabric.Time].
func (f Fabric) Predict(k collective.Kind, bytes uint64) (all []Prediction) {
	names := k.Algorithms()
	if k == collective.AllReduce {
		names = append(names, rings, tree)
	}
	for i, name := range names {
		if t, ok := f.Time(k, name, bytes); ok {
			all = append(all, Prediction{name, i < len(k.Algorithms()), t})
		}
	}
	return all
}

// Time returns what the model predicts for a collective of so many bytes by an algorithm: a
// latency for each step, and bytes over bandwidth for what the narrowest link carries. It
// knows neither grids nor what fits into the scratch. Over NVLink on one host it was set by
// measurements, and is within a factor of 1.5 of those; the rest is estimated. It returns false
// if the algorithm is not for these hosts or links, or there is no such.
func (f Fabric) Time(k collective.Kind, name string, bytes uint64) (time.Duration, bool) {
	if f.Ranks < 1 || f.Hosts < 1 || f.Hosts > f.Ranks {
		return 0, false
	}
	a, built := find(k, name)
	var us float64
	switch {
	case !built && k == collective.AllReduce && (name == rings || name == tree):
		us = f.unbuilt(name, float64(bytes))
	case !built || f.Hosts > 1 && !a.through.acrossHosts():
		return 0, false
	case a.lines && f.Path > topology.PathNVL: // 128 bytes may arrive in parts
		return 0, false
	case f.Hosts > 1:
		us = f.betweenHosts(k, a, float64(bytes))
	default:
		us = f.onHost(k, a, float64(bytes))
	}
	ns := us * 1000
	if !(ns < math.MaxInt64) {
		return math.MaxInt64, true
	}
	return time.Duration(ns), true
}

// least returns the algorithm that fits and has the least predicted time, and that time; false if
// none does. On one host none is taken that goes through the host: what they set up for each pair of buffers
// is not in the model.
func (f Fabric) least(k collective.Kind, bytes uint64, fits func(string) bool) (best string, least time.Duration, ok bool) {
	for _, name := range k.Algorithms() {
		if f.Hosts == 1 && k.Internal().ByHost(name) || !fits(name) {
			continue
		}
		if t, possible := f.Time(k, name, bytes); possible && (!ok || t < least) {
			best, least, ok = name, t, true
		}
	}
	return best, least, ok
}

// onHost returns the us of an algorithm on one host, for s bytes.
func (f Fabric) onHost(k collective.Kind, a algorithm, s float64) float64 {
	c, n := f.costs(), float64(f.Ranks)
	if n == 1 {
		return start
	}
	// What a rank's links carry, and from how many ranks it receives at once.
	carried, sources, bandwidth := s*(n-1)/n, n-1, c.write
	switch k {
	case collective.AllReduce:
		carried = 2 * s * (n - 1) / n
	case collective.Reduce:
		if !a.packets || a.twoShot {
			carried = 2 * s * (n - 1) / n
		} else {
			carried = s * (n - 1) // to the root
		}
	case collective.Broadcast:
		carried, sources = s*(n-1), 1 // from the root
	case collective.SendReceive:
		carried, sources, bandwidth = s, 1, c.next
	}
	if k == collective.AllReduce && a.packets && !a.twoShot {
		carried = s * (n - 1)
	}
	trips := 1.0
	switch a.name {
	case "relayed", "relayedLL128":
		carried, sources, trips = s, 1, 2
	}
	if k == collective.Broadcast && a.through == byRails { // from the root, then from ranks that it has given shares
		carried = 2 * s * (n - 1) / n
	}
	if a.twoShot {
		trips = 2
	}
	latency := start + eachPeer*(sources-1)
	switch {
	case a.lines:
		return latency + trips*c.trip + carried*128/120/bandwidth
	case a.packets: // half of a packet is flags
		return latency + trips*c.trip + 2*carried/bandwidth
	}
	switch a.through {
	case byExchange:
		bandwidth = c.engine
		if k == collective.SendReceive {
			bandwidth = c.nextEngine
		} else if n > 2 && !k.Rooted() {
			bandwidth *= sharedEngines
		}
		return start + copying + carried/bandwidth
	case byRing:
		return start + 2*(n-1)*c.port + carried/c.nextEngine
	case byStages:
		if n > 2 {
			c.engine *= sharedEngines
		}
		return start + 2*copying + carried/c.engine
	case byHosts:
		if k == collective.AllReduce {
			return latency + 2*c.signal + s*(n-1)/n/c.read + s*(n-1)/n/c.write
		}
	case byRails: // a barrier more than direct
		return latency + 3*c.signal + carried/c.write
	case byRoutes: // as direct, by reads from a root
		if k == collective.Scatter {
			return latency + 2*c.signal + 2*c.trip + carried/c.read
		}
		return latency + 2*c.signal + carried/c.write
	case byPush:
		return latency + 2*c.signal + carried/c.write
	case bySlots:
		return latency + 2*c.trip + carried/c.slots
	}
	switch { // direct, the relayed broadcast, and reductions within a host, between two barriers
	case a.name == "relayed":
		return latency + relaying + carried/(c.write*0.85)
	case k == collective.AllReduce || k == collective.Reduce:
		return latency + 2*c.signal + 2*c.trip + carried/c.both
	case k == collective.ReduceScatter:
		return latency + 2*c.signal + 2*c.trip + carried/c.read
	}
	return latency + 2*c.signal + carried/bandwidth
}

// sharedEngines is what the copy engines of a GPU keep of their bandwidth where the engines of all copy to
// several peers: a 256M all-gather of four GPUs took 954 us, and a scatter, which one GPU does, 531.
const sharedEngines = 0.55

// betweenHosts returns the us of an algorithm on several hosts.
func (f Fabric) betweenHosts(k collective.Kind, a algorithm, s float64) float64 {
	c, n, hosts, g := f.costs(), float64(f.Ranks), float64(f.Hosts), f.perHost()
	switch a.through {
	case byRing: // one ring in the order of ranks, which leaves each host by one NIC
		hops := 2 * (hosts*c.net + (n-1-min(hosts, n-1))*c.port)
		return start + hops + 2*(n-1)/n*s/min(c.nextEngine, c.nic)
	case byHosts:
		if k == collective.ReduceScatter { // each rank puts a part to its twin on each other host
			return start + f.reading(s) + c.net + (hosts-1)*(posting+s/n/c.perRank)
		}
		switch a.name {
		case "hierRing":
			return start + f.within(s) + 2*(hosts-1)*c.net + 2*(hosts-1)/hosts*s/g/c.perRank
		case "hierTree":
			return start + f.within(s) + pipelined(2*f.levels()*c.net, 2*s/g/c.perRank)
		}
		// Each rank puts its shard to all other hosts, or the root's host gets it of all.
		return start + f.within(s) + c.net + (hosts-1)*(posting+s/g/c.perRank)
	}
	if a.through == byRails { // the network and the threads of a host carry pieces side by side
		wire, passed := (hosts-1)*s/n/c.perRank, 0.0
		if k == collective.Broadcast { // the root gives its host's ranks their shares first
			wire = (hosts - 1) * s / g / c.perRank
		}
		if g > 1 {
			passed = (g - 1) / g * s / c.write
		}
		us := start + 2*c.signal + c.net + (hosts-1)*posting + max(wire, passed) + min(wire, passed)/railPieces
		if k == collective.Broadcast {
			us += passed
		}
		return us
	}
	if a.through == byRoutes {
		return f.routed(k, s)
	}
	// By ports, each part straight to its place.
	switch k {
	case collective.SendReceive:
		return start + c.net + s/c.nic
	case collective.Broadcast:
		return start + c.net + (n-1)*posting + (n-g)*s/c.nic
	case collective.Gather, collective.Scatter: // all through the root's NIC
		return start + c.net + (n-1)*posting + max((n-g)/n*s/c.nic, (g-1)/n*s/c.engine)
	}
	return start + c.net + (n-1)*posting + max((n-g)/n*s/c.perRank, (g-1)/n*s/c.engine)
}

// routed returns the us of an algorithm by routes.cu, whose streams the network and the threads of a host
// carry piece by piece, side by side.
func (f Fabric) routed(k collective.Kind, s float64) float64 {
	c, n, hosts, g := f.costs(), float64(f.Ranks), float64(f.Hosts), f.perHost()
	// What a rank, or the root, has of other hosts or for them, how much of that goes from or to other
	// ranks of its host, and what stays there.
	far := (n - g) / n * s
	passed, near := (g-1)/g*far, (g-1)/n*s
	stream, threads := far/(hosts-1), passed/c.read+near/c.write
	twins := hosts - 1 // to which a rank puts
	if k.Rooted() {    // the root's host divides what is the root's among its ranks
		stream /= g
	}
	switch k {
	case collective.Gather: // into the root's output
		twins, threads = 1, (passed+near)/c.write
	case collective.Scatter: // from the root's input
		threads = (passed + near) / c.read
	}
	pieces := stream / routeSlot(hosts-1)
	wire := max((hosts-1)*stream/c.perRank, twins*pieces*posting)
	us := start + 2*c.signal + c.net + twins*posting + max(wire, threads) + min(wire, threads)/max(pieces, 1)
	if g > 1 && k != collective.Gather {
		us += 2 * c.trip // of the first read
	}
	return us
}

// routeSlot returns the bytes of the slots by which routes.cu moves pieces, by default, for so many other hosts.
func routeSlot(others float64) float64 {
	const boxes, slots, most, line = 12 << 20, 8, 512 << 10, 128
	return max(math.Floor(min(boxes/(2*slots*others), most)/line), 1) * line
}

// railPieces is in how many pieces rails.cu moves what is large.
const railPieces = 8

// reading returns the us of a reduction within each host, whose ranks each read their share
// of the others' data.
func (f Fabric) reading(s float64) float64 {
	c, g := f.costs(), f.perHost()
	if g <= 1 {
		return 0
	}
	return 2*c.signal + 2*c.trip + eachPeer*(g-2) + (g-1)/g*s/c.read
}

// within returns the us of a reduction to shards within each host, and their gathering.
func (f Fabric) within(s float64) float64 {
	c, g := f.costs(), f.perHost()
	if g <= 1 {
		return 0
	}
	return f.reading(s) + (g-1)/g*s/c.write
}

// unbuilt returns the us of an algorithm of an all-reduce that this package does not have.
func (f Fabric) unbuilt(name string, s float64) float64 {
	c, n, hosts, g := f.costs(), float64(f.Ranks), float64(f.Hosts), f.perHost()
	if n == 1 {
		return start
	}
	if name == rings {
		steps := n - 1
		between := 0.0
		if hosts > 1 {
			between = min(hosts, steps)
		}
		return start + 2*(between*c.net+(steps-between)*c.trip) + 2*steps/n*s/c.rings
	}
	bandwidth := c.rings
	if hosts > 1 {
		bandwidth = min(g*c.perRank, c.write)
	}
	return start + pipelined(2*(f.levels()*c.net+(g-1)*c.trip), 2*s/bandwidth)
}

// levels returns the steps from the root of a binary tree of the hosts to its leaves.
func (f Fabric) levels() float64 { return math.Ceil(math.Log2(float64(f.Hosts))) }

// pipelined returns the time of data that go through steps in pieces of the best size: of
// steps that take a latency together, and of a transfer alone. With p pieces it is latency +
// transfer + p times a step's latency + a piece's transfer for each step, which is least for the p
// that makes the last two equal.
func pipelined(latency, transfer float64) float64 {
	return latency + transfer + 2*math.Sqrt(latency*transfer)
}
