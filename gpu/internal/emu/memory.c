#define _GNU_SOURCE
#include "memory.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>

static void* at(uint64_t address) { return (void*)(uintptr_t)address; }

void memory_copy(uint64_t dst, uint64_t src, uint64_t n) { memmove(at(dst), at(src), n); }

void memory_fill(uint64_t dst, int value, uint64_t n) { memset(at(dst), value, n); }

void memory_write64(uint64_t dst, uint64_t value) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  __atomic_store_n((uint64_t*)at(dst), value, __ATOMIC_RELEASE);
}

bool memory_wait64(uint64_t src, uint64_t value, bool equal) {
  for (int i = 0; i < 32; i++) {
    uint64_t now = __atomic_load_n((const uint64_t*)at(src), __ATOMIC_ACQUIRE);
    if (equal ? now == value : (int64_t)(now - value) >= 0) return true;
    sched_yield();
  }
  return false;
}

void memory_to_host(void* dst, uint64_t src, uint64_t n) { memcpy(dst, at(src), n); }

void memory_from_host(uint64_t dst, const void* src, uint64_t n) { memcpy(at(dst), src, n); }
