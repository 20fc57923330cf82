package model

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

var update = flag.Bool("update", false, "write collective/modelled.txt anew")

// The most that a rule may take, as a multiple of the least time: on one host, and on several.
const mostOnHost, mostBetween = 1.05, 1.06

const rulesHead = `# What the model of time (cmd/mscclgo/internal/model, docs/PATHS.md) chooses where tuning.txt says model. Not
# written by hand: go test ./cmd/mscclgo/internal/model -run TestRules -update writes it.
#
# link: nvlink or pcie between the ranks of one host; rdma or tcp between several. hosts, ranks: of the group,
# and of a host. inside: what a rank's links within its host carry, over its share of the network where all of
# its host send. shared: what it sends alone, over that share. "3:8" is from 3 and below 8, "*" any.
# algorithms: each for what the links carry in less than so many us, the last for anything: the bytes of the
# collective by what a rank exchanges on one host, and on several a rank's part of them by its share of the network.
# The first algorithm that can be done counts.
#
# link  collective       hosts  ranks     inside     shared  algorithms
`

// sample is a fabric, with the time of each algorithm over the least, for each length of lengths.
type sample struct {
	Fabric
	features [4]float64 // hosts, ranks of a host, inside and shared
	off      [][]float64
}

// lengths are the times, in us, that the links take for what is moved.
func lengths() (all []float64) {
	for us := 1.0 / (1 << 12); us < 1<<21; us *= math.Pow(2, 0.25) {
		all = append(all, us)
	}
	return all
}

// rate returns what ByModel of inside.Kind divides sizes by, in bytes per us.
func (f Fabric) rate(k collective.Kind) float64 {
	switch {
	case f.Hosts > 1:
		return f.Net * float64(f.Ranks) * 1000
	case k == collective.SendReceive:
		return f.Next * 1000
	}
	return f.All * 1000
}

// machines has the machines of topology's tests, by name, with how many of their GPUs to use at most.
var machines = map[string]int{"switches": 8, "bridges": 4, "sockets": 8, "cloud": 4, "cards": 4}

// fabrics returns the links between the first GPUs of each machine, on so many hosts.
func fabrics(t testing.TB, hosts []int, gpus func(int) bool) (all []Fabric) {
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		for n := range machines[name] {
			if !gpus(n + 1) {
				continue
			}
			for _, h := range hosts {
				f := fabricOf(t, name, n+1, h)
				all = append(all, f)
				if h > 1 && f.RDMA { // by TCP, over NICs a quarter as wide
					f.RDMA, f.Net, f.NIC = false, f.Net/4, f.NIC/4
					all = append(all, f)
				}
			}
		}
	}
	return all
}

// sampleOf predicts all times on a fabric.
func sampleOf(f Fabric, k collective.Kind) *sample {
	s := &sample{Fabric: f, features: [4]float64{1, float64(f.Ranks), 1, 1}}
	if f.Hosts > 1 {
		s.features = [4]float64{float64(f.Hosts), f.perHost(), rounded(f.All / f.Net), rounded(f.NIC / f.Net)}
	}
	for _, us := range lengths() {
		bytes := us * f.rate(k)
		if math.IsInf(bytes, 0) {
			bytes = 0
		}
		size := uint64(min(max(bytes, 1), 1<<50))
		var off []float64
		for _, name := range k.Algorithms() {
			t, ok := f.Time(k, name, size)
			if !ok || f.Hosts == 1 && k.Internal().ByHost(name) {
				t = math.MaxInt64
			}
			off = append(off, float64(t))
		}
		least := slices.Min(off)
		for i, t := range off {
			switch {
			case t == math.MaxInt64:
				off[i] = math.Inf(1)
			case size < 4 || size > 64<<30: // nobody has such
				off[i] = 1
			default:
				off[i] = t / least
			}
		}
		s.off = append(s.off, off)
	}
	return s
}

// rounded returns a number with three digits, and of an infinite one a large one.
func rounded(v float64) float64 {
	v, _ = strconv.ParseFloat(fmt.Sprintf("%.3g", min(v, 1e6)), 64)
	return v
}

// rule is an algorithm for what takes less than some us.
type rule struct {
	below     float64
	algorithm string
}

// bySize returns the fewest rules for samples, of which none takes more than the most, if that can be, and by
// how much the best take more, over all lengths.
func bySize(samples []*sample, k collective.Kind, most float64) (rules []rule, excess float64) {
	us, names := lengths(), k.Algorithms()
	worst := make([][]float64, len(us))
	for i := range us {
		worst[i] = slices.Clone(samples[0].off[i])
		for a, v := range worst[i] {
			for _, s := range samples {
				if !math.IsInf(v, 1) {
					v = max(v, s.off[i][a])
				}
			}
			worst[i][a] = v
		}
		if least := slices.Min(worst[i]); least > most {
			excess += math.Log(least / most)
		}
	}
	for i := 0; i < len(us); {
		best, reach := slices.Index(worst[i], slices.Min(worst[i])), i+1
		for a := range names {
			end := i
			for end < len(us) && worst[end][a] <= most {
				end++
			}
			if end > reach {
				best, reach = a, end
			}
		}
		i = reach
		below := math.Inf(1)
		if i < len(us) {
			below = rounded((us[i-1] + us[i]) / 2)
		}
		if n := len(rules); n > 0 && rules[n-1].algorithm == names[best] {
			rules[n-1].below = below
			continue
		}
		rules = append(rules, rule{below, names[best]})
	}
	return rules, excess
}

