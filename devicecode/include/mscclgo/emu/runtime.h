// runtime.h: a CUDA thread on the emulated device: its numbers, how it waits and fails,
// and how kernels are found.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "mscclgo/emu/abi.h"
#include "mscclgo/emu/vector_types.h"

// CUDA's words for where a function runs or a variable is. The words that begin with
// mscclgo_emu_ are for the Go side, which rewrites them in the preprocessed text: kernels
// are followed by a registration, and __shared__ becomes thread-local storage (an OS
// thread runs one block at a time).
#define __global__ mscclgo_emu_global
#define __shared__ mscclgo_emu_shared
#define __launch_bounds__(...) mscclgo_emu_launch_bounds(__VA_ARGS__)
#define __cluster_dims__(...)
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

namespace mscclgo {
namespace emu {

// self returns the calling thread. Only a thread of a kernel may call it.
__forceinline__ mscclgo_emu_thread* self() {
  uintptr_t sp;
#if defined(__x86_64__)
  __asm__("mov %%rsp, %0" : "=r"(sp));
#elif defined(__aarch64__)
  __asm__("mov %0, sp" : "=r"(sp));
#else
  sp = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
#endif
  const uintptr_t top = (sp | (MSCCLGO_EMU_STACK_BYTES - 1)) + 1;
  return reinterpret_cast<mscclgo_emu_thread*>(top) - 1;
}

__forceinline__ uint3 threadIndex() {
  const mscclgo_emu_dim& d = self()->index;
  return uint3{d.x, d.y, d.z};
}
__forceinline__ uint3 blockIndex() {
  const mscclgo_emu_dim& d = self()->block->block_index;
  return uint3{d.x, d.y, d.z};
}
__forceinline__ dim3 blockSize() {
  const mscclgo_emu_dim& d = self()->block->block_dim;
  return dim3(d.x, d.y, d.z);
}
__forceinline__ dim3 gridSize() {
  const mscclgo_emu_dim& d = self()->block->grid_dim;
  return dim3(d.x, d.y, d.z);
}

// yield lets the block's other threads run. Every loop that waits for another thread must
// call it, or that thread may never run. When all threads of a block only yield, its OS
// thread yields the core.
inline void yield() {
  mscclgo_emu_thread* t = self();
  t->block->runtime->yield(t, MSCCLGO_EMU_WAITING);
}

// Waiting tells of a wait, from its first poll to its own end.
class Waiting {
 public:
  Waiting() = default;
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    if (begun_) self()->block->runtime->await(self(), nullptr);
  }

  // poll lets the block's other threads run. The caller has found that what it waits for has
  // not happened; nothing but memory decides that.
  void poll(const mscclgo_emu_wait& what) {
    mscclgo_emu_thread* t = self();
    if (!begun_) t->block->runtime->await(t, &what);
    begun_ = true;
    t->block->runtime->yield(t, MSCCLGO_EMU_LOOKED);
  }

 private:
  bool begun_ = false;
};

// spinHint is called with each load that a loop may wait on. It is cheap, and yields now
// and then.
__forceinline__ void spinHint() {
  mscclgo_emu_thread* t = self();
  if (++t->polls % 64 == 0) t->block->runtime->yield(t, MSCCLGO_EMU_WAITING);
}

// spinHint with the address and the value that was read there tells waiting from working:
// only a thread that reads the same again waits.
__forceinline__ void spinHint(const volatile void* address, uint64_t value) {
  mscclgo_emu_thread* t = self();
  if (t->polled == address && t->seen == value) {
    if (++t->polls % 16 == 0) t->block->runtime->yield(t, MSCCLGO_EMU_WAITING);
    return;
  }
  t->polled = address;
  t->seen = value;
  if (++t->looks % 1024 == 0) t->block->runtime->yield(t, MSCCLGO_EMU_WORKING);
}

// fail ends the kernel. The stream's next Synchronize returns the text, with the line of code unless that
// is null.
[[noreturn]] inline void fail(const char* text, const void* code) {
  mscclgo_emu_thread* t = self();
  t->block->runtime->fail(t, text, code);
  __builtin_unreachable();
}

// barrier does what all kinds of __syncthreads need; see mscclgo_emu_runtime.
inline uint64_t barrier(int predicate) {
  mscclgo_emu_thread* t = self();
  return t->block->runtime->barrier(t, predicate);
}

}  // namespace emu
}  // namespace mscclgo

#define threadIdx (::mscclgo::emu::threadIndex())
#define blockIdx (::mscclgo::emu::blockIndex())
#define blockDim (::mscclgo::emu::blockSize())
#define gridDim (::mscclgo::emu::gridSize())
#define warpSize 32

// CUDA C++ Programming Guide, "Synchronization Functions". Threads that have
// ended are not waited for.
inline void __syncthreads() { ::mscclgo::emu::barrier(0); }
inline int __syncthreads_count(int predicate) {
  return static_cast<int>(static_cast<uint32_t>(::mscclgo::emu::barrier(predicate)));
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline int __syncthreads_and(int predicate) {
  const uint64_t r = ::mscclgo::emu::barrier(predicate);
  return static_cast<uint32_t>(r) == static_cast<uint32_t>(r >> 32);
}

inline void __nanosleep(unsigned nanoseconds) {
  mscclgo_emu_thread* t = ::mscclgo::emu::self();
  t->block->runtime->sleep(t, nanoseconds);
}

[[noreturn]] inline __attribute__((noinline)) void __trap() {
  ::mscclgo::emu::fail("__trap()", __builtin_return_address(0));
}
inline void __brkpt() {}

namespace mscclgo {
namespace emu {

// awaitPrevious is what launch.cuh declares.
inline void awaitPrevious() {
  mscclgo_emu_thread* t = self();
  t->block->runtime->previous(t);
}

}  // namespace emu
}  // namespace mscclgo

// The compiler calls this in each basic block of modules that may poll by themselves (stepFlags of
// devicecode/emu.go).
extern "C" MSCCLGO_EMU_NO_STEPS __attribute__((visibility("hidden"))) void __sanitizer_cov_trace_pc();
void __sanitizer_cov_trace_pc() {
  mscclgo_emu_thread* t = ::mscclgo::emu::self();
  if (++t->steps % 1024 == 0) t->block->runtime->yield(t, MSCCLGO_EMU_WORKING);
}
