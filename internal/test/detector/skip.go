package detector

import "testing"

// SkipKernels skips a test in which C and kernels do the work, of which Go's race detector sees nothing.
// It runs without the detector, in "make test".
func SkipKernels(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("C and kernels do the work, of which Go's race detector sees nothing")
	}
}
