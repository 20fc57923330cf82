package emu_test

import "testing"

func TestSharedMemoryAndBarriers(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void reverse(int* out, int n) {
  __shared__ int fixed[256];
  extern __shared__ int dynamic[];
  int i = threadIdx.x;
  fixed[i] = blockIdx.x * n + i;
  __syncthreads();
  dynamic[i] = fixed[n - 1 - i];
  __syncthreads();
  out[blockIdx.x * n + i] = dynamic[i ^ 1];
}
`)
	const blocks, threads = 40, 256
	out := alloc(t, d, blocks*threads*4)
	cfg := shape(blocks, threads)
	cfg.DynamicShared = threads * 4
	ran(t, d, kernelOf(t, m, "reverse"), cfg, out.Ptr(), int32(threads))
	for i, v := range read[int32](t, d, out.Ptr(), blocks*threads) {
		if want := int32(i/threads*threads + threads - 1 - (i%threads ^ 1)); v != want {
			t.Fatalf("out[%d] = %d, want %d", i, v, want)
		}
	}
}
