//go:build race

package race_test

// detector is whether Go's race detector is on.
const detector = true
