package devicecode

import (
	"context"

	"github.com/mscclgo/mscclgo/gpu"
)

// Load compiles a source for a device and loads it there. It is [Compile] and
// [gpu.Device.LoadModule]; the module is the caller's to close.
//
// Errors: theirs.
func Load(ctx context.Context, dev *gpu.Device, name string, source []byte, o Options) (*gpu.Module, error) {
	image, err := Compile(ctx, dev.Info().Arch, name, source, o)
	if err != nil {
		return nil, err
	}
	return dev.LoadModule(image)
}
