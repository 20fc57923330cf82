package emu_test

import "testing"

const benchSource = `
extern "C" __global__ void nothing() {}
extern "C" __global__ void barriers(int n) { for (int i = 0; i < n; i++) __syncthreads(); }
extern "C" __global__ void copy(const uint4* in, uint4* out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = in[i];
}
`

func BenchmarkLaunch(b *testing.B) {
	d := open(b)
	k := kernelOf(b, load(b, d, benchSource), "nothing")
	for b.Loop() {
		ran(b, d, k, shape(8, 256))
	}
}

// BenchmarkBarrier times one barrier of 256 threads.
func BenchmarkBarrier(b *testing.B) {
	d := open(b)
	k := kernelOf(b, load(b, d, benchSource), "barriers")
	ran(b, d, k, shape(1, 256), int32(b.N))
}

func BenchmarkCopy(b *testing.B) {
	d := open(b)
	k := kernelOf(b, load(b, d, benchSource), "copy")
	const size = 16 << 20
	in, out := alloc(b, d, size), alloc(b, d, size)
	b.SetBytes(size)
	for b.Loop() {
		ran(b, d, k, shape(8, 256), in.Ptr(), out.Ptr(), int32(size/16))
	}
}
