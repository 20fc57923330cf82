package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/bytesize"
)

// tunedGrids are the grids that Tune tries with each algorithm, the most promising
// first, since time may run out.
var tunedGrids = []collective.Choice{
	{Blocks: 128, Threads: 1024}, {Blocks: 132, Threads: 512}, {Blocks: 64, Threads: 512}, {Blocks: 16, Threads: 256},
	{Blocks: 132, Threads: 128}, {Blocks: 256, Threads: 512}, {Blocks: 132, Threads: 1024}, {Blocks: 32, Threads: 512}, {Blocks: 16, Threads: 512}, {Blocks: 64, Threads: 256},
	{Blocks: 8, Threads: 512}, {Blocks: 96, Threads: 512}, {Blocks: 132, Threads: 256}, {Blocks: 256, Threads: 256},
	{Blocks: 4, Threads: 128}, {Blocks: 8, Threads: 128}, {Blocks: 64, Threads: 1024}, {Blocks: 8, Threads: 256},
	{Blocks: 32, Threads: 1024}, {Blocks: 4, Threads: 512}, {Blocks: 16, Threads: 1024}, {Blocks: 2, Threads: 512},
	{Blocks: 1, Threads: 1024}, {Blocks: 8, Threads: 1024}, {Blocks: 132, Threads: 192}, {Blocks: 132, Threads: 768},
}

const (
	tuneReplays = 3                    // of a candidate's first timing
	tuneFor     = 2 * time.Millisecond // of a replay, about
	hopeless    = 2.5                  // times the best at which an algorithm's other grids are left out
	finalists   = 4                    // candidates that are timed again, in turns
)

// Tune measures every algorithm that fits, with several grids, at each size, and
// returns the fastest as a tuning for this number of ranks and their link. A rule
// applies up to the geometric mean of its size and the next; the last one applies to
// everything larger. Neighbouring sizes with the same choice share a rule.
//
// All candidates are checked as by Run, before they are timed and after. Those with
// wrong elements are not chosen, and are an error in the end.
//
// Of cfg.SMs the first counts. The rules are for runners with that bound or a lower one then.
//
// With a cfg.Budget it ends within about that time by leaving grids out; each algorithm
// is tried with at least one. When Tune fails, it returns the tuning of what was measured
// until then. Collective.
func Tune(ctx context.Context, comm *communicator.Communicator, cfg Config, sinks Sinks) (_ *collective.Tuning, err error) {
	cfg.Algorithms, cfg.Compare, cfg.Unprepared, cfg.Places = []string{algoAll}, nil, false, []string{"out"}
	sinks.fill()
	if err := cfg.Validate(comm.Size()); err != nil {
		return nil, err
	}
	most := 0
	if len(cfg.SMs) > 0 {
		most = cfg.SMs[0]
	}
	b, err := newBench(ctx, comm, cfg, most, sinks)
	if b != nil {
		defer func() { err = errors.Join(err, b.close(ctx, err)) }()
	}
	if err != nil {
		return nil, err
	}
	t := &tuner{bench: b, end: time.Now().Add(cfg.Budget), cells: len(cfg.Collectives) * len(cfg.Sizes)}
	tuning := &collective.Tuning{}
	for _, c := range cfg.Collectives {
		found, err := t.collective(ctx, c)
		tuning.Rules = append(tuning.Rules, rules(c, found)...)
		if err != nil {
			return tuning, err
		}
	}
	if t.wrong > 0 {
		return tuning, fmt.Errorf("%d elements are wrong", t.wrong)
	}
	return tuning, nil
}

// tuner is one rank's state.
type tuner struct {
	*bench
	end   time.Time // when the budget is spent
	cells int       // collectives and sizes that are left
	wrong int
}

// collective measures all sizes of a collective.
func (t *tuner) collective(ctx context.Context, c collective.Kind) (map[uint64][]Result, error) {
	found := map[uint64][]Result{}
	for i, size := range t.cfg.Sizes {
		p := t.problem(c, size, false)
		t.sinks.Progress(fmt.Sprintf("tune %s, size %d of %d: %s", c, i+1, len(t.cfg.Sizes), bytesize.Format(p.size())))
		candidates, err := t.cell(ctx, p)
		if err != nil {
			return found, err
		}
		for _, k := range candidates {
			r := t.result(p, k.choice, k.choice.Blocks, k.times(), k.wrong)
			r.Stage, r.Iters = stageTune, k.iters
			if err := r.writeJSON(t.sinks.JSON); err != nil {
				return found, err
			}
			t.wrong += max(k.wrong, 0)
			if k.last && k.wrong <= 0 {
				found[r.Bytes] = append(found[r.Bytes], r)
			}
		}
	}
	fmt.Fprintf(t.sinks.Table, "# %s, the fastest%s\n", c, t.remark())
	printHeader(t.sinks.Table)
	for _, size := range slices.Sorted(maps.Keys(found)) {
		fastest(found[size]).row().print(t.sinks.Table)
	}
	return found, nil
}

// candidate is an algorithm with a grid.
type candidate struct {
	*own
	op    *collective.Operation
	iters int
	taken []time.Duration
	last  bool // timed with the other finalists
	wrong int
}

func (k *candidate) times() Times {
	return Times{median(k.taken), slices.Min(k.taken), slices.Max(k.taken)}
}

