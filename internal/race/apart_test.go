package race_test

import (
	"context"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const apartSource = `#include <mscclgo/packet.cuh>
extern "C" __global__ void apart(mscclgo::LL128Packet* packet) {
  mscclgo::Piece<mscclgo::LL128Packet> piece = {};
  const bool flagged = mscclgo::LL128Packet::flagged(threadIdx.x);
#if defined(MENDED)
  piece.write(packet, threadIdx.x, 1);
#else
  if (flagged) piece.write(packet, threadIdx.x, 1);
  if (!flagged) piece.write(packet, threadIdx.x, 1);
#endif
}
`

// TestLanesApart has lanes write an LL128 packet in two branches, of which the one with the flags goes
// first on a GPU.
func TestLanesApart(t *testing.T) {
	finder, err := gpu.FindRaces()
	if err != nil {
		t.Fatal(err)
	}
	defer finder.Close()
	run := func(defines ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return communicator.Local(ctx, 1, "emu", func(ctx context.Context, comm *communicator.Communicator) error {
			module, err := devicecode.Load(ctx, comm.Device(), "apart.cu", []byte(apartSource), devicecode.Options{Defines: defines})
			if err != nil {
				return err
			}
			kernel, err := module.Kernel("apart")
			if err != nil {
				return err
			}
			packet, err := comm.Device().Alloc(512)
			if err != nil {
				return err
			}
			return launchWarp(ctx, comm, kernel, packet)
		})
	}
	if err := run("MENDED"); err != nil {
		t.Error(err)
	}
	testerr.Expect(t, run(), mscclgo.ErrSystem, "lanes of a warp call LL128Packet::write at lines 9 and 8", "together")
}

func launchWarp(ctx context.Context, comm *communicator.Communicator, kernel *gpu.Kernel, args ...any) error {
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	if err := kernel.Launch(stream, gpu.Blocks(1, 32), args...); err != nil {
		return err
	}
	return stream.Synchronize(ctx)
}
