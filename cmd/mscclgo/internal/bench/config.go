// Package bench checks and times collectives over a range of sizes, alone or beside
// NCCL, and reports the results as a table, as JSON and as a plot. It is the work of
// mscclgo bench.
package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo/collective"
)

// Config is what to measure, the same on all ranks.
type Config struct {
	Collectives []collective.Kind
	Algorithms  []string // names; or "auto", by Tuning; or "all" that fit
	Tuning      *collective.Tuning
	Type, Op    string
	Root        int
	Places      []string // "out" and "in"
	Sizes       []uint64 // bytes of a collective's size; see [collective.Kind.Parts]
	Offset      uint64   // bytes by which buffers are off their alignment
	Iters       int      // operations in a graph, or launched one after the other
	Warmup      int      // operations before the timed ones, at least
	Replays     int      // times that Iters operations are timed in a round
	Rounds      int      // in which all contestants take turns
	Graph       bool
	Overlap     bool // operations begin while those before end; see collective.Call
	Check       bool
	Blocks      int           // of a grid, at most; 0 is by Tuning, or 64
	Threads     int           // of a block; 0 is by Tuning, or 512
	SMs         []int         // bounds of the blocks of every kernel, which take turns; none is no bound
	Compare     []string      // "nccl", "nccl-sym", "all-to-all-v", "sends" and "sends-unshared"
	Unprepared  bool          // time calls on any buffer too
	Budget      time.Duration // for Tune; 0 is as long as it takes
	NCCL        string        // the library's file; "" searches
}

// Validate returns the error of a configuration that is invalid for a number of ranks.
func (c *Config) Validate(ranks int) error {
	typ, err := collective.ParseType(c.Type)
	if err != nil {
		return err
	}
	op, err := collective.ParseOp(c.Op)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(c.Collectives, collective.Kind.Reduces) && !collective.CanReduce(typ, op) {
		return fmt.Errorf("elements of %v are not reduced by %v", typ, op)
	}
	switch {
	case len(c.Sizes) == 0 || slices.Min(c.Sizes) == 0:
		return errors.New("there must be at least one size, and sizes start at 1")
	case c.Offset > maxSize:
		return fmt.Errorf("an offset of %d bytes is more than %d", c.Offset, uint64(maxSize))
	case c.Iters < 1 || c.Replays < 1 || c.Rounds < 1:
		return errors.New("there must be at least one operation to time, one replay and one round")
	case c.Warmup < 0:
		return fmt.Errorf("%d operations before the timed ones: the number must not be negative", c.Warmup)
	case c.Blocks < 0 || c.Threads < 0:
		return fmt.Errorf("%d blocks of %d threads: the numbers must not be negative", c.Blocks, c.Threads)
	case slices.ContainsFunc(c.SMs, func(most int) bool { return most < 1 }):
		return fmt.Errorf("at most %d multiprocessors: the numbers start at 1", slices.Min(c.SMs))
	case c.Budget < 0:
		return fmt.Errorf("a budget of %v is negative", c.Budget)
	case c.Root < 0 || c.Root >= ranks:
		return fmt.Errorf("the root is rank %d, and there are %d ranks", c.Root, ranks)
	case len(c.Collectives) == 0 || len(c.Algorithms) == 0 || len(c.Places) == 0:
		return errors.New("there is no collective, algorithm or place to measure")
	}
	for _, place := range c.Places {
		if place != "in" && place != "out" {
			return fmt.Errorf(`a place is "in" or "out", not %q`, place)
		}
	}
	if !slices.Contains(c.Places, "out") && !slices.ContainsFunc(c.Collectives, func(k collective.Kind) bool { return k.Internal().InPlace() }) {
		return fmt.Errorf("%s is not done in place", c.Collectives[0])
	}
	for _, other := range c.Compare {
		if other != withNCCL && other != withNCCLSym && other != withCounts && other != withSends && other != withUnshared {
			return fmt.Errorf("there is no comparison with %q, only with %s, %s, %s, %s and %s", other, withNCCL, withNCCLSym, withCounts, withSends, withUnshared)
		}
		if !slices.ContainsFunc(c.Collectives, func(k collective.Kind) bool { return slices.Contains(c.beside(k), other) }) {
			return fmt.Errorf("%s is not compared with %s", c.Collectives[0], other)
		}
	}
	for _, name := range c.Algorithms {
		known := name == algoAuto || name == algoAll || slices.ContainsFunc(c.Collectives, func(k collective.Kind) bool {
			return slices.Contains(k.Algorithms(), name)
		})
		if !known {
			return fmt.Errorf("algorithm %q is none of auto, all and %s's: %v", name, c.Collectives[0], c.Collectives[0].Algorithms())
		}
	}
	return nil
}

// The algorithms that are not a collective's own.
const (
	algoAuto = "auto"
	algoAll  = "all"
)

// What to compare with.
const (
	withNCCL    = "nccl"
	withNCCLSym = "nccl-sym"
	withCounts  = "all-to-all-v" // beside an all-to-all
	withSends   = "sends"        // beside an all-to-all or a send-receive
	// The same in buffers that are not shared, so that no message is stored where it belongs.
	withUnshared = "sends-unshared"
)

// beside returns the names of what is timed beside a collective's algorithms.
func (c *Config) beside(k collective.Kind) []string {
	names := c.withAnyNCCL()
	for _, sends := range []string{withUnshared, withSends} {
		if (k == collective.AllToAll || k == collective.SendReceive) && slices.Contains(c.Compare, sends) {
			names = append([]string{sends}, names...)
		}
	}
	if k == collective.AllToAll && slices.Contains(c.Compare, withCounts) {
		names = append([]string{withCounts}, names...)
	}
	if c.Unprepared {
		names = append([]string{withUnprepared}, names...)
	}
	return names
}

// withAnyNCCL returns the entries of Compare that are NCCL's.
func (c *Config) withAnyNCCL() []string {
	return slices.DeleteFunc(slices.Clone(c.Compare), func(name string) bool { return name != withNCCL && name != withNCCLSym })
}

// Sizes returns the sizes from the first to the last, each factor times the one before.
//
// Errors: for a first size of 0, a last one below the first, and factors below 2.
func Sizes(first, last, factor uint64) ([]uint64, error) {
	if first == 0 || last < first || factor < 2 || last > maxSize {
		return nil, fmt.Errorf("sizes from %d to %d by factor %d: they start at 1 and end at %d at most, the last is not below the first, and the factor is at least 2", first, last, factor, uint64(maxSize))
	}
	var sizes []uint64
	for size := first; size <= last; size *= factor {
		sizes = append(sizes, size)
		if size > last/factor {
			break
		}
	}
	return sizes, nil
}

// maxSize bounds sizes, so that their sums stay numbers.
const maxSize = 1 << 50
