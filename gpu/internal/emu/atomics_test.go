package emu_test

import (
	"math"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestAtomics(t *testing.T) {
	d := open(t)
	m := load(t, d, `
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct All {
  int add, sub, min, max, exch, cas;
  unsigned bits_and, bits_or, bits_xor, inc, dec;
  float f;
  double d;
  unsigned long long wide, widest;
  long long least;
  __half h[2];
  __half2 pair;
  __nv_bfloat16 b[2];
};
extern "C" __global__ void all(All* a, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  atomicAdd(&a->add, 3);
  atomicSub_system(&a->sub, 2);
  atomicMin(&a->min, -i);
  atomicMax_block(&a->max, i);
  atomicExch(&a->exch, i + 1);
  for (int seen = a->cas, old;; seen = old) {
    old = atomicCAS(&a->cas, seen, seen + 1);
    if (old == seen) break;
  }
  atomicAnd(&a->bits_and, ~(1u << i % 20));
  atomicOr(&a->bits_or, 1u << i % 20);
  atomicXor(&a->bits_xor, 1u << i % 20);
  atomicInc(&a->inc, 9);
  atomicDec(&a->dec, 9);
  atomicAdd(&a->f, 0.5f);
  atomicAdd(&a->d, 0.25);
  atomicAdd(&a->wide, 0x100000001ull);
  atomicMax(&a->widest, (unsigned long long)i << 40);
  atomicMin(&a->least, -((long long)i << 40));
  if (i < 512) { atomicAdd(&a->h[0], __half(1)); atomicAdd(&a->pair, __half2(1, 2)); }
  if (i < 100) atomicAdd(&a->b[1], __nv_bfloat16(1));
}
`)
	type all struct {
		Add, Sub, Min, Max, Exch, Cas    int32
		And, Or, Xor, Inc, Dec           uint32
		F                                float32
		D                                float64
		Wide, Widest                     uint64
		Least                            int64
		H0, H1, PairX, PairY, B0, B1, P0 uint16
		P1                               uint16
	}
	const n = 64 * 40
	mem := alloc(t, d, 256)
	write(t, d, mem.Ptr(), []all{{And: math.MaxUint32}})
	ran(t, d, kernelOf(t, m, "all"), shape(40, 64), mem.Ptr(), int32(n))
	got := read[all](t, d, mem.Ptr(), 1)[0]
	if got.Exch < 1 || got.Exch > n {
		t.Errorf("exchanged: %d", got.Exch)
	}
	want := all{
		Add: 3 * n, Sub: -2 * n, Min: 1 - n, Max: n - 1, Exch: got.Exch, Cas: n,
		And: 0xfff00000, Or: 1<<20 - 1, Xor: 0, Inc: n % 10, Dec: 0,
		F: n / 2, D: n / 4, Wide: n * 0x100000001, Widest: (n - 1) << 40, Least: -((n - 1) << 40),
		H0: 0x6000, PairX: 0x6000, PairY: 0x6400, B1: 0x42c8, // 512, 512, 1024, 100
	}
	testcmp.Equal(t, "results", got, want)
}
