//go:build race

package detector

// Enabled reports whether Go's race detector is compiled in.
const Enabled = true
