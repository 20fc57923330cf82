package race_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

const beyondSource = `#include <mscclgo/group.cuh>
extern "C" __global__ void touch(mscclgo::PeerMemory peers, unsigned rank, unsigned long long at, unsigned how) {
  auto* p = peers.of<unsigned char>(rank) + at;
  if (how == 0) *p = 1;
  if (how == 1) atomicAdd(reinterpret_cast<unsigned*>(p), 1u);
  if (how == 2) *reinterpret_cast<unsigned long long*>(p) = *reinterpret_cast<unsigned long long*>(p - 8);
}
`

// TestBeyond has rank 0 access rank 1's buffer behind its end, and a rank that is none.
func TestBeyond(t *testing.T) {
	for _, c := range []struct {
		rank, how uint32
		at        uint64
		says      string
	}{
		{1, 0, 3999, ""},
		{1, 0, 4096, "illegal memory access at 0x|: a write 96 bytes behind the 4000 bytes of memory of emu:1, allocated at beyond_test.go:58; at beyond.cu:4"},
		{1, 0, 4090, "thread (0,0,0): a write 90 bytes behind the 4000 bytes of memory of emu:1, allocated at beyond_test.go:58; at beyond.cu:4"},
		{1, 1, 4000, "a write 0 bytes behind the 4000 bytes of memory of emu:1, allocated at beyond_test.go:58; at beyond.cu:5"},
		{1, 2, 3996, "a write of 8 bytes across the end of the 4000 bytes of memory of emu:1, allocated at beyond_test.go:58; at beyond.cu:6"},
		{1, 2, 4004, "a read of 8 bytes across the end of the 4000"},
		{2, 0, 0, "of(2) of a PeerMemory of 2 ranks; at beyond.cu:3"},
	} {
		err := beyond(t, c.rank, c.at, c.how)
		if c.says == "" && err != nil {
			t.Error(err)
		}
		for _, part := range strings.Split(c.says, "|") {
			if err == nil && part != "" || err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}

// beyond has rank 0 make the access, and returns its error.
func beyond(t *testing.T, rank uint32, at uint64, how uint32) error {
	finder, err := gpu.FindRaces()
	if err != nil {
		t.Fatal(err)
	}
	defer finder.Close()
	return communicator.Local(t.Context(), 2, "emu", func(ctx context.Context, comm *communicator.Communicator) error {
		buffer, err := comm.Device().Alloc(4000)
		if err != nil {
			return err
		}
		shared, err := comm.Share(ctx, buffer)
		if err != nil || comm.Rank() == 1 {
			return errors.Join(err, comm.Barrier(ctx))
		}
		peers, err := shared.Handle()
		if err != nil {
			return err
		}
		module, err := devicecode.Load(ctx, comm.Device(), "beyond.cu", []byte(beyondSource), devicecode.Options{})
		if err != nil {
			return err
		}
		kernel, err := module.Kernel("touch")
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		return errors.Join(kernel.Launch(stream, gpu.Blocks(1, 1), peers, rank, at, how), comm.Synchronize(ctx, stream), comm.Barrier(ctx))
	})
}