// cell measures the candidates of one size for which there is time.
func (t *tuner) cell(ctx context.Context, p *problem) ([]*candidate, error) {
	start, share := time.Now(), time.Until(t.end)/time.Duration(t.cells)
	t.cells--
	all, err := t.candidates(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := t.verifyCandidates(ctx, p, all); err != nil {
		return nil, err
	}
	var tried []*candidate
	best, least := time.Duration(math.MaxInt64), map[string]time.Duration{}
	for _, k := range all {
		name := k.choice.Algorithm
		if fast, known := least[name]; known {
			if float64(fast) > hopeless*float64(best) {
				continue
			}
			// A quarter of the time is for the last checks and the finalists.
			if more, err := decide(ctx, t.comm, t.cfg.Budget == 0 || time.Since(start) < share*3/4); err != nil || !more {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		// An estimate, which the first replays correct.
		k.iters = t.itersFor(5*time.Microsecond + time.Duration(p.size()/200))
		if err := t.time(ctx, p, k, tuneReplays); err != nil {
			return nil, err
		}
		took := median(k.taken)
		if fast, known := least[name]; !known || took < fast {
			least[name] = took
		}
		best = min(best, took)
		tried = append(tried, k)
	}
	slices.SortStableFunc(tried, func(a, b *candidate) int { return int(median(a.taken) - median(b.taken)) })
	last := tried[:min(finalists, len(tried))]
	for _, k := range last {
		k.iters, k.taken, k.last = t.itersFor(median(k.taken)), nil, true
	}
	for range t.cfg.Rounds {
		for _, k := range last {
			if err := t.time(ctx, p, k, t.cfg.Replays); err != nil {
				return nil, err
			}
		}
	}
	return tried, t.verifyCandidates(ctx, p, tried)
}

// itersFor returns the number of operations of a replay when one takes about that long.
func (t *tuner) itersFor(one time.Duration) int {
	return min(t.cfg.Iters, max(2, int(tuneFor/max(one, 1))))
}

// candidates returns the algorithms and grids for a problem, without duplicates. It
// loads all kernels.
func (t *tuner) candidates(ctx context.Context, p *problem) ([]*candidate, error) {
	var all []*candidate
	seen := map[collective.Choice]bool{}
	for _, grid := range tunedGrids {
		choices, err := t.choices(p)
		if err != nil {
			return nil, err
		}
		for _, c := range choices {
			if strings.HasPrefix(c.Algorithm, "hier") && len(t.comm.Hosts()) == 1 {
				continue // they are for several
			}
			c.Blocks, c.Threads = grid.Blocks, grid.Threads
			if t.emulated() {
				c.Blocks, c.Threads = min(c.Blocks, 2), min(c.Threads, 64)
			}
			k := &candidate{own: t.own(c)}
			if k.op, err = t.runner.Prepare(ctx, k.call(p)); errors.Is(err, mscclgo.ErrUnsupported) {
				continue // more threads than a block of this kernel can have
			} else if err != nil {
				return nil, err
			}
			c.Blocks = k.op.Choice().Blocks
			// Rank 0 decides: the root of a gather or a scatter may have another grid.
			more, err := decide(ctx, t.comm, !seen[c])
			if err != nil {
				return nil, err
			}
			if seen[c] = true; more {
				all = append(all, k)
			}
		}
	}
	return all, nil
}

// time times a candidate.
func (t *tuner) time(ctx context.Context, p *problem, k *candidate, replays int) error {
	r, err := newLaunches(t.comm, t.stream, k.op.Launch, k.iters, replays, t.cfg.Graph)
	if err != nil {
		return err
	}
	took, err := timed(ctx, t.comm, r, k.iters, 1, replays)
	k.taken = append(k.taken, took...)
	return errors.Join(err, r.close())
}

// verifyCandidates checks all candidates on new data.
func (t *tuner) verifyCandidates(ctx context.Context, p *problem, all []*candidate) error {
	contestants := make([]contestant, len(all))
	wrong := make([]int, len(all))
	for i, k := range all {
		contestants[i] = k.own
	}
	if err := t.verifyAll(ctx, p, contestants, wrong); err != nil {
		return err
	}
	for i, k := range all {
		if k.wrong += wrong[i]; wrong[i] < 0 {
			k.wrong = -1 // not checked
		}
	}
	return nil
}

// rules makes the rules of a collective from its results by size.
func rules(kind collective.Kind, bySize map[uint64][]Result) []collective.Rule {
	var rules []collective.Rule
	sizes := slices.Sorted(maps.Keys(bySize))
	for i, size := range sizes {
		best := fastest(bySize[size])
		upTo := uint64(math.MaxUint64)
		if i+1 < len(sizes) {
			upTo = uint64(math.Sqrt(float64(size) * float64(sizes[i+1])))
		}
		choice := collective.Choice{Algorithm: best.Algorithm, Blocks: best.Blocks, Threads: best.Threads}
		if n := len(rules); n > 0 && rules[n-1].Choice == choice {
			rules[n-1].UpTo = upTo
			continue
		}
		rules = append(rules, collective.Rule{Link: best.Link, Kind: kind, Ranks: best.Ranks, UpTo: upTo, Choice: choice, Within: best.SMs})
	}
	return rules
}

func fastest(results []Result) *Result {
	best := slices.MinFunc(results, func(a, b Result) int { return int(a.Time.Median - b.Time.Median) })
	return &best
}
