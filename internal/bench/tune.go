package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/table"
	"github.com/mscclgo/mscclgo/samples"
)

// tunedGrids are the grids that Tune tries, beside an algorithm.
var tunedGrids = []samples.Choice{
	{Blocks: 4, Threads: 512}, {Blocks: 8, Threads: 512}, {Blocks: 16, Threads: 512}, {Blocks: 32, Threads: 512},
	{Blocks: 64, Threads: 512}, {Blocks: 128, Threads: 512}, {Blocks: 32, Threads: 1024}, {Blocks: 64, Threads: 256},
}

// Tune measures every algorithm that fits with several grids at each size, checks
// them, and gives the fastest as a tuning for this number of ranks and their
// link. A rule holds up to the geometric mean of its size and the next; the last
// one, for all that is larger. Where neighbouring sizes agree, they share a rule.
// Collective.
func Tune(ctx context.Context, comm *communicator.Communicator, cfg Config, sinks Sinks) (*samples.Tuning, error) {
	cfg.Algorithms, cfg.Compare = []string{algoAll}, nil
	results := map[string]map[uint64][]Result{} // by collective and size
	for _, grid := range tunedGrids {
		cfg.Blocks, cfg.Threads = grid.Blocks, grid.Threads
		found, err := Run(ctx, comm, cfg, sinks)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			if results[r.Collective] == nil {
				results[r.Collective] = map[uint64][]Result{}
			}
			results[r.Collective][r.Bytes] = append(results[r.Collective][r.Bytes], r)
		}
	}
	tuning := &samples.Tuning{}
	for _, c := range cfg.Collectives {
		tuning.Rules = append(tuning.Rules, rules(results[c.Name])...)
	}
	if sinks.Table != nil {
		for _, c := range cfg.Collectives {
			fmt.Fprintf(sinks.Table, "# %s, the fastest\n", c.Name)
			table.Header(sinks.Table)
			for _, size := range sortedKeys(results[c.Name]) {
				fastest(results[c.Name][size]).row().Print(sinks.Table)
			}
		}
	}
	return tuning, nil
}

// rules makes the rules of a collective from its results by size.
func rules(bySize map[uint64][]Result) []samples.Rule {
	var rules []samples.Rule
	sizes := sortedKeys(bySize)
	for i, size := range sizes {
		best := fastest(bySize[size])
		upTo := uint64(math.MaxUint64)
		if i+1 < len(sizes) {
			upTo = uint64(math.Sqrt(float64(size) * float64(sizes[i+1])))
		}
		choice := samples.Choice{Algorithm: best.Algorithm, Blocks: best.Blocks, Threads: best.Threads}
		if n := len(rules); n > 0 && rules[n-1].Choice == choice {
			rules[n-1].UpTo = upTo
			continue
		}
		rules = append(rules, samples.Rule{Link: best.Link, Collective: best.Collective, Ranks: best.Ranks, UpTo: upTo, Choice: choice})
	}
	return rules
}

func fastest(results []Result) *Result {
	best := slices.MinFunc(results, func(a, b Result) int { return int(a.Time.Median - b.Time.Median) })
	return &best
}

func sortedKeys(m map[uint64][]Result) []uint64 {
	var keys []uint64
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
