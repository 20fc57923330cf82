// Soak runs groups of ranks on this machine. In each group one rank has a fault. Soak checks
// that the others end in time, with an error that names this rank. No element that they took
// for right may be wrong, and nothing may be left over.
//
//	go run ./cmd/mscclgo/internal/soak -runs 100
//
// The program is all that it needs besides a C++ compiler, or, for -device cuda, besides
// NVIDIA's runtime compiler. Runs are made from a seed, the fault and a number: the line of a
// run that fails has the flags that repeat it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo/launcher"
)

func main() {
	if n, err := strconv.Atoi(os.Getenv(launchEnv)); err == nil {
		os.Unsetenv(launchEnv)
		launch(n)
		return
	}
	if text := os.Getenv(taskEnv); text != "" {
		rank(text)
		return
	}
	if text := os.Getenv(fillEnv); text != "" {
		if err := fill(context.Background(), text); err != nil {
			log.Fatal(err)
		}
		return
	}
	log.SetFlags(0)
	var cfg config
	list := flag.String("faults", "", "`names` of faults, separated by commas; all by default")
	flag.Uint64Var(&cfg.seed, "seed", rand.Uint64(), "of the runs")
	flag.IntVar(&cfg.runs, "runs", 20, "runs of each fault; 0 only compiles what they need, into -cache")
	flag.IntVar(&cfg.first, "first", 0, "number of the first run")
	flag.IntVar(&cfg.parallel, "parallel", 1, "runs at a time")
	flag.IntVar(&cfg.ranks, "n", 5, "most ranks of a run")
	flag.IntVar(&cfg.steps, "steps", 40, "of a run on average, of which each is a collective, or data that channels or pipes move")
	flag.Uint64Var(&cfg.most, "most", 2<<20, "bytes of a call or message")
	flag.StringVar(&cfg.device, "device", "emu", "of the ranks: emu, or cuda, whose ranks share the machine's GPUs")
	flag.StringVar(&cfg.cache, "cache", "", "`folder` of compiled kernels that stays; a temporary one by default")
	flag.DurationVar(&cfg.timeout, "timeout", 2*time.Second, "of the ranks' waits")
	flag.DurationVar(&cfg.heartbeat, "heartbeat", 5*time.Second, "time-out of the ranks' signs of life")
	flag.DurationVar(&cfg.within, "within", 0, "begin no run after so long, and print the table of those there were; 0 is no bound")
	flag.Float64Var(&cfg.slack, "slack", 1, "times the promised times are allowed, on a busy machine")
	flag.Parse()
	var err error
	if cfg.faults, err = choose(*list); err != nil {
		log.Fatal(err)
	}
	if flag.NArg() > 0 || cfg.runs < 0 || cfg.first < 0 || cfg.ranks < 2 || cfg.steps < 2 || cfg.most < 4<<10 || cfg.slack < 1 || cfg.timeout < time.Second ||
		cfg.parallel < 1 || cfg.within < 0 || cfg.heartbeat < time.Second || cfg.device != "emu" && cfg.device != "cuda" {
		log.Fatal("there are no arguments; -parallel is at least 1, -runs, -first and -within 0, -n and -steps 2, -most 4096, -slack 1, -timeout and -heartbeat 1s; -device is emu or cuda")
	}
	failed, err := cfg.soak(context.Background(), log.Printf)
	if err != nil {
		log.Fatal(err)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// launch runs ranks by the launcher.
func launch(n int) {
	program, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	code, _ := launcher.Run(context.Background(), launcher.Options{Ranks: n, Program: program})
	os.Exit(code)
}

// config is what the flags set.
type config struct {
	seed               uint64
	runs, first, ranks int
	parallel, steps    int
	most               uint64 // bytes of a call
	short              bool   // few kinds of calls
	device, cache      string
	slack              float64
	timeout, heartbeat time.Duration // of waits, and of signs of life
	within             time.Duration // in which runs begin, or 0
	faults             []fault
}

// choose returns the faults of a list.
func choose(list string) ([]fault, error) {
	if list == "" {
		return faults, nil
	}
	var chosen []fault
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			var all []string
			for _, f := range faults {
				all = append(all, f.name)
			}
			return nil, fmt.Errorf("there is no fault %q, only %s", name, strings.Join(all, ", "))
		}
		chosen = append(chosen, faults[i])
	}
	return chosen, nil
}

// A tally is what came of the runs of a fault.
type tally struct {
	times                     []time.Duration // of runs in which ranks failed
	runs, bad, missed, goesOn int
	again                     int // runs in which survivors went on in another group
	culprit                   int // runs in which all is right but perhaps the time
	left                      int // runs that left something
	busy                      int // runs in which an error was late since ranks did not run
	skipped                   string
}

