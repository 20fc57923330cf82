package devicecode_test

import (
	"context"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestLoadBesideKernel: a rank loads the code that another one runs, and starts the kernel
// that the other's waits for.
func TestLoadBesideKernel(t *testing.T) {
	const source = `
extern "C" __global__ void await(volatile unsigned* flag, unsigned tries) {
  while (*flag == 0 && tries-- != 0) __nanosleep(1000);
}
extern "C" __global__ void raise(volatile unsigned* flag) { *flag = 1; }`
	const tries = 20_000_000 // for 20 s or more
	first, second := testdev.Open(t, 0), testdev.Open(t, 0)
	flag := upload(t, first, []uint32{0})
	await := kernels(t, first, "flag.cu", source)("await")
	waiting, other := newStream(t, first), newStream(t, second)
	one := gpu.Blocks(1, 1)
	check(t, await.Launch(waiting, one, flag, uint32(tries)))

	raise := kernels(t, second, "flag.cu", source)("raise")
	if done, err := waiting.Query(); done || err != nil {
		t.Errorf("the code was loaded when the kernel had ended by itself: %v, %v", done, err)
	}
	check(t, raise.Launch(other, one, flag.Ptr()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, other.Synchronize(ctx))
	check(t, waiting.Synchronize(ctx))
}

// TestVariablesOfUsers: each load of a module has variables of its own.
func TestVariablesOfUsers(t *testing.T) {
	const source = `
__device__ unsigned calls;
extern "C" __global__ void count(unsigned* out) { *out = ++calls; }`
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	for range 2 {
		count := kernels(t, d, "count.cu", source)("count")
		for want := uint32(1); want <= 3; want++ {
			out := upload(t, d, []uint32{0})
			check(t, count.Launch(s, gpu.Blocks(1, 1), out))
			check(t, s.Synchronize(t.Context()))
			got := make([]uint32, 1)
			check(t, gpu.CopyOut(got, out))
			if got[0] != want {
				t.Errorf("call %d of this load is number %d", want, got[0])
			}
		}
	}
}
