// Package collective runs tuned collectives among the ranks of a communicator.
//
// A [Collective] says what goes where and which algorithms there are. A [Runner]
// is one rank's: it shares memory with the other ranks, and prepares a [Call] to
// an [Operation], which a stream then runs as often as wanted.
package collective

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo/internal/elements"
)

// Collective is one of the collectives. Data come in parts, all of one size: see
// InParts and OutParts.
type Collective struct {
	Name    string // "all-reduce"
	Reduces bool   // the elements are reduced, with an operation
	InPlace bool   // can work in place; then Call.Out holds the input too
	Rooted  bool   // one rank is the root

	file       string // of the kernels, for messages
	text       []byte // of the file
	scattered  bool   // the input has a part for each rank
	gathered   bool   // the output has a part of each rank
	bus        func(n float64) float64
	algorithms []algorithm
	// sources gives the ranks that out part `part` of a rank is made of, and which
	// of their in parts.
	sources func(rank, part, ranks, root int) (from []int, theirs int)
}

// algorithm is one way to do a collective.
type algorithm struct {
	name    string // as the user says it
	kernel  string
	payload uint64 // bytes of data in a packet, 0 without packets
	split   split
	through way
}

// split is how much of a part an inbox of packets holds.
type split int

const (
	whole      split = iota
	twoShards        // of the ranks' number
	relayShare       // of those but the root
)

// way is what moves an algorithm's data.
type way int

const (
	byKernel   way = iota // threads that reach the peers' memory
	byExchange            // port channels, each part straight to its place
	byRing                // port channels, around the ring
	byPush                // threads, through an inbox of the runner's
	byStages              // port channels, and threads that reduce
	byHosts               // threads within a host, port channels between hosts
)

// The payloads of packets; see packet.cuh.
const (
	payloadLL8   = 4
	payloadLL16  = 8
	payloadLL128 = 480
)

// packets are the algorithms with packets that all but the all-reduce share.
func packets(others ...algorithm) []algorithm {
	return append([]algorithm{
		{name: "LL8", kernel: "LL8", payload: payloadLL8},
		{name: "LL16", kernel: "LL16", payload: payloadLL16},
		{name: "LL128", kernel: "LL128", payload: payloadLL128},
		{name: "direct", kernel: "direct"},
	}, others...)
}

// ports moves the parts by the hosts' copy engines.
var ports = algorithm{name: "ports", kernel: "exchange", through: byExchange}

//go:embed kernels/allreduce.cu
var allReduceSource []byte

//go:embed kernels/allgather.cu
var allGatherSource []byte

//go:embed kernels/reducescatter.cu
var reduceScatterSource []byte

//go:embed kernels/alltoall.cu
var allToAllSource []byte

//go:embed kernels/broadcast.cu
var broadcastSource []byte

//go:embed kernels/sendrecv.cu
var sendReceiveSource []byte

// every gives all ranks' numbers.
func every(ranks int) []int {
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
	}
	return all
}

var collectives = []Collective{
	{
		Name: "all-reduce", Reduces: true, InPlace: true, file: "allreduce.cu", text: allReduceSource,
		bus: func(n float64) float64 { return 2 * (n - 1) / n },
		algorithms: []algorithm{
			{name: "oneShotLL8", kernel: "oneShotLL8", payload: payloadLL8},
			{name: "oneShotLL16", kernel: "oneShotLL16", payload: payloadLL16},
			{name: "oneShotLL128", kernel: "oneShotLL128", payload: payloadLL128},
			{name: "twoShotLL16", kernel: "twoShotLL16", payload: payloadLL16, split: twoShards},
			{name: "twoShotLL128", kernel: "twoShotLL128", payload: payloadLL128, split: twoShards},
			{name: "direct", kernel: "direct"},
			{name: "pushed", kernel: "pushed", through: byPush},
			{name: "ring", kernel: "ring", through: byRing},
			{name: "staged", kernel: "staged", through: byStages},
			{name: "hier", kernel: "hier", through: byHosts},
		},
		sources: func(_, _, ranks, _ int) ([]int, int) { return every(ranks), 0 },
	},
	{
		Name: "all-gather", InPlace: true, file: "allgather.cu", text: allGatherSource, gathered: true,
		bus:        func(n float64) float64 { return (n - 1) / n },
		algorithms: packets(ports),
		sources:    func(_, part, _, _ int) ([]int, int) { return []int{part}, 0 },
	},
	{
		Name: "reduce-scatter", Reduces: true, InPlace: true, file: "reducescatter.cu", text: reduceScatterSource, scattered: true,
		bus:        func(n float64) float64 { return (n - 1) / n },
		algorithms: packets(),
		sources:    func(rank, _, ranks, _ int) ([]int, int) { return every(ranks), rank },
	},
	{
		Name: "all-to-all", file: "alltoall.cu", text: allToAllSource, scattered: true, gathered: true,
		bus:        func(n float64) float64 { return (n - 1) / n },
		algorithms: packets(ports),
		sources:    func(rank, part, _, _ int) ([]int, int) { return []int{part}, rank },
	},
	{
		Name: "send-receive", file: "sendrecv.cu", text: sendReceiveSource,
		bus:        func(float64) float64 { return 1 },
		algorithms: packets(ports),
		sources:    func(rank, _, ranks, _ int) ([]int, int) { return []int{(rank + ranks - 1) % ranks}, 0 },
	},
	{
		Name: "broadcast", InPlace: true, Rooted: true, file: "broadcast.cu", text: broadcastSource,
		bus: func(float64) float64 { return 1 },
		algorithms: packets(
			algorithm{name: "relayedLL128", kernel: "relayedLL128", payload: payloadLL128, split: relayShare},
			algorithm{name: "relayed", kernel: "relayed"},
			ports,
		),
		sources: func(_, _, _, root int) ([]int, int) { return []int{root}, 0 },
	},
}

