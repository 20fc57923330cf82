package explore_test

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/test/detector"
)

//go:embed testdata/orders.cu
var orders []byte

const (
	ranks     = 3
	threads   = 64
	caseBytes = 4 << 10
	schedules = 200 // within which each mistake is found
	limit     = 5 * time.Minute
)

var caseName = regexp.MustCompile(`(?m)^(CASE|WEAK)\((\w+)\)`)

// cases returns the kernels of orders.cu of a kind.
func cases(kind string) (names []string) {
	for _, m := range caseName.FindAllSubmatch(orders, -1) {
		if string(m[1]) == kind {
			names = append(names, string(m[2]))
		}
	}
	return names
}

// number returns how many schedules what is right is run in: so many, or those of the variable
// MSCCLGO_TEST_SCHEDULES.
func number(t *testing.T, otherwise int) int {
	text := os.Getenv("MSCCLGO_TEST_SCHEDULES")
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fewer is a number of schedules, or one of each scheduler where the race detector runs: of kernels it sees nothing.
func fewer(n int) int {
	if detector.Enabled {
		return min(n, len(explore.Schedulers))
	}
	return n
}

// schedule is the plan of the n-th run.
func schedule(n int) explore.Plan {
	return explore.Plan{Scheduler: explore.Schedulers[n%len(explore.Schedulers)], Seed: uint64(n)}
}

// run runs ranks with a schedule, and returns what the run was and the ranks' error.
func run(t *testing.T, p explore.Plan, n int, rank func(context.Context, *communicator.Communicator) error) (explore.Outcome, error) {
	t.Helper()
	x, err := explore.Begin(p)
	if err != nil {
		t.Fatal(err)
	}
	defer x.End()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err = communicator.Local(ctx, n, "emu", rank)
	return x.Outcome(), err
}

// orderings counts the runs, and the digests of different ones, of each scheduler.
type orderings map[explore.Scheduler]map[uint64]int

func (all orderings) add(p explore.Plan, o explore.Outcome) {
	if all[p.Scheduler] == nil {
		all[p.Scheduler] = map[uint64]int{}
	}
	all[p.Scheduler][o.Digest]++
}

// check finds a scheduler that does the same with each seed.
func (all orderings) check(t *testing.T) {
	for scheduler, digests := range all {
		for _, runs := range digests {
			if runs > 1 && len(digests) == 1 {
				t.Errorf("%s: %d runs were the same", scheduler, runs)
			}
		}
	}
}

// rankOf returns a rank that runs cases.
func rankOf(names []string, mended bool) func(context.Context, *communicator.Communicator) error {
	var options devicecode.Options
	if mended {
		options.Defines = []string{"MENDED"}
	}
	return func(ctx context.Context, comm *communicator.Communicator) error {
		module, err := devicecode.Load(ctx, comm.Device(), "orders.cu", orders, options)
		if err != nil {
			return err
		}
		defer module.Close()
		buffer, err := gpu.Upload(comm.Device(), make([]byte, len(names)*caseBytes))
		if err != nil {
			return err
		}
		channels, err := comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{})
		if err != nil {
			return err
		}
		group, err := comm.Group(ctx)
		if err != nil {
			return err
		}
		shared, err := comm.Share(ctx, buffer)
		if err != nil {
			return err
		}
		buffers, err := shared.Handle()
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		for i, name := range names {
			kernel, err := module.Kernel(name)
			if err != nil {
				return err
			}
			blocks := 1
			if name == "lostSignal" || name == "lastBlock" {
				blocks = 2
			}
			err = kernel.Launch(stream, gpu.Blocks(blocks, threads), channels.Set(), group, buffers, uint64(i*caseBytes))
			if err := errors.Join(err, stream.Synchronize(ctx)); err != nil {
				return err
			}
			if err := errors.Join(check(comm.Rank(), buffer, name, i), comm.Barrier(ctx)); err != nil {
				return err
			}
		}
		return nil
	}
}

// check finds what a case sent in the results of rank 1.
func check(rank int, buffer *gpu.Buffer, name string, i int) error {
	if rank != 1 {
		return nil
	}
	const results = 1024 // bytes
	data := make([]byte, 4*threads)
	part, err := buffer.Slice(uint64(i*caseBytes+results), uint64(len(data)))
	if err != nil {
		return err
	}
	if err := gpu.CopyOut(data, part); err != nil {
		return err
	}
	for thread := range threads {
		want := uint32(thread) + 1
		if name == "reusedFlag" {
			want += 1000
		}
		if got := binary.LittleEndian.Uint32(data[4*thread:]); got != want {
			return fmt.Errorf("%s: result %d is %d, want %d", name, thread, got, want)
		}
	}
	return nil
}