// count adds a run, and returns what is wrong with it.
func (t *tally) count(f fault, o outcome, slack float64) []string {
	if o.skipped != "" {
		t.skipped = o.skipped
		return nil
	}
	t.runs++
	if len(o.left) > 0 {
		t.left++
	}
	if len(o.wrong) == 0 {
		t.culprit++
	}
	if o.again {
		t.again++
	}
	switch {
	case o.missed:
		t.missed++
	case o.goes:
		t.goesOn++
	default:
		t.times = append(t.times, o.late)
		switch late := o.late - time.Duration(float64(f.bound)*slack); {
		case f.bound == 0 || late <= 0:
		case late <= o.paused:
			t.busy++
		default:
			o.wrong = append(o.wrong, fmt.Sprintf("the last error came after %v, %s", o.late, o.last))
		}
	}
	if len(o.all()) > 0 {
		t.bad++
	}
	return o.all()
}

// bound returns the time in which all must know of a fault.
func (c *config) bound(f fault) time.Duration {
	bound := f.bound
	if f.waits {
		bound += c.timeout
	}
	if f.beats && !f.harmless {
		bound += c.heartbeat
	}
	return bound
}

// soak does all runs and prints a line for each that fails, and at the end one for each fault.
// It returns how many runs failed.
func (c *config) soak(ctx context.Context, print func(format string, args ...any)) (failed int, err error) {
	print("seed %d", c.seed)
	if c.cache == "" {
		if c.cache, err = os.MkdirTemp("", "mscclgo-soak-cache-"); err != nil {
			return 0, err
		}
		defer os.RemoveAll(c.cache)
	}
	shared := names("/dev/shm")
	began := time.Now()
	if err := c.fill(ctx); err != nil {
		return 0, err
	}
	compiled := len(names(c.cache))
	print("all is compiled after %v", time.Since(began).Round(100*time.Millisecond))
	if c.runs == 0 {
		return 0, nil
	}
	span, err := c.calibrate(ctx)
	if err != nil {
		return 0, err
	}
	print("a run without a fault takes %v", span.Round(time.Millisecond))
	tallies := make([]tally, len(c.faults))
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	room := make(chan struct{}, c.parallel)
	began = time.Now()
	// One run of each fault after the other: where there is no time for all, each has as many.
	for number := c.first; number < c.first+c.runs; number++ {
		for i, f := range c.faults {
			f.bound = c.bound(f)
			room <- struct{}{}
			if c.within > 0 && time.Since(began) > c.within {
				<-room
				continue
			}
			all.Go(func() {
				defer func() { <-room }()
				r := c.plan(f, number, span)
				o, err := r.do()
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, err)
					return
				}
				if wrong := tallies[i].count(f, o, c.slack); len(wrong) > 0 {
					print("-seed %d -faults %q -first %d -runs 1 (%d ranks, victim %d, step %d of %d, %v, %s):\n\t%s", c.seed, f.name, number,
						r.ranks, r.Victim, r.At, r.Steps, r.delay, strings.Join(r.transports, " "), strings.Join(wrong, "\n\t"))
				}
			})
		}
	}
	all.Wait()
	print("%16s %6s %6s %8s %8s %8s %8s %6s %6s %10s %10s %10s", "fault", "runs", "failed", "right", "went on", "again", "missed", "left", "busy", "median", "longest", "promised")
	for i, f := range c.faults {
		t, bound := &tallies[i], c.bound(f)
		slices.Sort(t.times)
		median, longest := time.Duration(0), time.Duration(0)
		if n := len(t.times); n > 0 && bound > 0 {
			median, longest = t.times[n/2], t.times[n-1]
		}
		print("%16s %6d %6d %8d %8d %8d %8d %6d %6d %10v %10v %10v", f.name, t.runs, t.bad, t.culprit, t.goesOn, t.again, t.missed, t.left, t.busy,
			median.Round(time.Millisecond), longest.Round(time.Millisecond), bound)
		if t.skipped != "" {
			print("%16s is skipped: %s", f.name, t.skipped)
		}
		failed += t.bad
	}
	for _, name := range names("/dev/shm") {
		if strings.Contains(name, "mscclgo") && !slices.Contains(shared, name) {
			print("%s is left in /dev/shm", name)
			failed++
		}
	}
	if n := len(names(c.cache)); n != compiled {
		print("what was to be compiled before has %d files, and %d in the end", compiled, n)
		failed++
	}
	for _, name := range names(c.cache) {
		if strings.HasPrefix(name, ".") {
			print("%s is left in the cache", name)
			failed++
		}
	}
	return failed, errors.Join(errs...)
}
