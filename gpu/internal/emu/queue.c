#include "queue.h"

#include "memory.h"

static int begin(native_queue* queue, native_thread* thread, const native_request* request) {
  (void)request;
  emu_queue* q = (emu_queue*)queue;
  if (!native_gate_enter(q->device)) return NATIVE_BUSY;  // Go has the error for it
  if (__atomic_exchange_n(&q->claimed, 1, __ATOMIC_ACQUIRE) == 0) {
    if (__atomic_load_n(&q->barred, __ATOMIC_ACQUIRE) == 0) {
      q->trigger = thread->trigger;
      return 0;
    }
    __atomic_store_n(&q->claimed, 0, __ATOMIC_RELEASE);
  }
  native_gate_leave(q->device);
  return NATIVE_BUSY;
}

static void end(native_queue* queue) {
  emu_queue* q = (emu_queue*)queue;
  __atomic_store_n(&q->claimed, 0, __ATOMIC_RELEASE);
  native_gate_leave(q->device);
}

static int write(native_queue* queue, native_place dst, native_place src, uint64_t n) {
  emu_queue* q = (emu_queue*)queue;
  const uint64_t to = native_address(dst), from = native_address(src);
  if (q->race) q->race->copy(q->sequence, q->trigger, to, from, n);
  return memory_copy(to, from, n) ? 0 : EMU_QUEUE_FAULT;
}

static int store(native_queue* queue, native_place dst, uint64_t value) {
  emu_queue* q = (emu_queue*)queue;
  const uint64_t at = native_address(dst);
  if (q->race) q->race->store(q->sequence, q->trigger, at, value);
  return memory_write64(at, value) ? 0 : EMU_QUEUE_FAULT;
}

static int update(native_queue* queue, native_place dst, uint64_t from, uint64_t to) {
  (void)from;
  return store(queue, dst, to);
}

static int mark(native_queue* queue, unsigned number) {
  emu_queue* q = (emu_queue*)queue;
  (void)number;
  if (q->race) q->race->mark(q->sequence);
  return 0;
}

// reached reports what is queued as done, since it was done at once.
static int reached(native_queue* queue, unsigned number) {
  (void)queue, (void)number;
  return 0;
}

void emu_queue_init(emu_queue* q, native_gate* device, uint32_t barred) {
  static const native_operations operations = {begin, end, write, store, update, NULL, mark, reached, false};
  q->queue.operations = &operations;
  q->device = device;
  q->barred = barred;
}
