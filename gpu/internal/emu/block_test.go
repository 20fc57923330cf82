package emu_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

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

// TestSharedDeclarations declares shared memory in every way that CUDA takes.
func TestSharedDeclarations(t *testing.T) {
	d := open(t)
	m := load(t, d, `
struct alignas(16) Quad { int v[4]; };
namespace far { extern __shared__ unsigned char bytes[]; __shared__ int counter; }
extern __shared__ __align__(16) char chars[];
template <class T> __device__ T* scratch() { static __shared__ T room[32]; return room; }
#define DECLARE(type, name) __shared__ type name
extern "C" {
__global__ void declarations(unsigned long long* out) {
  extern __shared__ Quad quads[];
  __shared__ extern int ints[];
  alignas(64) __shared__ int aligned[3];
  __shared__ alignas(128) char more[1];
  volatile __shared__ int watched;
  DECLARE(double, made)[2];
  if (threadIdx.x == 0) {
    far::counter = 7; watched = 8; more[0] = 9; made[1] = 0.5; aligned[2] = 3;
    scratch<int>()[31] = 10; scratch<short>()[31] = 11;
    quads[1].v[0] = 0x01020304;
  }
  __syncthreads();
  if (threadIdx.x == 1) {
    unsigned long long r[] = {
      (unsigned long long)far::counter, (unsigned long long)watched, (unsigned long long)more[0],
      (unsigned long long)(made[1] * 2), (unsigned long long)scratch<int>()[31], (unsigned long long)scratch<short>()[31],
      (unsigned long long)ints[4], (unsigned long long)chars[16], (unsigned long long)far::bytes[19],
      (unsigned long long)(size_t)quads % 128, (unsigned long long)(size_t)aligned % 64, (unsigned long long)(size_t)more % 128,
      (unsigned long long)aligned[2]};
    for (int i = 0; i < 13; i++) out[i] = r[i];
  }
}
}
`)
	out := alloc(t, d, 13*8)
	cfg := shape(1, 2)
	cfg.DynamicShared = 64
	ran(t, d, kernelOf(t, m, "declarations"), cfg, out.Ptr())
	want := []uint64{7, 8, 9, 1, 10, 11, 0x01020304, 4, 1, 0, 0, 0, 3}
	for i, v := range read[uint64](t, d, out.Ptr(), len(want)) {
		if v != want[i] {
			t.Errorf("out[%d] = %d, want %d", i, v, want[i])
		}
	}
}

// TestSharedMemoryIsFresh: no block finds zeros, or what another block left.
func TestSharedMemoryIsFresh(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void fresh(unsigned* bad) {
  __shared__ unsigned fixed[64];
  extern __shared__ unsigned dynamic[];
  int i = threadIdx.x;
  if (fixed[i] != 0xa5a5a5a5u || dynamic[i] != 0xa5a5a5a5u) atomicAdd(bad, 1u);
  fixed[i] = dynamic[i] = i;
}
`)
	bad := alloc(t, d, 4)
	write(t, d, bad.Ptr(), []uint32{0})
	cfg := shape(100, 64)
	cfg.DynamicShared = 256
	ran(t, d, kernelOf(t, m, "fresh"), cfg, bad.Ptr())
	if n := read[uint32](t, d, bad.Ptr(), 1)[0]; n != 0 {
		t.Errorf("%d threads found something else than poison", n)
	}
}

// TestDynamicSharedEnds accesses dynamic shared memory behind what the launch asked for.
func TestDynamicSharedEnds(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern __shared__ double outside[];
template <class T> __device__ void store(int at) { extern __shared__ T words[]; words[at] = 1; }
extern "C" {
__global__ void inside(int write, int at, float* out) {
  extern __shared__ float words[];
  if (write) words[at] = 1; else *out = words[at];
}
__global__ void around(int write, int at, double* out) {
  if (write) outside[at] = 1; else *out = outside[at];
}
__global__ void generic(int, int at, float*) { store<float>(at); }
}
`)
	out := alloc(t, d, 8)
	for _, c := range []struct {
		kernel string
		asked  uint32 // bytes
		write  int32
		at     int32
		says   string // "" if nothing is wrong
	}{
		{"inside", 1024, 1, 255, ""},
		{"inside", 1024, 0, 255, ""},
		{"inside", 1024, 1, 256, "beyond the 1024 bytes of dynamic shared memory"},
		{"inside", 1024, 0, 256, "beyond the 1024 bytes of dynamic shared memory"},
		{"inside", 1024, 0, 1 << 17, "beyond the 1024 bytes of dynamic shared memory"},
		{"inside", 1000, 1, 249, ""},
		{"inside", 1000, 1, 250, "wrote beyond the 1000 bytes of dynamic shared memory"},
		{"inside", 1000, 0, 256, "beyond the 1000 bytes of dynamic shared memory"},
		{"inside", 0, 0, 0, "beyond the 0 bytes of dynamic shared memory"},
		{"around", 1024, 1, 127, ""},
		{"around", 1024, 1, 128, "beyond the 1024 bytes of dynamic shared memory"},
		{"around", 0, 1, 0, "beyond the 0 bytes of dynamic shared memory"},
		{"generic", 48 << 10, 1, 12<<10 - 1, ""},
		{"generic", 48 << 10, 1, 12 << 10, "beyond the 49152 bytes of dynamic shared memory"},
	} {
		cfg := shape(1, 1)
		cfg.DynamicShared = c.asked
		err := run(t, d, kernelOf(t, m, c.kernel), cfg, c.write, c.at, out.Ptr())
		if c.says == "" && err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if c.says != "" {
			testerr.Expect(t, err, mscclgo.ErrSystem, c.says)
		}
	}
}

