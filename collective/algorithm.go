package collective

// algorithm is one way to do a collective.
type algorithm struct {
	name    string // as the user writes it
	kernel  string
	payload uint64 // bytes of data in a packet, 0 without packets
	split   split
	through path
}

// acrossHosts reports whether the ranks may be on several hosts.
func (a algorithm) acrossHosts() bool {
	switch a.through {
	case byExchange, byRing, byHosts, byRails, byRoutes:
		return true
	}
	return false
}

// split is how much of a part an inbox of packets holds.
type split int

const (
	whole      split = iota
	twoShards        // of the ranks' number
	relayShare       // of those but the root
)

// path is what moves an algorithm's data.
type path int

const (
	byKernel   path = iota // threads that reach the peers' memory
	byExchange             // port channels, each part straight to its place
	byRing                 // port channels, around the ring
	byPush                 // threads, through an inbox of the runner's
	byStages               // port channels, and threads that reduce
	byHosts                // threads within a host, port channels between hosts
	byRails                // the same, of what is not reduced, and all ranks or hosts get
	byRoutes               // the same, of what is for one rank
	bySlots                // threads, through slots of the runner's
	byBulk                 // multiprocessors' copy engines, each part straight to its place
	byGroups               // groups of sends and receives
)

// between reports whether the path is for groups on several hosts.
func (p path) between() bool { return p == byHosts || p == byRails || p == byRoutes }

// The payloads of packets; see packet.cuh.
const (
	payloadLL8   = 4
	payloadLL16  = 8
	payloadLL128 = 480
)

// packets returns the algorithms with packets that all collectives but the
// all-reduce share, and others.
func packets(others ...algorithm) []algorithm {
	return append([]algorithm{
		{name: "LL8", kernel: "LL8", payload: payloadLL8},
		{name: "LL16", kernel: "LL16", payload: payloadLL16},
		{name: "LL128", kernel: "LL128", payload: payloadLL128},
	}, others...)
}

// direct moves or reduces the parts between two barriers, each straight to its place.
var direct = algorithm{name: "direct", kernel: "direct"}

// onDevice reports whether kernels alone move the data, by memory that all ranks reach.
func (a algorithm) onDevice() bool {
	return a.through == byKernel || a.through == byPush || a.through == bySlots || a.through == byBulk
}

// leastBlocks returns the fewest blocks that the algorithm's kernel may have: some of a kernel have
// another task than the others.
func (a algorithm) leastBlocks() int {
	switch a.through {
	case byPush, byStages, byExchange, byRails, byRoutes:
		return 2
	}
	return 1
}

// boundedThreads is how many threads a block has at most of kernels that need many registers each, as they are
// compiled.
const boundedThreads = 512

// mostThreads returns the most threads that a block of the algorithm's kernel can have.
func (a algorithm) mostThreads() int {
	switch a.through {
	case byPush, byStages, byRing, byHosts, byRails, byRoutes:
		return boundedThreads
	}
	return 1024
}

// slots moves parts by packets or through the receivers' slots; see alltoallv.go.
var slots = algorithm{name: "slots", through: bySlots}

// bulk moves the parts by the multiprocessors' copy engines; see bulk.go.
var bulk = algorithm{name: "bulk", kernel: "bulk", through: byBulk}

// ports moves the parts by the hosts' copy engines.
var ports = algorithm{name: "ports", kernel: "exchange", through: byExchange}

// pushed reduces what peers have written into an inbox of the runner's; see pushed.go.
func pushed(kernel string) algorithm {
	return algorithm{name: "pushed", kernel: kernel, through: byPush}
}

// hosts reduces within hosts by threads, and between them by the hosts' ports, all at once.
func hosts(kernel string) algorithm {
	return algorithm{name: "hier", kernel: kernel, through: byHosts}
}

// rails moves parts by threads within hosts, and between them by the hosts' ports, each once.
func rails(kernel string) algorithm {
	return algorithm{name: "hier", kernel: kernel, through: byRails}
}

// routes moves each part by the rail of its sender or receiver, and threads of their hosts.
func routes(kernel string) algorithm {
	return algorithm{name: "hier", kernel: kernel, through: byRoutes}
}

// hierRing and hierTree go between hosts in a ring and in trees.
var (
	hierRing = algorithm{name: "hierRing", kernel: "hierRing", through: byHosts}
	hierTree = algorithm{name: "hierTree", kernel: "hierTree", through: byHosts}
)

// inboxPackets returns how many packets a call puts into an inbox.
func (a algorithm) inboxPackets(part, ranks uint64) uint64 {
	n := divideUp(part, a.payload)
	switch a.split {
	case twoShards:
		return 2 * divideUp(n, ranks)
	case relayShare:
		return divideUp(n, max(ranks-1, 1))
	}
	return n
}

// divideUp returns a / b, rounded up, for any a.
func divideUp(a, b uint64) uint64 {
	if a%b != 0 {
		return a/b + 1
	}
	return a / b
}
