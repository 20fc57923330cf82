//go:build !race

// Package detector tells tests whether Go's race detector watches them.
package detector

// Enabled reports whether Go's race detector is compiled in.
const Enabled = false
