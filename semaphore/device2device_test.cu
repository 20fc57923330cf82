// Kernels of the tests.
#include <mscclgo/semaphore.cuh>

using namespace mscclgo;

// volley signals and waits in turn, as one side of two. Before each signal it
// leaves a number in the peer's memory, and looks for the peer's after each
// wait. results: how the last wait ended, then the numbers that were wrong. One
// thread.
extern "C" __global__ void volley(__grid_constant__ const Device2DeviceSemaphoreHandle semaphore,
                                  uint32_t serves, uint32_t rounds, uint32_t* theirs, const uint32_t* mine,
                                  uint32_t* results) {
  WaitResult r = WaitResult::Done;
  uint32_t wrong = 0;
  for (uint32_t round = 1; round <= rounds && r == WaitResult::Done; ++round) {
    if (serves) {
      *theirs = round;
      semaphore.signal();
    }
    r = semaphore.wait();
    if (r == WaitResult::Done && *(const volatile uint32_t*)mine != round) ++wrong;
    if (!serves) {
      *theirs = round;
      semaphore.signal();
    }
  }
  results[0] = uint32_t(r);
  results[1] = wrong;
}

// count signals so many times without a wait and then consumes what the peer sent:
// all but one by waits, and reports whether one more had arrived, and a second.
extern "C" __global__ void count(__grid_constant__ const Device2DeviceSemaphoreHandle semaphore,
                                 uint32_t signals, uint32_t* results) {
  for (uint32_t i = 0; i < signals; ++i) semaphore.relaxedSignal();
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 1; i < signals && r == WaitResult::Done; ++i) r = semaphore.relaxedWait();
  bool one = false;
  for (uint32_t i = 0; i < 1u << 30 && r == WaitResult::Done && !one; ++i) {
    one = semaphore.poll();
#if defined(MSCCLGO_EMU)
    emu::yield();
#endif
  }
  results[0] = uint32_t(r);
  results[1] = one;
  results[2] = semaphore.poll();
}
