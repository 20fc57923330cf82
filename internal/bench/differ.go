package bench

import (
	"context"
	_ "embed"
	"errors"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed differ.cu
var differSource []byte

// differ compares buffers where they are, on this rank's device.
type differ struct {
	comm   *communicator.Communicator
	module *gpu.Module
	kernel *gpu.Kernel
	count  *gpu.Buffer
}

func newDiffer(ctx context.Context, comm *communicator.Communicator) (_ *differ, err error) {
	d := &differ{comm: comm}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.module, err = devicecode.Load(ctx, comm.Device(), "differ.cu", differSource, devicecode.Options{}); err != nil {
		return nil, err
	}
	if d.kernel, err = d.module.Kernel("differ"); err != nil {
		return nil, err
	}
	d.count, err = comm.Device().Alloc(8)
	return d, err
}

// elements counts the elements of `size` bytes that differ in the first n bytes,
// behind what the stream has to do.
func (d *differ) elements(ctx context.Context, s *gpu.Stream, a, b *gpu.Buffer, n uint64, size int) (int, error) {
	const blocks, threads = 64, 256
	if err := s.Fill(d.count, 0, 0, d.count.Size()); err != nil {
		return 0, err
	}
	if err := d.kernel.Launch(s, gpu.Blocks(blocks, threads), a, b, n, uint64(size), d.count); err != nil {
		return 0, err
	}
	if err := d.comm.Synchronize(ctx, s); err != nil {
		return 0, err
	}
	found := make([]uint64, 1)
	err := gpu.CopyOut(found, d.count)
	return int(found[0]), err
}

func (d *differ) close() error {
	var errs []error
	if d.count != nil {
		errs = append(errs, d.count.Close())
	}
	if d.module != nil {
		errs = append(errs, d.module.Close())
	}
	return errors.Join(errs...)
}
