// Package table prints results of collectives as people who know nccl-tests
// expect them.
package table

import (
	"fmt"
	"io"
	"time"
)

// Row is the result of one configuration.
type Row struct {
	Bytes uint64        // the size that the collective's bandwidth is defined for
	Count uint64        // elements
	Type  string        // of an element
	Op    string        // of a reduction, or "-"
	Algo  string        // the algorithm
	Place string        // "in" or "out"
	Time  time.Duration // of one operation, the slowest rank's
	Bus   float64       // bus bandwidth over algorithm bandwidth: 2(n-1)/n for an all-reduce
	Wrong int           // elements, of all ranks
}

// Header prints the head of the table.
func Header(w io.Writer) {
	fmt.Fprintf(w, "%12s %12s %5s %4s %8s %5s %12s %9s %9s %7s\n",
		"size", "count", "type", "op", "algo", "place", "time", "algbw", "busbw", "#wrong")
	fmt.Fprintf(w, "%12s %12s %5s %4s %8s %5s %12s %9s %9s\n",
		"(B)", "(elements)", "", "", "", "", "(us)", "(GB/s)", "(GB/s)")
}

// Print prints the row. Bandwidths are in 10^9 bytes a second.
func (r Row) Print(w io.Writer) {
	algbw := 0.0
	if r.Time > 0 {
		algbw = float64(r.Bytes) / float64(r.Time.Nanoseconds())
	}
	fmt.Fprintf(w, "%12d %12d %5s %4s %8s %5s %12.2f %9.2f %9.2f %7d\n",
		r.Bytes, r.Count, r.Type, r.Op, r.Algo, r.Place,
		float64(r.Time.Nanoseconds())/1e3, algbw, algbw*r.Bus, r.Wrong)
}
