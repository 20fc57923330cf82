package communicator

import (
	"context"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Sharers says how many ranks have this rank's device, this one included.
func (c *Communicator) Sharers() int { return c.sharers }

// MaxBlocks says how many blocks of so many threads, with so many bytes of
// dynamic shared memory, a rank may launch of a kernel whose blocks wait for
// peers: as many as a device holds at once, divided among the ranks that share
// it, but no more than [devicecode.MaxBlocks]. With more, blocks that wait could
// keep those out that they wait for. It is the same on all ranks: the least.
//
// When it returns, all ranks have loaded the kernel. It is wise not to launch
// before: the driver may load code only when no kernel runs (CUDA C++ Programming
// Guide, "Lazy Loading"), so not while one waits for a rank of the same process
// and GPU that has yet to load it. Collective.
//
// Errors: on all ranks ErrUnsupported when not even one block of each rank fits.
func (c *Communicator) MaxBlocks(ctx context.Context, k *gpu.Kernel, threads, dynamicShared int) (int, error) {
	call := c.begin("max blocks", "communicator: blocks of "+k.Name())
	resident, err := k.MaxResidentBlocks(threads, dynamicShared)
	w := wire.NewWriter(4)
	w.U32(uint32(min(resident/c.sharers, devicecode.MaxBlocks)))
	all, err := call.collect(ctx, w.Bytes(), err)
	if err != nil {
		return 0, err
	}
	least := devicecode.MaxBlocks
	for rank, b := range all {
		r := wire.NewReader(b)
		fit := int(r.U32())
		if err := r.End(); err != nil {
			return 0, call.errorf(mscclgo.ErrRemote, rank, "its message is malformed: %w", err)
		}
		if fit == 0 {
			return 0, call.errorf(mscclgo.ErrUnsupported, rank, "not one block of %d threads with %d bytes of dynamic shared memory fits on the device at once for each of the ranks that share it; use less", threads, dynamicShared)
		}
		least = min(least, fit)
	}
	return least, nil
}
