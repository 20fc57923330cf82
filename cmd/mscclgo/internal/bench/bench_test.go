package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/elements"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// counts are elements of a part that have given trouble to somebody: one, odd
// ones, around the words, lines and packets of the kernels.
var counts = []uint64{1, 2, 3, 7, 8, 9, 31, 119, 121, 239, 241, 1000, 1021, 4099}

func testConfig(t testing.TB) Config {
	t.Helper()
	tuning := testerr.Must(collective.DefaultTuning())(t)
	return Config{
		Collectives: collective.Kinds(), Algorithms: []string{"all"}, Tuning: tuning, Type: "f32", Op: "sum",
		Places: []string{"out", "in"}, Sizes: []uint64{4096}, Iters: 1, Replays: 1, Rounds: 1, Check: true,
		Blocks: 4, Threads: 64,
	}
}

// TestEverywhere runs all algorithms of all collectives, in place and out of
// place, aligned and not, at all counts. It takes two types and operations, since
// each pair of them is compiled anew; package devicecode tests all that there are.
func TestEverywhere(t *testing.T) {
	all := []int{1, 2, 3, 4, 8}
	if testing.Short() {
		all = all[:3]
	}
	for _, ranks := range all {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			cfg := testConfig(t)
			testgroup.Run(t, ranks, communicator.Options{Scratch: 4 << 20}, func(ctx context.Context, comm *communicator.Communicator) error {
				return everything(ctx, comm, cfg)
			})
		})
	}
}

func everything(ctx context.Context, comm *communicator.Communicator, cfg Config) error {
	types, ops := elements.Reducible(), elements.Ops()
	for i, offset := range []uint64{0, 4, 8, 1} {
		// Two ranks take all variants and counts, the others one variant, one place
		// and some counts.
		n, stride := comm.Size(), 4
		if n != 2 {
			stride = 6
			if i != n%4 {
				continue
			}
		} else if testing.Short() && i%2 == 0 {
			continue
		}
		typ := types[i%2]
		cfg.Type, cfg.Op, cfg.Offset, cfg.Graph, cfg.Root = typ.String(), ops[i%2].String(), offset, i%2 == 0, comm.Size()-1
		for _, c := range collective.Kinds() {
			cfg.Collectives, cfg.Sizes = []collective.Kind{c}, nil
			if n != 2 && c.Internal().InPlace() {
				cfg.Places = []string{"in"}
			} else if n != 2 {
				cfg.Places = []string{"out"}
			}
			for k := (i + n) % 4; k < len(counts); k += stride {
				cfg.Sizes = append(cfg.Sizes, counts[k]*uint64(typ.Size()*c.Parts(n)))
			}
			results, err := Run(ctx, comm, cfg, Sinks{})
			if err != nil {
				return fmt.Errorf("%s, offset %d: %w", c.String(), offset, err)
			}
			for _, name := range c.Algorithms() {
				if !slices.ContainsFunc(results, func(r Result) bool { return r.Algorithm == name }) {
					return fmt.Errorf("%s: nothing was done by %s", c.String(), name)
				}
			}
		}
	}
	return nil
}

// TestSeveralHosts has ranks that do not map each other's memory, so that all goes
// over Ethernet; package main of samples/allreduce tests hosts of several ranks.
func TestSeveralHosts(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			options := communicator.Options{Scratch: 4096, Transports: registeredmem.Ethernet}
			testgroup.Run(t, ranks, options, func(ctx context.Context, comm *communicator.Communicator) error {
				return overEthernet(ctx, comm, testConfig(t))
			})
		})
	}
}

// ringRefuses are reductions of [overEthernet] whose sums need more than the elements.
var ringRefuses = map[string]bool{"f16 avg": true, "f8e5m2 prod": true, "i32 avg": true}

func overEthernet(ctx context.Context, comm *communicator.Communicator, cfg Config) error {
	cfg.Graph, cfg.Offset = false, 1
	for i, typ := range elements.Reducible() {
		if i%2 != comm.Size()%2 || testing.Short() && i%4 != 1 && i%4 != 2 { // compilers take most of the time
			continue
		}
		cfg.Type, cfg.Op, cfg.Sizes = typ.String(), elements.Ops()[(3*i+1)%5].String(), nil
		for k := i; k < len(counts); k += 7 {
			cfg.Sizes = append(cfg.Sizes, counts[k]*uint64(typ.Size()))
		}
		for _, c := range collective.Kinds() {
			cfg.Collectives = []collective.Kind{c}
			results, err := Run(ctx, comm, cfg, Sinks{})
			if err != nil {
				return fmt.Errorf("%s: %w", c.String(), err)
			}
			for _, name := range c.Algorithms() {
				if did := slices.ContainsFunc(results, func(r Result) bool { return r.Algorithm == name }); did != (c.Internal().ByHost(name) && name != "staged" && !(name == "ring" && ringRefuses[cfg.Type+" "+cfg.Op])) {
					return fmt.Errorf("%s by %s was done: %v", c.String(), name, did)
				}
			}
		}
	}
	return nil
}