// divide writes rules for samples, all of which lie within bounds, and for halves of these where one list of
// rules is not good enough for all.
func divide(b *strings.Builder, link string, k collective.Kind, samples []*sample, most float64, bounds [4][2]float64) {
	rules, excess := bySize(samples, k, most)
	feature, at, least := -1, 0.0, math.Inf(1)
	for f := range bounds {
		if excess == 0 {
			break
		}
		values := map[float64]bool{}
		for _, s := range samples {
			values[s.features[f]] = true
		}
		sorted := slices.Sorted(maps.Keys(values))
		for i := range sorted[1:] {
			between := rounded(math.Sqrt(sorted[i] * sorted[i+1]))
			if f < 2 {
				between = math.Ceil(between)
			}
			low, high := split(samples, f, between)
			if len(low) == 0 || len(high) == 0 {
				continue
			}
			a, lowExcess := bySize(low, k, most)
			c, highExcess := bySize(high, k, most)
			if cost := lowExcess + highExcess + 0.02*float64(len(a)+len(c)); cost < least {
				feature, at, least = f, between, cost
			}
		}
	}
	if feature >= 0 {
		low, high := split(samples, feature, at)
		below, from := bounds, bounds
		below[feature][1], from[feature][0] = at, at
		divide(b, link, k, low, most, below)
		divide(b, link, k, high, most, from)
		return
	}
	fmt.Fprintf(b, "%-6s %-14s", link, k)
	for i, width := range []int{7, 6, 10, 10} {
		fmt.Fprintf(b, " %*s", width, rangeOf(bounds[i]))
	}
	b.WriteString(" ")
	for _, r := range rules {
		b.WriteString(" " + r.algorithm)
		if !math.IsInf(r.below, 1) {
			b.WriteString("<" + number(r.below))
		}
	}
	b.WriteString("\n")
}

// split returns the samples with a feature below a number, and the others.
func split(samples []*sample, feature int, at float64) (low, high []*sample) {
	for _, s := range samples {
		if s.features[feature] < at {
			low = append(low, s)
		} else {
			high = append(high, s)
		}
	}
	return low, high
}

// rangeOf writes bounds as the rules have them.
func rangeOf(b [2]float64) string {
	from, below := "", number(b[1])
	if b[0] > 0 {
		from = number(b[0])
	}
	if from == "" && below == "*" {
		return "*"
	}
	return from + ":" + strings.Trim(below, "*")
}

// number writes a number, or what stands for none.
func number(v float64) string {
	if math.IsInf(v, 1) {
		return "*"
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// linkOf returns the link of the rules for a fabric.
func linkOf(f Fabric) string {
	switch {
	case f.Hosts > 1 && f.RDMA:
		return "rdma"
	case f.Hosts > 1:
		return "tcp"
	case f.Path <= 1:
		return "nvlink"
	}
	return "pcie"
}

// TestRules finds that the library's rules are what the model gives.
func TestRules(t *testing.T) {
	var b strings.Builder
	b.WriteString(rulesHead)
	all := fabrics(t, []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1250}, func(int) bool { return true })
	for _, link := range []string{"nvlink", "pcie", "rdma", "tcp"} {
		for _, k := range collective.Kinds() {
			var samples []*sample
			for _, f := range all {
				if linkOf(f) == link {
					samples = append(samples, sampleOf(f, k))
				}
			}
			most := mostBetween
			if link == "nvlink" || link == "pcie" {
				most = mostOnHost
			}
			divide(&b, link, k, samples, most, [4][2]float64{{0, math.Inf(1)}, {0, math.Inf(1)}, {0, math.Inf(1)}, {0, math.Inf(1)}})
		}
	}
	const file = "../../../../collective/modelled.txt"
	if *update {
		testerr.Check(t, os.WriteFile(file, []byte(b.String()), 0o666))
	}
	want := testerr.Must(os.ReadFile(file))(t)
	testcmp.Equal(t, file+"; -update writes it", string(want), b.String())
}

// TestByModel compares what the rules choose with what the model does, between ranks on all machines: those by
// which the rules were made, and others between them.
func TestByModel(t *testing.T) {
	for _, c := range []struct {
		name       string
		hosts      []int
		most, mean float64
	}{
		{"the machines of the rules", []int{1, 2, 3, 4, 8, 16, 32, 64, 256, 1250}, 1.1, 1.01},
		{"other numbers of hosts", []int{5, 6, 7, 10, 12, 20, 24, 48, 96, 128, 512, 1000}, 1.6, 1.02},
	} {
		same, n, sum, most := 0, 0, 0.0, 1.0
		for _, f := range fabrics(t, c.hosts, func(int) bool { return true }) {
			for _, k := range collective.Kinds() {
				for size := uint64(256); size <= 8<<30; size *= 2 {
					want, least, _ := f.least(k, size, func(string) bool { return true })
					names := k.Internal().ByModel(f.Fabric, size)
					if len(names) == 0 {
						t.Fatalf("no rule for %v of %s on %+v", k, bytesize.Format(size), f)
					}
					got, ok := f.Time(k, names[0], size)
					over := float64(got) / float64(least)
					if !ok || over > c.most {
						t.Errorf("%s: %v of %s on %+v: %s takes %.2f of the time of %s", c.name, k, bytesize.Format(size), f, names[0], over, want)
					}
					if names[0] == want {
						same++
					}
					n, sum, most = n+1, sum+over, max(most, over)
				}
			}
		}
		t.Logf("%s: %d of %d choices are the model's; a choice takes %.3f of its time in the mean, %.2f at most", c.name, same, n, sum/float64(n), most)
		if sum/float64(n) > c.mean {
			t.Errorf("%s: a choice takes %.3f of the least time in the mean", c.name, sum/float64(n))
		}
	}
}
