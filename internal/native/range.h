// A range of memory that transports may read and write.
#ifndef MSCCLGO_NATIVE_RANGE_H
#define MSCCLGO_NATIVE_RANGE_H

#include "native/gate.h"

typedef struct {
  native_gate open;   // until the range is closed, though the allocation may be open
  native_gate* gate;  // of the allocation
  uint64_t address;   // for this rank's device
  uint64_t size;      // bytes
  uint64_t registry;  // which one it is registered in or imported by
  uint32_t rank;      // whose memory it is
} native_range;

// native_range_enter says whether the range may be used, until
// native_range_leave.
static inline bool native_range_enter(native_range* range) {
  if (!native_gate_enter(&range->open)) return false;
  if (native_gate_enter(range->gate)) return true;
  native_gate_leave(&range->open);
  return false;
}

static inline void native_range_leave(native_range* range) {
  native_gate_leave(range->gate);
  native_gate_leave(&range->open);
}

// native_range_holds says whether n bytes at an offset are inside.
static inline bool native_range_holds(const native_range* range, uint64_t offset, uint64_t n) {
  return offset <= range->size && n <= range->size - offset;
}

#endif