// TestSizes takes sizes over the whole range, with the choice of algorithm: on an
// emulated device, the larger ones of the all-reduce alone.
func TestSizes(t *testing.T) {
	largest, largestOfAll := uint64(4<<20), uint64(largestEmulated)
	switch {
	case testdev.CUDA():
		largest, largestOfAll = 256<<20, 256<<20
	case testing.Short():
		largest, largestOfAll = 1<<20, 1<<20
	}
	cfg := testConfig(t)
	cfg.Algorithms, cfg.Blocks, cfg.Threads = []string{"auto"}, 0, 0
	for _, ranks := range []int{2, 3} {
		testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) (err error) {
			cfg := cfg
			if cfg.Sizes, err = Sizes(1<<10, largest, 8); err != nil {
				return err
			}
			if _, err := Run(ctx, comm, cfg, Sinks{}); err != nil || ranks > 2 || largestOfAll <= largest {
				return err
			}
			cfg.Collectives, cfg.Sizes = cfg.Collectives[:1], []uint64{largestOfAll}
			_, err = Run(ctx, comm, cfg, Sinks{})
			return err
		})
	}
}

// TestSoak queues many calls of changing collectives, sizes, algorithms and grids
// without a look from the host.
func TestSoak(t *testing.T) {
	soak := func(ctx context.Context, comm *communicator.Communicator) error {
		cfg := SoakConfig{Collectives: collective.Kinds(), Most: 16 << 10, Batch: 60, For: 2 * time.Second}
		if testing.Short() {
			cfg.For = time.Second
		}
		calls, err := Soak(ctx, comm, cfg, func(string) {})
		if comm.Rank() == 0 {
			t.Logf("%d calls", calls)
		}
		return err
	}
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{Scratch: 1 << 20}, soak)
		})
	}
	t.Run("hosts", func(t *testing.T) {
		o := testgroup.Network(0, 0, 1)
		for rank := range o {
			o[rank].Scratch = 1 << 20
		}
		testgroup.RunEach(t, o, soak)
	})
}

// TestTune finds a choice for each collective, and none with wrong elements.
func TestTune(t *testing.T) {
	cfg := testConfig(t)
	cfg.Sizes, cfg.Blocks, cfg.Threads, cfg.Budget, cfg.Graph = []uint64{999}, 0, 0, time.Second, true
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var lines bytes.Buffer
		tuning := testerr.Must(Tune(ctx, comm, cfg, Sinks{JSON: &lines}))(t)
		if len(tuning.Rules) != len(collective.Kinds()) {
			return fmt.Errorf("the rules are %+v", tuning.Rules)
		}
		for i, c := range collective.Kinds() {
			if r := tuning.Rules[i]; r.Kind != c || !slices.Contains(c.Algorithms(), r.Algorithm) {
				return fmt.Errorf("%v: %+v", c, r)
			}
			for _, name := range c.Algorithms() {
				if !strings.HasPrefix(name, "hier") && !strings.Contains(lines.String(), `"algorithm":"`+name+`"`) {
					return fmt.Errorf("%v: %s was not measured", c, name)
				}
			}
		}
		return nil
	})
}

// TestReport looks at what is printed.
func TestReport(t *testing.T) {
	cfg := testConfig(t)
	cfg.Algorithms, cfg.Places = []string{"auto"}, []string{"out"}
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var table, lines bytes.Buffer
		var progress []string
		results := testerr.Must(Run(ctx, comm, cfg, Sinks{&table, &lines, func(text string) { progress = append(progress, text) }}))(t)
		if len(results) != len(collective.Kinds()) || len(progress) != len(results) || !strings.Contains(progress[0], "4K") {
			return fmt.Errorf("%d results, progress %q", len(results), progress)
		}
		if !strings.Contains(table.String(), "# all-reduce, 2 ranks") || testdev.CUDA() == strings.Contains(table.String(), "emulated") {
			return fmt.Errorf("the table:\n%s", &table)
		}
		var first struct { // of a Result, which has times that do not come back as they went
			Collective   string
			Bytes, Count uint64
		}
		if err := json.NewDecoder(&lines).Decode(&first); err != nil || first.Collective != "all-reduce" || first.Bytes != 4096 || first.Count != 1024 {
			return fmt.Errorf("the first line is %+v, %v", first, err)
		}
		return nil
	})
}

