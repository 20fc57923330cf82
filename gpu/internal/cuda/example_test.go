package cuda_test

import (
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/cuda"
)

// A machine has GPUs, or there is an error.
func ExampleDriver() {
	infos, err := cuda.Driver().List()
	fmt.Println(len(infos) > 0 || errors.Is(err, mscclgo.ErrUnsupported))
	// Output: true
}
