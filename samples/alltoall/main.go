// Alltoall runs the all-to-alls of alltoall.cu over a range of sizes, checks
// every element on every rank, and prints a table.
package main

import "github.com/mscclgo/mscclgo/internal/bench"

func main() { bench.Sample("all-to-all") }