// All gives all collectives.
func All() []*Collective {
	all := make([]*Collective, len(collectives))
	for i := range collectives {
		all[i] = &collectives[i]
	}
	return all
}

// Find gives a collective by its name, with or without its hyphens.
func Find(name string) (*Collective, error) {
	plain := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "") }
	var names []string
	for _, c := range All() {
		if plain(c.Name) == plain(name) {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return nil, fmt.Errorf("collective %q is none of %s", name, strings.Join(names, ", "))
}

// Algorithms gives the names of the algorithms.
func (c *Collective) Algorithms() []string {
	var names []string
	for _, a := range c.algorithms {
		names = append(names, a.name)
	}
	return names
}

// algorithm finds one by name.
func (c *Collective) algorithm(name string) (algorithm, error) {
	i := slices.IndexFunc(c.algorithms, func(a algorithm) bool { return a.name == name })
	if i < 0 {
		return algorithm{}, fmt.Errorf("algorithm %q of %s is none of %s", name, c.Name, strings.Join(c.Algorithms(), ", "))
	}
	return c.algorithms[i], nil
}

// takes gives the error of a type that the collective's elements cannot have.
func (c *Collective) takes(t elements.Type) error {
	if c.Reduces && t.Size == 1 {
		return fmt.Errorf("elements of %s are moved, not reduced, so %s does not take them", t.Name, c.Name)
	}
	return nil
}

// ByHost says whether an algorithm moves data through the host, which takes
// channels for each pair of buffers.
func (c *Collective) ByHost(algorithm string) bool {
	a, err := c.algorithm(algorithm)
	return err == nil && a.through != byKernel && a.through != byPush
}

// InParts and OutParts give how many parts a rank's input and output have.
func (c *Collective) InParts(ranks int) int {
	if c.scattered {
		return ranks
	}
	return 1
}

// OutParts is explained at InParts.
func (c *Collective) OutParts(ranks int) int {
	if c.gathered {
		return ranks
	}
	return 1
}

// Parts gives how many parts the size of a collective counts, as nccl-tests
// defines it: the larger of input and output.
func (c *Collective) Parts(ranks int) int { return max(c.InParts(ranks), c.OutParts(ranks)) }

// Bus gives bus bandwidth over algorithm bandwidth, as nccl-tests defines it.
func (c *Collective) Bus(ranks int) float64 { return c.bus(float64(ranks)) }

// Sources gives what out part `part` of a rank is made of: in part `theirs` of
// those ranks, reduced if they are several.
func (c *Collective) Sources(rank, part, ranks, root int) (from []int, theirs int) {
	return c.sources(rank, part, ranks, root)
}

// InOffset and OutOffset give where a rank's input and output start in its
// buffers, in parts: 0 but in place.
func (c *Collective) InOffset(rank int, inPlace bool) int {
	if inPlace && c.gathered {
		return rank
	}
	return 0
}

// OutOffset is explained at InOffset.
func (c *Collective) OutOffset(rank int, inPlace bool) int {
	if inPlace && c.scattered {
		return rank
	}
	return 0
}
