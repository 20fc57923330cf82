package bench

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// tableRow is the result of one configuration, printed in the manner of nccl-tests.
type tableRow struct {
	Bytes  uint64        // the size that the collective's bandwidth is defined for
	Count  uint64        // elements
	Type   string        // of an element
	Op     string        // of a reduction, or "-"
	Algo   string        // the algorithm
	Blocks int           // of the kernel: as many multiprocessors, at most
	Place  string        // "in" or "out"
	Time   time.Duration // of one operation, the slowest rank's
	Bus    float64       // bus bandwidth over algorithm bandwidth: 2(n-1)/n for an all-reduce
	Wrong  int           // elements, of all ranks
	Others []tableOther  // others that do the same, in the order of the header's
}

// tableOther is a column of something else that does the same.
type tableOther struct {
	Time  time.Duration
	Ratio float64
}

// printHeader prints the head of the table. Each of others, which do the same, has a
// column for its time and one for a ratio.
func printHeader(w io.Writer, others ...string) {
	var names, units strings.Builder
	for _, name := range others {
		fmt.Fprintf(&names, " %12s %6s", name, "ratio")
		fmt.Fprintf(&units, " %12s %6s", "(us)", "")
	}
	fmt.Fprintf(w, "%12s %12s %5s %4s %12s %6s %5s %12s %9s %9s %7s%s\n",
		"size", "count", "type", "op", "algo", "blocks", "place", "time", "algbw", "busbw", "#wrong", &names)
	line := fmt.Sprintf("%12s %12s %5s %4s %12s %6s %5s %12s %9s %9s %7s%s",
		"(B)", "(elements)", "", "", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", &units)
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// print prints the row. Bandwidths are in 10^9 bytes a second.
func (r tableRow) print(w io.Writer) {
	var others strings.Builder
	for _, o := range r.Others {
		fmt.Fprintf(&others, " %12.2f %6.2f", micros(o.Time), o.Ratio)
	}
	algbw := r.algBW()
	fmt.Fprintf(w, "%12d %12d %5s %4s %12s %6d %5s %12.2f %9.2f %9.2f %7d%s\n",
		r.Bytes, r.Count, r.Type, r.Op, r.Algo, r.Blocks, r.Place, micros(r.Time), algbw, algbw*r.Bus, r.Wrong, &others)
}

// algBW returns the size over the time, in 10^9 bytes a second.
func (r tableRow) algBW() float64 {
	if r.Time <= 0 {
		return 0
	}
	return float64(r.Bytes) / float64(r.Time.Nanoseconds())
}
