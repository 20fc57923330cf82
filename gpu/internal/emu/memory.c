#define _GNU_SOURCE
#include "memory.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "fault.h"

static void* at(uint64_t address) { return (void*)(uintptr_t)address; }

// operation is one of memory.h with its arguments.
typedef struct {
  void *dst, *src;
  uint64_t n;
  int value;
} operation;

static void copy(void* o) {
  const operation* p = o;
  memmove(p->dst, p->src, p->n);
}

static void fill(void* o) {
  const operation* p = o;
  memset(p->dst, p->value, p->n);
}

static void write64(void* o) {
  const operation* p = o;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  __atomic_store_n((uint64_t*)p->dst, p->n, __ATOMIC_RELEASE);
}

static void add64(void* o) {
  const operation* p = o;
  __atomic_fetch_add((uint64_t*)p->dst, p->n, __ATOMIC_SEQ_CST);
}

static void exchange64(void* o) {
  operation* p = o;
  p->n = __atomic_exchange_n((uint64_t*)p->dst, p->n, __ATOMIC_SEQ_CST);
}

static void read64(void* o) {
  operation* p = o;
  p->n = __atomic_load_n((const uint64_t*)p->src, __ATOMIC_ACQUIRE);
}

bool memory_copy(uint64_t dst, uint64_t src, uint64_t n) {
  operation o = {.dst = at(dst), .src = at(src), .n = n};
  return fault_try(copy, &o);
}

bool memory_fill(uint64_t dst, int value, uint64_t n) {
  operation o = {.dst = at(dst), .n = n, .value = value};
  return fault_try(fill, &o);
}

bool memory_write64(uint64_t dst, uint64_t value) {
  operation o = {.dst = at(dst), .n = value};
  return fault_try(write64, &o);
}

bool memory_add64(uint64_t dst, uint64_t value) {
  operation o = {.dst = at(dst), .n = value};
  return fault_try(add64, &o);
}

bool memory_exchange64(uint64_t dst, uint64_t value, uint64_t* old) {
  operation o = {.dst = at(dst), .n = value};
  if (!fault_try(exchange64, &o)) return false;
  *old = o.n;
  return true;
}

memory_waited memory_wait64(uint64_t src, uint64_t value, bool equal) {
  operation o = {.src = at(src)};
  for (int i = 0; i < 32; i++) {
    if (!fault_try(read64, &o)) return MEMORY_FAULT;
    if (equal ? o.n == value : (int64_t)(o.n - value) >= 0) return MEMORY_REACHED;
    sched_yield();
  }
  return MEMORY_NOT_YET;
}

bool memory_to_host(void* dst, uint64_t src, uint64_t n) {
  operation o = {.dst = dst, .src = at(src), .n = n};
  return fault_try(copy, &o);
}

bool memory_from_host(uint64_t dst, const void* src, uint64_t n) {
  operation o = {.dst = at(dst), .src = (void*)(uintptr_t)src, .n = n};
  return fault_try(copy, &o);
}