// TestUnprepared times calls on any buffer beside the prepared ones, of all
// collectives, in place and out of place, off the alignment.
func TestUnprepared(t *testing.T) {
	cfg := testConfig(t)
	cfg.Algorithms, cfg.Unprepared, cfg.Compare, cfg.Offset, cfg.Graph = []string{"auto"}, true, []string{withCounts, withSends, withUnshared}, 4, true
	cfg.Blocks, cfg.Threads, cfg.Sizes = 0, 0, []uint64{1200, 120_000}
	testgroup.Run(t, 2, communicator.Options{Scratch: 64 << 10}, func(ctx context.Context, comm *communicator.Communicator) error {
		results := testerr.Must(Run(ctx, comm, cfg, Sinks{}))(t)
		for _, r := range results {
			names := []string{withUnprepared}
			if r.Collective == "all-to-all" {
				names = append(names, withCounts)
			}
			if r.Collective == "all-to-all" || r.Collective == "send-receive" {
				names = append(names, withSends, withUnshared)
			}
			var got []string
			for _, o := range r.Others {
				if o.Wrong == 0 && o.Time.Median > 0 && o.Ratio > 0 {
					got = append(got, o.Name)
				}
			}
			if diff := cmp.Diff(names, got); diff != "" {
				return fmt.Errorf("%s: what was timed beside (-want +got):\n%s", r.Collective, diff)
			}
		}
		return nil
	})
}

// TestLargeSends times messages that are stored where they belong, and the same through slots.
func TestLargeSends(t *testing.T) {
	cfg := testConfig(t)
	cfg.Algorithms, cfg.Compare, cfg.Graph = []string{"auto"}, []string{withUnshared, withSends}, true
	cfg.Collectives, cfg.Blocks, cfg.Threads, cfg.Sizes = []collective.Kind{collective.AllToAll}, 0, 0, []uint64{12 << 20}
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		results := testerr.Must(Run(ctx, comm, cfg, Sinks{}))(t)
		var names []string
		for _, r := range results {
			for _, o := range r.Others {
				if o.Wrong == 0 && o.Time.Median > 0 && !slices.Contains(names, o.Name) {
					names = append(names, o.Name)
				}
			}
		}
		if diff := cmp.Diff([]string{withSends, withUnshared}, names); diff != "" {
			return fmt.Errorf("what was timed beside (-want +got):\n%s", diff)
		}
		return nil
	})
}

// TestUnfit leaves out a kernel that does not run with that many threads, if it was not
// named.
func TestUnfit(t *testing.T) {
	cfg := testConfig(t)
	cfg.Collectives, cfg.Threads, cfg.Places = cfg.Collectives[:1], 768, []string{"out"}
	testgroup.Run(t, 2, communicator.Options{Scratch: 4 << 20}, func(ctx context.Context, comm *communicator.Communicator) error {
		var report bytes.Buffer
		results := testerr.Must(Run(ctx, comm, cfg, Sinks{Table: &report}))(t)
		did := func(name string) bool {
			return slices.ContainsFunc(results, func(r Result) bool { return r.Algorithm == name })
		}
		if !did("direct") || did("ring") || !strings.Contains(report.String(), "# ring is left out") {
			return fmt.Errorf("the table is:\n%s", report.String())
		}
		named := cfg
		named.Algorithms = []string{"all", "ring"}
		// This rank finds it, or another one did before.
		if _, err := Run(ctx, comm, named, Sinks{}); err == nil || !strings.Contains(err.Error(), "blocks of ring") {
			return fmt.Errorf("ring returned %v", err)
		}
		return nil
	})
}

// stuck is a contestant whose work does not end.
type stuck struct{ *own }

func (s stuck) repeat(context.Context, *problem, int, int, bool) (repeated, error) {
	return nil, &gaveUp{withNCCL, errors.New("no end"), true}
}

