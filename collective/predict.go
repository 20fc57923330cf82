package collective

import (
	"math"
	"time"

	"github.com/mscclgo/mscclgo/topology"
)

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
// [Kind.Parts] counts them) on the fabric, the algorithms of [Kind.Algorithms] first. See [Fabric.Time].
func (f Fabric) Predict(k Kind, bytes uint64) (all []Prediction) {
	names := k.Algorithms()
	if k == AllReduce {
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
func (f Fabric) Time(k Kind, name string, bytes uint64) (time.Duration, bool) {
	if f.Ranks < 1 || f.Hosts < 1 || f.Hosts > f.Ranks {
		return 0, false
	}
	a, err := k.algorithm(name)
	var us float64
	switch {
	case err != nil && k == AllReduce && (name == rings || name == tree):
		us = f.unbuilt(name, float64(bytes))
	case err != nil || f.Hosts > 1 && !a.about().hosts:
		return 0, false
	case payloadOf(a) == payloadLL128 && f.Path > topology.PathNVL: // 128 bytes may arrive in parts
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

// payloadOf returns the bytes of data in a packet of an algorithm, 0 without packets.
func payloadOf(a algorithm) uint64 {
	if p, ok := a.(*packets); ok {
		return p.payload
	}
	return 0
}

// onHost returns the us of an algorithm on one host, for s bytes.
func (f Fabric) onHost(k Kind, a algorithm, s float64) float64 {
	c, n := f.costs(), float64(f.Ranks)
	if n == 1 {
		return start
	}
	payload, split := payloadOf(a), whole
	if p, ok := a.(*packets); ok {
		split = p.split
	}
	// What a rank's links carry, and from how many ranks it receives at once.
	carried, sources, bandwidth := s*(n-1)/n, n-1, c.write
	switch k {
	case AllReduce:
		carried = 2 * s * (n - 1) / n
	case Reduce:
		if payload == 0 || split == twoShards {
			carried = 2 * s * (n - 1) / n
		} else {
			carried = s * (n - 1) // to the root
		}
	case Broadcast:
		carried, sources = s*(n-1), 1 // from the root
	case SendReceive:
		carried, sources, bandwidth = s, 1, c.next
	}
	if k == AllReduce && payload != 0 && split == whole {
		carried = s * (n - 1)
	}
	trips := 1.0
	switch a.about().name {
	case "relayed", "relayedLL128":
		carried, sources, trips = s, 1, 2
	}
	if _, ok := a.(*rails); ok && k == Broadcast { // from the root, then from ranks that it has given shares
		carried = 2 * s * (n - 1) / n
	}
	if split == twoShards {
		trips = 2
	}
	latency := start + eachPeer*(sources-1)
	switch {
	case payload == payloadLL128:
		return latency + trips*c.trip + carried*128/120/bandwidth
	case payload != 0: // half of a packet is flags
		return latency + trips*c.trip + 2*carried/bandwidth
	}
	switch a.(type) {
	case *exchange:
		bandwidth = c.engine
		if k == SendReceive {
			bandwidth = c.nextEngine
		} else if n > 2 && !k.Rooted() {
			bandwidth *= sharedEngines
		}
		return start + copying + carried/bandwidth
	case *ring:
		return start + 2*(n-1)*c.port + carried/c.nextEngine
	case *staged:
		if n > 2 {
			c.engine *= sharedEngines
		}
		return start + 2*copying + carried/c.engine
	case *hier:
		if k == AllReduce {
			return latency + 2*c.signal + s*(n-1)/n/c.read + s*(n-1)/n/c.write
		}
	case *rails: // a barrier more than direct
		return latency + 3*c.signal + carried/c.write
	case *routes: // as direct, by reads from a root
		if k == Scatter {
			return latency + 2*c.signal + 2*c.trip + carried/c.read
		}
		return latency + 2*c.signal + carried/c.write
	case *pushed:
		return latency + 2*c.signal + carried/c.write
	case *slots:
		return latency + 2*c.trip + carried/c.slots
	}
	switch { // direct, the relayed broadcast, and reductions within a host, between two barriers
	case a.about().name == "relayed":
		return latency + relaying + carried/(c.write*0.85)
	case k == AllReduce || k == Reduce:
		return latency + 2*c.signal + 2*c.trip + carried/c.both
	case k == ReduceScatter:
		return latency + 2*c.signal + 2*c.trip + carried/c.read
	}
	return latency + 2*c.signal + carried/bandwidth
}

// sharedEngines is what the copy engines of a GPU keep of their bandwidth where the engines of all copy to
// several peers: a 256M all-gather of four GPUs took 954 us, and a scatter, which one GPU does, 531.
const sharedEngines = 0.55

// betweenHosts returns the us of an algorithm on several hosts.
func (f Fabric) betweenHosts(k Kind, a algorithm, s float64) float64 {
	c, n, hosts, g := f.costs(), float64(f.Ranks), float64(f.Hosts), f.perHost()
	switch a.(type) {
	case *ring: // one ring in the order of ranks, which leaves each host by one NIC
		hops := 2 * (hosts*c.net + (n-1-min(hosts, n-1))*c.port)
		return start + hops + 2*(n-1)/n*s/min(c.nextEngine, c.nic)
	case *hier:
		if k == ReduceScatter { // each rank puts a part to its twin on each other host
			return start + f.reading(s) + c.net + (hosts-1)*(posting+s/n/c.perRank)
		}
		switch a.about().name {
		case hierRing:
			return start + f.within(s) + 2*(hosts-1)*c.net + 2*(hosts-1)/hosts*s/g/c.perRank
		case hierTree:
			return start + f.within(s) + pipelined(2*f.levels()*c.net, 2*s/g/c.perRank)
		}
		// Each rank puts its shard to all other hosts, or the root's host gets it of all.
		return start + f.within(s) + c.net + (hosts-1)*(posting+s/g/c.perRank)
	case *rails: // the network and the threads of a host carry pieces side by side
		wire, passed := (hosts-1)*s/n/c.perRank, 0.0
		if k == Broadcast { // the root gives its host's ranks their shares first
			wire = (hosts - 1) * s / g / c.perRank
		}
		if g > 1 {
			passed = (g - 1) / g * s / c.write
		}
		us := start + 2*c.signal + c.net + (hosts-1)*posting + max(wire, passed) + min(wire, passed)/railPieces
		if k == Broadcast {
			us += passed
		}
		return us
	case *routes:
		return f.routed(k, s)
	}
	// By ports, each part straight to its place.
	switch k {
	case SendReceive:
		return start + c.net + s/c.nic
	case Broadcast:
		return start + c.net + (n-1)*posting + (n-g)*s/c.nic
	case Gather, Scatter: // all through the root's NIC
		return start + c.net + (n-1)*posting + max((n-g)/n*s/c.nic, (g-1)/n*s/c.engine)
	}
	return start + c.net + (n-1)*posting + max((n-g)/n*s/c.perRank, (g-1)/n*s/c.engine)
}

// routed returns the us of an algorithm by routes.cu, whose streams the network and the threads of a host
// carry piece by piece, side by side.
func (f Fabric) routed(k Kind, s float64) float64 {
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
	case Gather: // into the root's output
		twins, threads = 1, (passed+near)/c.write
	case Scatter: // from the root's input
		threads = (passed + near) / c.read
	}
	pieces := stream / float64(routeSlot(defaultScratch, uint64(f.Hosts-1)))
	wire := max((hosts-1)*stream/c.perRank, twins*pieces*posting)
	us := start + 2*c.signal + c.net + twins*posting + max(wire, threads) + min(wire, threads)/max(pieces, 1)
	if g > 1 && k != Gather {
		us += 2 * c.trip // of the first read
	}
	return us
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

// choose returns the algorithm that fits and has the least predicted time; false if
// none does. Most algorithms through the host are done with few blocks, and all between hosts only: what
// they set up for each pair of buffers is not in the model. Blocks have as many threads as the grid's, or as
// the kernel's can have. Times are compared to 10 ns, since
// processors round the last digits in different ways, and all ranks must choose the same.
func (f Fabric) choose(k Kind, bytes uint64, grid Choice, fits func(Choice) bool) (best Choice, ok bool) {
	least := time.Duration(0)
	for _, a := range k.spec().algorithms {
		name := a.about().name
		choice := Choice{name, grid.Blocks, min(grid.Threads, a.about().mostThreads())}
		if k.ByHost(name) {
			if f.Hosts == 1 {
				continue
			}
			switch a.(type) {
			case *rails, *routes: // whose blocks share their channels
			default:
				choice.Blocks = min(choice.Blocks, ringBlocks)
			}
		}
		t, possible := f.Time(k, name, bytes)
		t = t.Round(10 * time.Nanosecond)
		if possible && (!ok || t < least) && fits(choice) {
			best, least, ok = choice, t, true
		}
	}
	return best, ok
}
