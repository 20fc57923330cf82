// Reducescatter runs the reduce-scatters of reducescatter.cu over a range of sizes, checks
// every element on every rank, and prints a table.
package main

import "github.com/mscclgo/mscclgo/internal/bench"

func main() { bench.Sample("reduce-scatter") }
