package emu_test

import (
	"math/bits"
	"testing"
)

// Each kernel below computes what a warp function must give from the definition
// and counts the lanes in which it does not.
func TestWarpFunctions(t *testing.T) {
	d := open(t)
	m := load(t, d, `
#include <cuda_fp16.h>
#define EXPECT(what) do { if (!(what)) atomicAdd(bad + __LINE__, 1); } while (0)

extern "C" __global__ void shuffles(int* bad) {
  int i = threadIdx.x % 32;
  for (int width = 2; width <= 32; width *= 2) {
    int part = i / width * width, inside = i % width;
    for (int n = 0; n < 32; n++) {
      EXPECT(__shfl_sync(~0u, i, n, width) == part + n % width);
      EXPECT(__shfl_up_sync(~0u, i, n, width) == (inside < n ? i : i - n));
      EXPECT(__shfl_down_sync(~0u, i, n, width) == (inside + n >= width ? i : i + n));
      int x = i ^ n;
      EXPECT(__shfl_xor_sync(~0u, i, n, width) == (x < part + width ? x : i));
    }
  }
  EXPECT(__shfl_xor_sync(~0u, i * 0x100000001ll, 1) == (i ^ 1) * 0x100000001ll);
  EXPECT(__shfl_down_sync(~0u, i + 0.5, 1) == (i == 31 ? i : i + 1) + 0.5);
  EXPECT(__shfl_sync(~0u, i + 0.5f, 3) == 3.5f);
  EXPECT(float(__shfl_sync(~0u, __half(i), 9)) == 9.0f);
  __half2 pair = __shfl_sync(~0u, __half2(i, -i), 8);
  EXPECT(float(pair.x) == 8 && float(pair.y) == -8);
}

extern "C" __global__ void divergent(int* bad) {
  int i = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int round = 0; round < 100; round++) {
    unsigned odd = 0xaaaaaaaau, mine = i & 1 ? odd : ~odd;
    if (i & 1) {
      EXPECT(__shfl_sync(mine, i + 100 * warp, 5) == 5 + 100 * warp);
      EXPECT(__ballot_sync(mine, i > 15) == (odd & 0xffff0000u));
    } else {
      EXPECT(__ballot_sync(mine, i < 16) == (~odd & 0xffffu));
      if (i < 8) { EXPECT(__reduce_add_sync(0x55u, i) == 12); __syncwarp(0x55u); }
    }
    int sum = i;
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    EXPECT(sum == 496);
  }
}

extern "C" __global__ void votes(int* bad) {
  int i = threadIdx.x;
  EXPECT(__any_sync(~0u, i == 3) && !__any_sync(~0u, i > 31) && __all_sync(~0u, i < 32) && !__all_sync(~0u, i));
  EXPECT(__ballot_sync(~0u, i % 3 == 0) == 0x49249249u);
  unsigned same = __match_any_sync(~0u, i / 8);
  EXPECT(same == 0xffu << i / 8 * 8);
  int all;
  EXPECT(__match_all_sync(~0u, 7, &all) == ~0u && all);
  EXPECT(__match_all_sync(~0u, i, &all) == 0 && !all);
  EXPECT(__reduce_add_sync(~0u, 2 * i) == 992 && __reduce_min_sync(~0u, i - 5) == -5 && __reduce_max_sync(~0u, i - 50) == -19);
  EXPECT(__reduce_min_sync(~0u, unsigned(i - 5)) == 0 && __reduce_max_sync(~0u, unsigned(i - 5)) == ~0u);
  EXPECT(__reduce_and_sync(~0u, 64u | i) == 64 && __reduce_or_sync(~0u, 1u << i) == ~0u && __reduce_xor_sync(~0u, 1u << i) == ~0u);
}

extern "C" __global__ void ended(int* bad) {
  int i = threadIdx.x;
  if (i >= 20) return;  // lanes that ended need not come
  EXPECT(__ballot_sync(~0u, 1) == (i < 32 ? 0xfffffu : 0));
  if (i == 0) return;
  EXPECT(__shfl_down_sync(~0u, i, 1) == (i == 19 ? 19 : i + 1));
  __syncwarp();
}

extern "C" __global__ void active(unsigned* out) {
  int i = threadIdx.x;
  __syncthreads();
  if (i % 3 == 0) {
    out[i] = __activemask();
  } else {
    unsigned lanes = __activemask();
    out[i] = __ballot_sync(lanes, 1);
  }
}
`)
	const lines = 128
	bad := alloc(t, d, lines*4)
	for name, threads := range map[string]uint32{"shuffles": 96, "divergent": 128, "votes": 32, "ended": 32} {
		write(t, d, bad.Ptr(), make([]int32, lines))
		ran(t, d, kernelOf(t, m, name), shape(1, threads), bad.Ptr())
		for line, n := range read[int32](t, d, bad.Ptr(), lines) {
			if n != 0 {
				t.Errorf("%s: line %d failed %d times", name, line, n)
			}
		}
	}
	ran(t, d, kernelOf(t, m, "active"), shape(1, 32), bad.Ptr())
	for i, mask := range read[uint32](t, d, bad.Ptr(), 32) {
		want := uint32(0x49249249)
		if i%3 != 0 {
			want = ^want
		}
		if mask != want {
			t.Errorf("active lanes of %d: %032b (%d), want %032b", i, mask, bits.OnesCount32(mask), want)
		}
	}
}