// TestFound finds each mistake in a few schedules. The failure comes again with the seed, and with
// the switches alone, and each time in the same steps.
func TestFound(t *testing.T) { found(t, cases("CASE"), false) }

// TestFoundWeak finds mistakes that only old values show, and says which loads get them.
func TestFoundWeak(t *testing.T) { found(t, cases("WEAK"), true) }

func found(t *testing.T, names []string, weak bool) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			rank := rankOf([]string{name}, false)
			for n := range schedules {
				p := schedule(n)
				p.Weak = weak
				first, err := run(t, p, ranks, rank)
				if err == nil {
					continue
				}
				t.Logf("schedule %d, %d steps, %d switches: %s", n, first.Steps, len(first.Switches), first.Ended)
				again := p
				again.Expected = first.Trace
				told := explore.Plan{Scheduler: explore.Fixed, Switches: explore.Sorted(first.Switches), Expected: first.Trace, Weak: weak}
				for _, p := range []explore.Plan{again, told} {
					o, err := run(t, p, ranks, rank)
					if err == nil || o.Ended != first.Ended || o.Digest != first.Digest || o.Diverged != "" {
						t.Errorf("%s: %d steps, %q, %q, %v", p.Scheduler, o.Steps, o.Ended, o.Diverged, err)
					}
				}
				return
			}
			t.Errorf("not found in %d schedules", schedules)
		})
	}
}

// TestStrong finds no mistake that shows only where loads get old values where they do not.
func TestStrong(t *testing.T) {
	rank := rankOf(cases("WEAK"), false)
	for n := range number(t, fewer(2*len(explore.Schedulers))) {
		if o, err := run(t, schedule(n), ranks, rank); err != nil {
			t.Fatalf("schedule %d: %v, %q", n, err, o.Uncontrolled)
		}
	}
}

// TestMended finds nothing in what the mistakes should be, with old values in every other run.
func TestMended(t *testing.T) {
	rank := rankOf(append(cases("CASE"), cases("WEAK")...), true)
	different := orderings{}
	for n := range number(t, fewer(4*len(explore.Schedulers))) {
		p := schedule(n)
		p.Weak = n%2 == 1
		o, err := run(t, p, ranks, rank)
		if err != nil || o.Ended != "" || len(o.Uncontrolled) > 0 {
			t.Fatalf("schedule %d: %v, %q", n, err, o.Uncontrolled)
		}
		different.add(schedule(n), o)
	}
	different.check(t)
}

// TestAllReduce all-reduces a few words by each algorithm, with old values in every other run.
func TestAllReduce(t *testing.T) {
	for _, algorithm := range collective.AllReduce.Algorithms() {
		if collective.AllReduce.Internal().ByHost(algorithm) {
			continue
		}
		t.Run(algorithm, func(t *testing.T) {
			rule := collective.Rule{Link: "*", Kind: collective.AllReduce, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: algorithm, Blocks: 2, Threads: 64}}
			different := orderings{}
			for n := range number(t, fewer(2*len(explore.Schedulers))) {
				p := schedule(n)
				p.Weak = n%2 == 0
				o, err := run(t, p, 2, func(ctx context.Context, comm *communicator.Communicator) error {
					return allReduce(ctx, comm, collective.Options{Tuning: &collective.Tuning{Rules: []collective.Rule{rule}}})
				})
				if err != nil || o.Ended != "" || len(o.Uncontrolled) > 0 {
					t.Fatalf("schedule %d: %v, %q", n, err, o.Uncontrolled)
				}
				different.add(p, o)
			}
			different.check(t)
		})
	}
}

// allReduce has a rank all-reduce words twice, and checks the sums.
func allReduce(ctx context.Context, comm *communicator.Communicator, o collective.Options) error {
	const count = 200
	runner, err := collective.New(ctx, comm, o)
	if err != nil {
		return err
	}
	defer runner.Close(ctx)
	words := make([]byte, 4*count)
	for i := range count {
		binary.LittleEndian.PutUint32(words[4*i:], uint32(i+comm.Rank()))
	}
	buffer, err := gpu.Upload(comm.Device(), words)
	if err != nil {
		return err
	}
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	for range 2 {
		if err := runner.AllReduce(stream, buffer, buffer, count, collective.I32, collective.Sum); err != nil {
			return err
		}
	}
	if err := errors.Join(stream.Synchronize(ctx), gpu.CopyOut(words, buffer), comm.Barrier(ctx)); err != nil {
		return err
	}
	for i := range count {
		if got, want := binary.LittleEndian.Uint32(words[4*i:]), uint32(2*(2*i+1)); got != want {
			return fmt.Errorf("word %d is %d, want %d", i, got, want)
		}
	}
	return nil
}
