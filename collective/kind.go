package collective

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/topology"
)

// Kind is one of the collectives. Data come in parts, all of one size: see
// [Kind.InParts] and [Kind.OutParts]. Calls of another Kind than the constants are
// errors, and what its methods return means nothing.
type Kind uint8

// The collectives.
const (
	// AllReduce reduces the inputs of all ranks into the output of every rank.
	AllReduce Kind = iota
	// AllGather concatenates the inputs of all ranks into the output of every rank.
	AllGather
	// ReduceScatter reduces the inputs of all ranks and leaves part r of the result in
	// the output of rank r.
	ReduceScatter
	// AllToAll makes part p of rank r's input part r of rank p's output.
	AllToAll
	// SendReceive sends each rank's input to the rank after it, the last one's to
	// rank 0.
	SendReceive
	// Broadcast copies the root's input into the output of every rank.
	Broadcast
	// Reduce reduces the inputs of all ranks into the root's output. The outputs of the
	// other ranks are not written.
	Reduce
	// Gather concatenates the inputs of all ranks into the root's output. The outputs of
	// the other ranks are not written.
	Gather
	// Scatter copies part r of the root's input into the output of rank r. The inputs of
	// the other ranks are not read.
	Scatter
)

// spec is what there is to know about a kind.
type spec struct {
	name       string  // "all-reduce"
	reduces    bool    // the elements are reduced, with an operation
	inPlace    bool    // the output may hold the input
	rooted     bool    // one rank is the root
	scattered  bool    // the input has a part for each rank
	gathered   bool    // the output has a part of each rank
	unit       unit    // of the kernels
	bus        float64 // see [Kind.Bus]: times (n-1)/n of n ranks, or 0 for 1
	algorithms []algorithm
}

// specs are the kinds. Nothing writes to it.
var specs = [...]spec{
	AllReduce: {
		name: "all-reduce", reduces: true, inPlace: true, unit: file("allreduce.cu"), bus: 2,
		algorithms: []algorithm{
			packet("oneShotLL8", payloadLL8, whole), packet("oneShotLL16", payloadLL16, whole), packet("oneShotLL128", payloadLL128, whole),
			packet("twoShotLL16", payloadLL16, twoShards), packet("twoShotLL128", payloadLL128, twoShards),
			straightSums, push("pushed"), aroundRing, stagedSums,
			betweenHosts("hier", "hier"), betweenHosts(hierRing, hierRing), betweenHosts(hierTree, hierTree),
		},
	},
	AllGather: {
		name: "all-gather", inPlace: true, gathered: true, unit: moves("AllGather"), bus: 1,
		algorithms: withPackets(straight, bulkCopies, ports, byRails("railGather")),
	},
	ReduceScatter: {
		name: "reduce-scatter", reduces: true, inPlace: true, scattered: true,
		unit: file("reducescatter.cu"), bus: 1,
		algorithms: withPackets(straight, push("pushedScatter"), betweenHosts("hier", "hierScatter")),
	},
	AllToAll: {
		name: "all-to-all", scattered: true, gathered: true, unit: moves("AllToAll"), bus: 1,
		algorithms: withPackets(straight, bulkCopies, ports, byRoutes("routedAllToAll")),
	},
	SendReceive: {
		name: "send-receive", unit: moves("SendReceive"),
		algorithms: withPackets(straight, bulkCopies, ports),
	},
	Broadcast: {
		name: "broadcast", inPlace: true, rooted: true, unit: moves("Broadcast"),
		algorithms: withPackets(
			straight, relayedPackets, relayed,
			bulkCopies, ports, byRails("railBroadcast"),
		),
	},
	Reduce: {
		name: "reduce", reduces: true, inPlace: true, rooted: true, unit: file("reduce.cu"),
		algorithms: withPackets(
			straight, packet("twoShotLL128", payloadLL128, twoShards), push("pushedReduce"), betweenHosts("hier", "hierReduce"),
		),
	},
	Gather: {
		name: "gather", rooted: true, gathered: true, unit: moves("Gather"), bus: 1,
		algorithms: withPackets(throughSlots, ports, byRoutes("routedGather")),
	},
	Scatter: {
		name: "scatter", rooted: true, scattered: true, unit: moves("Scatter"), bus: 1,
		algorithms: withPackets(throughSlots, ports, byRoutes("routedScatter")),
	},
}

// Kinds returns all collectives.
func Kinds() []Kind { return valuesBelow[Kind](len(specs)) }

