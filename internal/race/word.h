// word.h: atomic operations of modules that tell of them, done as one.
#ifndef MSCCLGO_RACE_WORD_H
#define MSCCLGO_RACE_WORD_H

#include <stdint.h>

#include "mscclgo/emu/abi.h"

// race_word_at returns a word of so many bytes.
static inline uint64_t race_word_at(void* at, uint32_t size) {
  switch (size) {
    case 1:
      return __atomic_load_n((uint8_t*)at, __ATOMIC_SEQ_CST);
    case 2:
      return __atomic_load_n((uint16_t*)at, __ATOMIC_SEQ_CST);
    case 4:
      return __atomic_load_n((uint32_t*)at, __ATOMIC_SEQ_CST);
    default:
      return __atomic_load_n((uint64_t*)at, __ATOMIC_SEQ_CST);
  }
}

// race_operate does the operation and returns the old value; *wrote is the new one.
static inline uint64_t race_operate(const mscclgo_emu_atomic* w, uint64_t* wrote, int* writes) {
  *writes = w->what != MSCCLGO_EMU_LOAD;
  if (!*writes) return race_word_at(w->at, w->size);
#define OPERATE(T)                                                                                  \
  {                                                                                                 \
    T* p = (T*)w->at;                                                                               \
    T old = (T)w->expected, value = (T)w->value;                                                    \
    if (w->what == MSCCLGO_EMU_STORE) {                                                             \
      __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                 \
      *wrote = value;                                                                               \
      return 0;                                                                                     \
    }                                                                                               \
    if (w->what == MSCCLGO_EMU_COMPARE) {                                                           \
      *writes = __atomic_compare_exchange_n(p, &old, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
      *wrote = value;                                                                               \
      return old;                                                                                   \
    }                                                                                               \
    if (w->what == MSCCLGO_EMU_EXCHANGE) {                                                          \
      *wrote = value;                                                                               \
      return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                       \
    }                                                                                               \
    old = __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);                                           \
    *wrote = (T)(old + value);                                                                      \
    return old;                                                                                     \
  }
  switch (w->size) {
    case 1:
      OPERATE(uint8_t)
    case 2:
      OPERATE(uint16_t)
    case 4:
      OPERATE(uint32_t)
    default:
      OPERATE(uint64_t)
  }
#undef OPERATE
}

#endif
