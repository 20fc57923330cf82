package communicator

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// Sharers says how many ranks have this rank's device, this one included.
func (c *Communicator) Sharers() int { return c.sharers }

// MaxBlocks says how many blocks of so many threads, with so many bytes of
// dynamic shared memory, a rank may launch of a kernel whose blocks wait for
// peers: as many as the device holds at once, divided among the ranks that share
// it, but no more than [devicecode.MaxBlocks]. With more, blocks that wait could
// keep those out that they wait for.
//
// Errors: ErrUnsupported when not even one block of each rank fits.
func (c *Communicator) MaxBlocks(k *gpu.Kernel, threads, dynamicShared int) (int, error) {
	resident, err := k.MaxResidentBlocks(threads, dynamicShared)
	if err != nil {
		return 0, err
	}
	if resident < c.sharers {
		return 0, mscclgo.Errorf(mscclgo.ErrUnsupported, "communicator: blocks of "+k.Name(),
			"%d blocks of %d threads with %d bytes of dynamic shared memory fit on %v at once, and %d ranks share it; use less", resident, threads, dynamicShared, c.dev, c.sharers).At(c.Rank(), mscclgo.NoRank)
	}
	return min(resident/c.sharers, devicecode.MaxBlocks), nil
}
