package testdev_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// Two ranks of a test have devices of their own where there are two.
// A test that needs what only NVIDIA GPUs have asks first.
func ExampleCUDA() {
	fmt.Println(testdev.CUDA() == (os.Getenv(testdev.Env) == "cuda"))
	// Output: true
}

func TestNameWraps(t *testing.T) {
	names := map[string]bool{}
	for i := range 64 {
		names[testdev.Name(t, i)] = true
	}
	if len(names) == 0 || len(names) == 64 {
		t.Errorf("64 ranks got %d devices", len(names))
	}
	d := testdev.Open(t, 0)
	if d.String() != testdev.Name(t, 0) {
		t.Errorf("opened %v for %s", d, testdev.Name(t, 0))
	}
}
