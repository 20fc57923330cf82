// Soak runs groups of ranks on this machine, in each of which one rank has a fault, and
// checks what the others are told: that they end in time, with an error that names that
// rank, that no element that they took for right is wrong, and that nothing is left over.
//
//	go run ./internal/test/soak -runs 100
//
// Runs are made from a seed, the fault and a number. The line of a run that fails has the
// flags that repeat it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
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
	log.SetFlags(0)
	var cfg config
	list := flag.String("faults", "", "`names` of faults, separated by commas; all by default")
	flag.Uint64Var(&cfg.seed, "seed", rand.Uint64(), "of the runs")
	flag.IntVar(&cfg.runs, "runs", 20, "runs of each fault")
	flag.IntVar(&cfg.first, "first", 0, "number of the first run")
	flag.IntVar(&cfg.ranks, "n", 5, "most ranks of a run")
	flag.DurationVar(&cfg.timeout, "timeout", 2*time.Second, "of the ranks' waits")
	flag.Float64Var(&cfg.slack, "slack", 1, "times the promised times are allowed, on a busy machine")
	flag.Parse()
	var err error
	if cfg.faults, err = choose(*list); err != nil {
		log.Fatal(err)
	}
	if flag.NArg() > 0 || cfg.runs < 1 || cfg.first < 0 || cfg.ranks < 2 || cfg.slack < 1 || cfg.timeout < time.Second {
		log.Fatal("there are no arguments; -runs is at least 1, -first 0, -n 2, -slack 1 and -timeout 1s")
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
	slack              float64
	timeout            time.Duration // of waits
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

// soak does all runs and prints a line for each fault. It returns how many failed.
func (c *config) soak(ctx context.Context, print func(format string, args ...any)) (failed int, err error) {
	cache, err := os.MkdirTemp("", "mscclgo-soak-cache-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(cache)
	span, err := calibrate(ctx, cache, c.timeout)
	if err != nil {
		return 0, err
	}
	print("seed %d; a run without a fault takes %v", c.seed, span.Round(time.Millisecond))
	print("%16s %6s %6s %7s %12s %12s %12s", "fault", "runs", "failed", "missed", "median", "longest", "promised")
	for _, f := range c.faults {
		if f.waits {
			f.bound += c.timeout
		}
		var times []time.Duration
		bad, missed := 0, 0
		for number := c.first; number < c.first+c.runs; number++ {
			r := plan(c.seed, f, number, c.ranks, span, c.timeout)
			r.cache = cache
			o, err := r.do()
			if err != nil {
				return failed, err
			}
			if o.missed {
				missed++
			} else {
				times = append(times, o.late)
				if f.bound > 0 && o.late > time.Duration(float64(f.bound)*c.slack) {
					o.wrong = append(o.wrong, fmt.Sprintf("the last error came after %v", o.late))
				}
			}
			if len(o.wrong) > 0 {
				bad++
				print("-seed %d -faults %q -first %d -runs 1 (%d ranks, victim %d, step %d of %d, %v):\n\t%s", c.seed, f.name, number,
					r.ranks, r.Victim, r.At, r.Steps, r.delay, strings.Join(o.wrong, "\n\t"))
			}
		}
		slices.Sort(times)
		median, longest := time.Duration(0), time.Duration(0)
		if n := len(times); n > 0 && f.bound > 0 {
			median, longest = times[n/2], times[n-1]
		}
		print("%16s %6d %6d %7d %12v %12v %12v", f.name, c.runs, bad, missed,
			median.Round(time.Millisecond), longest.Round(time.Millisecond), f.bound)
		failed += bad
	}
	return failed, nil
}