func TestIndices(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void where(unsigned* out) {
  dim3 b = blockDim; uint3 at = threadIdx;
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned thread = at.x + b.x * (at.y + b.y * at.z);
  unsigned* o = out + 12 * (block * b.x * b.y * b.z + thread);
  o[0] = at.x; o[1] = at.y; o[2] = at.z; o[3] = blockIdx.x; o[4] = blockIdx.y; o[5] = blockIdx.z;
  o[6] = b.x; o[7] = b.y; o[8] = b.z; o[9] = gridDim.x; o[10] = gridDim.y; o[11] = gridDim.z;
}
`)
	cfg := backend.LaunchConfig{Grid: [3]uint32{3, 2, 4}, Block: [3]uint32{5, 3, 2}}
	const threads = 30
	out := alloc(t, d, 24*threads*48)
	ran(t, d, kernelOf(t, m, "where"), cfg, out.Ptr())
	got := read[[12]uint32](t, d, out.Ptr(), 24*threads)
	for i, g := range got {
		b, th := uint32(i/threads), uint32(i%threads)
		want := [12]uint32{th % 5, th / 5 % 3, th / 15, b % 3, b / 3 % 2, b / 6, 5, 3, 2, 3, 2, 4}
		if g != want {
			t.Fatalf("thread %d: %v, want %v", i, g, want)
		}
	}
}

func TestBarrierKinds(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void kinds(int* out) {
  int i = threadIdx.x;
  if (i >= 90) return;  // nobody waits for threads that have ended
  for (int round = 0; round < 50; round++) {
    int few = __syncthreads_count(i < round), any = __syncthreads_or(i == round + 70);
    int all = __syncthreads_and(i < 100), not_all = __syncthreads_and(i != round);
    if (few != round || any != (round < 20) || !all || not_all) { out[i] = 1000 + round; return; }
  }
  out[i] = i;
}
`)
	out := alloc(t, d, 100*4)
	write(t, d, out.Ptr(), make([]int32, 100))
	ran(t, d, kernelOf(t, m, "kinds"), shape(1, 100), out.Ptr())
	for i, v := range read[int32](t, d, out.Ptr(), 90) {
		if v != int32(i) {
			t.Fatalf("thread %d: %d", i, v)
		}
	}
}