// TestStuck ends at a contestant that may hold the GPU, and releases nothing.
func TestStuck(t *testing.T) {
	cfg := testConfig(t)
	cfg.Algorithms = []string{"auto"}
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		b, err := newBench(ctx, comm, cfg, 0, Sinks{Table: io.Discard})
		testerr.Check(t, err)
		b.cfg.Compare = []string{withNCCL}
		b.others[withNCCL] = stuck{b.own(collective.Choice{Algorithm: "direct", Blocks: 1, Threads: 32})}
		_, err = b.size(ctx, b.problem(cfg.Collectives[0], 1024, false))
		if !Stuck(err) || !strings.Contains(err.Error(), "nccl: no end; it may hold the GPU") {
			return fmt.Errorf("it returned %v", err)
		}
		testerr.Check(t, b.close(ctx, err))
		if _, err := b.stream.Query(); err != nil {
			return fmt.Errorf("released: %w", err)
		}
		return b.close(ctx, nil)
	})
}

func TestBadConfig(t *testing.T) {
	good := testConfig(t)
	good.Collectives = good.Collectives[:1]
	moves := []collective.Kind{collective.SendReceive}
	testgroup.Run(t, 2, communicator.Options{Scratch: 4096}, func(ctx context.Context, comm *communicator.Communicator) error {
		for _, c := range []struct {
			want  string
			spoil func(*Config)
		}{
			{`"f8"`, func(c *Config) { c.Type = "f8" }},
			{`"mean"`, func(c *Config) { c.Op = "mean" }},
			{`"tree"`, func(c *Config) { c.Algorithms = []string{"tree"} }},
			{"sizes start at 1", func(c *Config) { c.Sizes = []uint64{0} }},
			{"at least one size", func(c *Config) { c.Sizes = nil }},
			{"at least one operation", func(c *Config) { c.Iters = 0 }},
			{"-1 blocks of 64 threads", func(c *Config) { c.Blocks = -1 }},
			{"the root is rank 2", func(c *Config) { c.Root = 2 }},
			{`"beside"`, func(c *Config) { c.Places = []string{"beside"} }},
			{"send-receive is not done in place", func(c *Config) { c.Collectives, c.Places = moves, []string{"in"} }},
			{"all-reduce is not compared with sends", func(c *Config) { c.Compare = []string{"sends"} }},
			{"send-receive is not compared with all-to-all-v", func(c *Config) { c.Collectives, c.Compare = moves, []string{"all-to-all-v"} }},
			{`"mpi"`, func(c *Config) { c.Compare = []string{"mpi"} }},
			{"fit into a scratch", func(c *Config) { c.Algorithms, c.Sizes = []string{"oneShotLL16"}, []uint64{64 << 10} }},
			{"whole warps", func(c *Config) { c.Algorithms, c.Threads, c.Sizes = []string{"oneShotLL128"}, 48, []uint64{64} }},
			{"4096 threads", func(c *Config) { c.Threads = 4096 }},
		} {
			cfg := good
			c.spoil(&cfg)
			if _, err := Run(ctx, comm, cfg, Sinks{}); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("got %v for %+v, want %s", err, cfg, c.want)
			}
		}
		return nil
	})
}

// TestWrongIsSeen spoils what a check must notice.
func TestWrongIsSeen(t *testing.T) {
	d := testdev.Open(t, 0)
	typ := collective.F32
	c := testerr.Must(collective.ParseKind("all-gather"))(t)
	p := &problem{collective: c, rank: 0, ranks: 1, typ: typ, count: 50_000}
	in := testerr.Must(d.Alloc(p.part()))(t)
	out := testerr.Must(d.Alloc(p.part() + guard))(t)
	stream := testerr.Must(d.NewStream())(t)
	r := testerr.Must(newReferee(t.Context(), d, typ))(t)
	defer r.close()
	try := func(name string, want int, spoil func() error) {
		t.Helper()
		testerr.Check(t, r.fill(t.Context(), p, in, out, 7))
		testerr.Check(t, spoil())
		testerr.Check(t, stream.Synchronize(t.Context()))
		wrong, _, err := r.check(t.Context(), p, out, 7, 1)
		if err != nil || wrong != want {
			t.Errorf("%s: %d wrong, %v; want %d", name, wrong, err, want)
		}
	}
	whole := func() error { return stream.Copy(out, 0, in, 0, p.part()) }
	try("right", 0, whole)
	try("nothing written", 50_000, func() error { return nil })
	try("the last is missing", 1, func() error { return stream.Copy(out, 0, in, 0, p.part()-4) })
	try("behind the end", 3, func() error {
		if err := whole(); err != nil {
			return err
		}
		return stream.Fill(out, p.part(), 0, 3)
	})
}
