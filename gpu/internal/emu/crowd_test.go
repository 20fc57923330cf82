package emu_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

const crowdSource = `
__device__ void awaitStep(unsigned* words, unsigned step) {
  while (atomicAdd(words, 0u) < step) mscclgo::emu::yield();
}
extern "C" __global__ void crowd(unsigned* words, unsigned works) {
  if (works && blockIdx.x == 0) {
    awaitStep(words, 1);
    volatile unsigned work = 0;
    for (unsigned i = 0; i < 30000000; i++) work = work + 1;
    atomicAdd(words + 1, 1u);
  }
  awaitStep(words, 2);
}
`

const mostCores = 64 // of more a crowd takes too many threads

// TestCrowd has a block of many, which all wait, work for a while between two waits: it does not
// sleep for the longer in the second, as its work is not what it costs to look.
func TestCrowd(t *testing.T) {
	if runtime.NumCPU() > mostCores {
		t.Skipf("a crowd on %d cores is large", runtime.NumCPU())
	}
	best := time.Hour
	for range 4 { // a machine that does other work may let it wait too
		best = min(best, crowded(t, 9*runtime.NumCPU()+1)) // more than CROWD of block.c a core
	}
	if best > 200*time.Millisecond {
		t.Errorf("the block has waited for %v at least, when what it waited for was there", best)
	}
}

// crowded has at least so many blocks wait, on some devices, and returns for how long the kernel of
// the one that works goes on when nothing is left to wait for.
func crowded(t *testing.T, blocks int) time.Duration {
	t.Helper()
	type part struct {
		backend.Device
		words uint64
		s     backend.Stream
	}
	var parts []part
	tell := func(step uint32) {
		for _, p := range parts {
			write(t, p.Device, p.words, []uint32{step})
		}
	}
	defer func() { // also when the test has failed
		tell(2)
		for _, p := range parts {
			must(t, p.s.Synchronize(deadline(t)), p.s.Close())
		}
	}()
	for blocks > 0 {
		d := open(t)
		p := part{d, alloc(t, d, 8).Ptr(), stream(t, d)}
		write(t, d, p.words, []uint32{0, 0})
		parts = append(parts, p)
		here := min(blocks, d.Info().Multiprocessors*d.Info().MaxBlocksPerSM)
		works := uint32(0)
		if len(parts) == 1 {
			works = 1
		}
		must(t, p.s.Launch(kernelOf(t, load(t, d, crowdSource), "crowd"), shape(uint32(here), 1), pack(p.words, works)))
		blocks -= here
	}
	time.Sleep(50 * time.Millisecond) // most of them wait
	tell(1)
	first := parts[0]
	for end := time.Now().Add(time.Minute); read[uint32](t, first.Device, first.words+4, 1)[0] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the block that works does not end")
		}
	}
	start := time.Now()
	write(t, first.Device, first.words, []uint32{2})
	must(t, first.s.Synchronize(deadline(t)))
	return time.Since(start)
}

const abortSource = `
#include <mscclgo/wait.cuh>
extern "C" __global__ void await(mscclgo::GroupStatus* status) {
  mscclgo::Watch watch = {status, 3600000000000ull, 0, 0};
  mscclgo::waitUntil(watch, [] { return false; });
}
`

// TestCrowdAborted has a crowd of blocks wait whose group then ends all waits: they do not sleep on,
// though a wait looks for that once in many polls only.
func TestCrowdAborted(t *testing.T) {
	if runtime.NumCPU() > mostCores/4 {
		t.Skipf("a crowd on %d cores is large", runtime.NumCPU())
	}
	const soon = 250 * time.Millisecond
	best := time.Hour
	for tries := 0; best > soon; tries++ {
		if tries == 10 { // a machine that does other work may let them wait too
			t.Fatalf("the blocks have waited for %v at least after their group had ended", best)
		}
		best = min(best, abortedCrowd(t, 60*runtime.NumCPU()))
	}
}

// abortedCrowd returns for how long at least so many blocks wait on.
func abortedCrowd(t *testing.T, blocks int) time.Duration {
	t.Helper()
	var streams []backend.Stream
	var ends []*uint32
	for blocks > 0 {
		d := open(t)
		status, err := d.AllocHost(1 << 16)
		must(t, err)
		here := min(blocks, d.Info().Multiprocessors*d.Info().MaxBlocksPerSM)
		s := stream(t, d)
		must(t, s.Launch(kernelOf(t, load(t, d, abortSource), "await"), shape(uint32(here), 512), pack(status.Ptr())))
		streams, ends = append(streams, s), append(ends, (*uint32)(unsafe.Pointer(&status.Bytes()[0])))
		blocks -= here
	}
	time.Sleep(time.Second) // until they sleep for long
	start := time.Now()
	for _, end := range ends {
		atomic.StoreUint32(end, 1)
	}
	for _, s := range streams {
		must(t, s.Synchronize(deadline(t)), s.Close())
	}
	return time.Since(start)
}