// valuesBelow returns the values from 0 to n-1.
func valuesBelow[T ~int | ~uint8](n int) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = T(i)
	}
	return all
}

// ParseKind returns the collective of a name, with or without its hyphens, such as
// "all-reduce" or "AllReduce".
func ParseKind(name string) (Kind, error) {
	plain := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "") }
	return parse("collective", name, Kinds(), func(kind string) bool { return plain(kind) == plain(name) })
}

// parse returns the value with such a name, or the error of a name that is none of theirs.
func parse[T fmt.Stringer](what, name string, values []T, is func(string) bool) (none T, _ error) {
	var names []string
	for _, v := range values {
		if is(v.String()) {
			return v, nil
		}
		names = append(names, v.String())
	}
	return none, mscclgo.Errorf(mscclgo.ErrInvalid, "collective: parse", "%s %q is none of %s", what, name, strings.Join(names, ", "))
}

// valid reports whether k is one of the constants.
func (k Kind) valid() bool { return int(k) < len(specs) }

// unknownSpec is the spec of a kind that is not valid.
var unknownSpec spec

// spec returns what there is to know about a kind.
func (k Kind) spec() *spec {
	if !k.valid() {
		return &unknownSpec
	}
	return &specs[k]
}

// String returns the name, such as "all-reduce".
func (k Kind) String() string {
	if !k.valid() {
		return fmt.Sprintf("collective %d", uint8(k))
	}
	return k.spec().name
}

// Internal is for packages of this module.
func (k Kind) Internal() inside.Kind[topology.Path] { return kindInside{k} }

type kindInside struct{ Kind }

// Reduces reports whether elements are reduced, with an operation.
func (k Kind) Reduces() bool { return k.spec().reduces }

func (k kindInside) InPlace() bool { return k.spec().inPlace }

// Rooted reports whether one rank is the root.
func (k Kind) Rooted() bool { return k.spec().rooted }

// toRoot reports whether the root alone has the output.
func (k Kind) toRoot() bool { return k.Rooted() && (k.Reduces() || k.spec().gathered) }

// Algorithms returns the names of the algorithms.
func (k Kind) Algorithms() []string {
	var names []string
	for _, a := range k.spec().algorithms {
		names = append(names, a.about().name)
	}
	return names
}

// algorithm returns the algorithm of a name.
func (k Kind) algorithm(name string) (algorithm, error) {
	all := k.spec().algorithms
	i := slices.IndexFunc(all, func(a algorithm) bool { return a.about().name == name })
	if i < 0 {
		return nil, fmt.Errorf("algorithm %q of %v is none of %s", name, k, strings.Join(k.Algorithms(), ", "))
	}
	return all[i], nil
}

func (k kindInside) ByHost(algorithm string) bool {
	a, err := k.algorithm(algorithm)
	_, here := a.(mapped)
	return err == nil && !here
}

// InParts returns the number of parts of a rank's input.
func (k Kind) InParts(ranks int) int {
	if k.spec().scattered {
		return ranks
	}
	return 1
}

// OutParts returns the number of parts of a rank's output.
func (k Kind) OutParts(ranks int) int {
	if k.spec().gathered {
		return ranks
	}
	return 1
}

// Parts returns the number of parts that the size of a collective counts, as
// nccl-tests defines it: the larger of input and output.
func (k Kind) Parts(ranks int) int { return max(k.InParts(ranks), k.OutParts(ranks)) }

// Bus returns bus bandwidth over algorithm bandwidth, as nccl-tests defines it.
func (k Kind) Bus(ranks int) float64 {
	switch bus, n := k.spec().bus, float64(ranks); {
	case bus != 0:
		return bus * (n - 1) / n
	case k.valid():
		return 1
	}
	return 0
}

func (k kindInside) Sources(rank, part, ranks, root int) (from []int, theirs int) {
	if k.spec().scattered {
		theirs = rank
	}
	switch {
	case !k.valid() || k.toRoot() && rank != root:
		return nil, theirs
	case k.Reduces():
		return valuesBelow[int](ranks), theirs
	case k.spec().gathered:
		return []int{part}, theirs
	case k.Rooted():
		return []int{root}, theirs
	}
	return []int{(rank + ranks - 1) % ranks}, theirs // of SendReceive
}

func (k kindInside) InOffset(rank int, inPlace bool) int {
	if inPlace && k.spec().gathered {
		return rank
	}
	return 0
}

func (k kindInside) OutOffset(rank int, inPlace bool) int {
	if inPlace && k.spec().scattered {
		return rank
	}
	return 0
}
