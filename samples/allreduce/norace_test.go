//go:build !race

package main

const largestEmulated = 64 << 20
