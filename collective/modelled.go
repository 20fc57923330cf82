package collective

import (
	_ "embed"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mscclgo/mscclgo/topology"
)

// modelledText has the choices of the model of time, which a test of cmd/mscclgo/internal/model writes.
//
//go:embed modelled.txt
var modelledText string

// modelledRule is a line of modelledText, whose head says what the columns are.
type modelledRule struct {
	link   string
	kind   Kind
	ranges [4]within // of hosts, ranks of a host, inside and shared
	names  []string
	below  []float64 // us, of each name
}

// within is a range of numbers, from the first to below the second, which may be infinite.
type within [2]float64

func (w within) has(v float64) bool { return w[0] <= v && (v < w[1] || math.IsInf(w[1], 1)) }

// modelledRules returns the rules of modelledText, a part of the program that tests read.
var modelledRules = sync.OnceValue(func() (rules []modelledRule) {
	for text := range strings.Lines(modelledText) {
		f := strings.Fields(text)
		if f[0] == "#" {
			continue
		}
		r := modelledRule{link: f[0]}
		r.kind, _ = ParseKind(f[1])
		for i := range r.ranges {
			from, below, _ := strings.Cut(f[2+i], ":")
			r.ranges[i] = within{bound(from, 0), bound(below, math.Inf(1))}
		}
		for _, one := range f[6:] {
			name, below, _ := strings.Cut(one, "<")
			r.names, r.below = append(r.names, name), append(r.below, bound(below, math.Inf(1)))
		}
		rules = append(rules, r)
	}
	return rules
})

// bound returns a bound of a range, or of none.
func bound(text string, none float64) float64 {
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		return v
	}
	return none
}

// linkRules are the rules for ranks that a fabric joins.
type linkRules struct {
	fabric fabric
	rules  []modelledRule // at most one of each kind
}

// rulesFor returns the rules for a fabric, or nil for one that is nil or has no ranks.
func rulesFor(f *fabric) *linkRules {
	if f == nil || f.Ranks < 1 || f.Hosts < 1 {
		return nil
	}
	link, numbers := "pcie", [4]float64{1, float64(f.Ranks), 1, 1}
	switch {
	case f.Hosts > 1:
		link = "tcp"
		if f.RDMA {
			link = "rdma"
		}
		numbers = [4]float64{float64(f.Hosts), float64(f.Ranks) / float64(f.Hosts), f.All / f.Net, f.NIC / f.Net}
	case f.Path <= topology.PathNVL:
		link = "nvlink"
	}
	l := &linkRules{fabric: *f}
	for _, r := range modelledRules() {
		matches := r.link == link
		for i, one := range r.ranges {
			matches = matches && one.has(numbers[i])
		}
		if matches {
			l.rules = append(l.rules, r)
		}
	}
	return l
}

// choose returns what [ByModel] does.
func (l *linkRules) choose(k Kind, bytes uint64) []string {
	if l == nil {
		return nil
	}
	rate := l.fabric.All
	switch {
	case l.fabric.Hosts > 1: // for a rank's part
		rate = l.fabric.Net * float64(l.fabric.Ranks)
	case k == SendReceive:
		rate = l.fabric.Next
	}
	us := float64(bytes) / (rate * 1000)
	for _, r := range l.rules {
		if r.kind == k {
			from := slices.IndexFunc(r.below, func(below float64) bool { return us < below })
			return r.names[max(from, 0):]
		}
	}
	return nil
}

func (k kindInside) ByModel(f fabric, bytes uint64) []string {
	return rulesFor(&f).choose(k.Kind, bytes)
}

// choices returns the choices of ByModel with a grid, none where the links are unknown. What goes by port
// channels has few blocks, but where its blocks share their channels. Blocks have as many threads as the grid's,
// or as the kernel's can have.
func (l *linkRules) choices(k Kind, bytes uint64, grid Choice) (all []Choice) {
	for _, name := range l.choose(k, bytes) {
		a, err := k.algorithm(name)
		if err != nil {
			continue
		}
		blocks := grid.Blocks
		if k.Internal().ByHost(name) && !a.about().shared {
			blocks = min(blocks, ringBlocks)
		}
		all = append(all, Choice{name, blocks, min(grid.Threads, a.about().mostThreads())})
	}
	return all
}
