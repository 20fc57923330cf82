package communicator

import (
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// MaxBlocks returns how many blocks of a kernel whose blocks wait for peers a rank
// may launch, with the given threads a block and bytes of dynamic shared memory: as
// many as are resident on the device at once, divided among the ranks that share
// the device, and at most [devicecode.MaxBlocks]. With more, blocks that wait could
// keep out the blocks that they wait for. All ranks get the same number, the least.
//
// When it returns, all ranks have loaded the kernel. Do not launch it before: the
// driver may load code only while no kernel runs (CUDA C++ Programming Guide, "Lazy
// Loading"). A kernel could then wait for a rank of the same process and GPU that
// cannot load it. Collective.
//
// Errors: ErrInvalid for a nil kernel; ErrUnsupported, on all ranks, when not even
// one block of each rank fits. An error of one rank is ErrRemote on the others.
func (c *Communicator) MaxBlocks(ctx context.Context, k *gpu.Kernel, threads, dynamicShared int) (int, error) {
	op := "communicator: count blocks"
	if k != nil {
		op += " of " + k.Name()
	}
	if err := c.usable(op); err != nil {
		return 0, err
	}
	call := c.begin("max blocks", op)
	resident, err := 0, error(call.errorf(mscclgo.ErrInvalid, mscclgo.NoRank, "the kernel is nil"))
	if k != nil {
		resident, err = k.MaxResidentBlocks(threads, dynamicShared)
	}
	allowed := dynamicShared
	if err == nil && resident == 0 {
		var a gpu.Attributes
		a, err = k.Attributes()
		allowed = a.MaxDynamicShared
	}
	all, err := collectAll(ctx, call, roomWire, &room{min(resident/c.sharers, devicecode.MaxBlocks), resident, allowed}, err)
	if err != nil {
		return 0, err
	}
	least := devicecode.MaxBlocks
	for rank, its := range all {
		if its.fit == 0 {
			why := "; use less"
			switch {
			case its.resident > 0:
				why = " beside the blocks of the other ranks that share it; use less"
			case dynamicShared > its.allowed:
				why = fmt.Sprintf(": the kernel may have %d; call Kernel.SetMaxDynamicShared first", its.allowed)
			}
			return 0, call.errorf(mscclgo.ErrUnsupported, rank, "no block of %d threads with %d bytes of dynamic shared memory fits on the device%s", threads, dynamicShared, why)
		}
		least = min(least, its.fit)
	}
	return least, nil
}

// room is what a rank's device has room for: blocks of this rank, blocks of all that share the device, and bytes of dynamic
// shared memory that the kernel may have.
type room struct{ fit, resident, allowed int }

var roomWire = wire.For[room]()
