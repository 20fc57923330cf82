// A gate guards something that threads use and its owner may close at any time.
#ifndef MSCCLGO_NATIVE_GATE_H
#define MSCCLGO_NATIVE_GATE_H

#include <stdbool.h>
#include <stdint.h>

// Bit 0 of the word is set once the gate is closed. The others count the threads
// inside.
typedef struct {
  uint64_t word;
} native_gate;

static inline void native_gate_leave(native_gate* gate) {
  __atomic_fetch_sub(&gate->word, 2, __ATOMIC_RELEASE);
}

// native_gate_enter reports whether the gate was open. If so, closing it waits for
// native_gate_leave.
static inline bool native_gate_enter(native_gate* gate) {
  if (!(__atomic_fetch_add(&gate->word, 2, __ATOMIC_ACQUIRE) & 1)) return true;
  native_gate_leave(gate);
  return false;
}

#endif
