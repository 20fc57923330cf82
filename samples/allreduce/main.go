// Allreduce runs the all-reduces of allreduce.cu, ring.cu and hier.cu over a range
// of sizes, checks every element on every rank, and prints a table. On several
// hosts it is hier.cu's.
package main

import "github.com/mscclgo/mscclgo/internal/bench"

func main() { bench.Sample("all-reduce") }