// TestStuckBlock: a kernel whose threads wait for each other forever is an error and does
// not hang.
func TestStuckBlock(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void stuck(int* out) {
  if (threadIdx.x < 3) __syncthreads();
  else __shfl_sync(0xffffffffu, 1, 0);
  out[threadIdx.x] = 1;
}
extern "C" __global__ void fine(int* out) { __syncthreads(); out[threadIdx.x] = 2; }
`)
	out := alloc(t, d, 32*4)
	err := run(t, d, kernelOf(t, m, "stuck"), shape(1, 32), out.Ptr())
	if !errors.Is(err, mscclgo.ErrSystem) || !strings.Contains(err.Error(), "3 threads wait at __syncthreads and 29 in warp functions") {
		t.Fatalf("got %v", err)
	}
	// The same OS thread runs other blocks afterwards.
	ran(t, d, kernelOf(t, m, "fine"), shape(40, 32), out.Ptr())
	for i, v := range read[int32](t, d, out.Ptr(), 32) {
		if v != 2 {
			t.Fatalf("out[%d] = %d", i, v)
		}
	}
}

func TestTrapEndsTheKernelOnly(t *testing.T) {
	d := open(t)
	m := load(t, d, `
#include <cassert>
extern "C" __global__ void trap(int* go) {
  if (blockIdx.x == 5 && threadIdx.x == 7) __trap();
  while (atomicAdd(go, 0) == 0) {}  // the others wait for ever
}
extern "C" __global__ void check(int n) { assert(n > 3); __syncthreads(); }
`)
	dev := alloc(t, d, 4)
	write(t, d, dev.Ptr(), []int32{0})
	err := run(t, d, kernelOf(t, m, "trap"), shape(8, 32), dev.Ptr())
	testerr.Expect(t, err, mscclgo.ErrSystem, "block (5,0,0), thread (7,0,0): __trap()")
	err = run(t, d, kernelOf(t, m, "check"), shape(2, 64), int32(3))
	testerr.Expect(t, err, mscclgo.ErrSystem, "TestTrapEndsTheKernelOnly.cu:7: ", "`n > 3' failed")
	ran(t, d, kernelOf(t, m, "check"), shape(2, 64), int32(4))
}

func TestFaults(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void wild(int* p) { __syncthreads(); if (threadIdx.x == 3) *p = 1; __syncthreads(); }
extern "C" __global__ void divide(int* p, int n) { *p /= n; }
__device__ __noinline__ int recurse(volatile int n) {
  volatile char room[1000];
  room[n % 1000] = 1;
  return n ? recurse(n + 1) + room[0] : 0;
}
extern "C" __global__ void overflow(int* p) { *p = recurse(threadIdx.x + 1); }
extern "C" __global__ void fine(int* p) { __syncthreads(); *p = 7; }
`)
	out := alloc(t, d, 4)
	want := map[string]string{
		"wild":     "block (0,0,0), thread (3,0,0): illegal memory access at 0x8",
		"overflow": "stack overflow: a thread has 262144 bytes",
	}
	if runtime.GOARCH == "amd64" { // elsewhere 1 / 0 is a number
		want["divide"] = "integer division by zero"
	}
	for name, text := range want {
		ptr := out.Ptr()
		args := []any{ptr}
		switch name {
		case "wild":
			args = []any{uint64(8)}
		case "divide":
			args = []any{ptr, int32(0)}
		}
		err := run(t, d, kernelOf(t, m, name), shape(1, 32), args...)
		if !errors.Is(err, mscclgo.ErrSystem) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", name, err)
		}
		ran(t, d, kernelOf(t, m, "fine"), shape(33, 64), ptr)
		if v := read[int32](t, d, ptr, 1)[0]; v != 7 {
			t.Errorf("after %s: %d", name, v)
		}
	}
}

// TestFaultOfGo: a fault of Go code is still a panic.
func TestFaultOfGo(t *testing.T) {
	open(t)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	var p *int
	*p = 1
}

// TestDeepStack uses much of a thread's stack in many threads at once.
func TestDeepStack(t *testing.T) {
	d := open(t)
	m := load(t, d, `
__device__ __noinline__ int sum(int n) {
  volatile int room[1024];
  room[n] = n;
  return n == 0 ? 0 : room[n] + sum(n - 1);
}
extern "C" __global__ void deep(int* out) {
  __syncthreads();
  out[threadIdx.x] = sum(40);
  __syncthreads();
}
`)
	out := alloc(t, d, 64*4)
	ran(t, d, kernelOf(t, m, "deep"), shape(1, 64), out.Ptr())
	for i, v := range read[int32](t, d, out.Ptr(), 64) {
		if v != 820 {
			t.Fatalf("thread %d: %d", i, v)
		}
	}
}
