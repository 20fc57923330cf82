// A range of memory that transports may read and write, and places in it.
#ifndef MSCCLGO_NATIVE_RANGE_H
#define MSCCLGO_NATIVE_RANGE_H

#include "native/gate.h"

typedef struct {
  native_gate open;   // of the range alone
  native_gate* gate;  // of the allocation
  uint64_t address;   // for this rank's device; where it is not mapped, its rank's modulo 8
  uint64_t size;      // bytes
  uint64_t registry;  // the one that it is registered in or imported by
  uint64_t owner;     // the one that its rank has registered it in
  uint32_t rank;      // whose memory it is
  uint32_t number;    // among the owner's; used once
  bool mapped;        // for this rank's device
} native_range;

typedef struct {
  native_range* range;
  uint64_t offset;
} native_place;

static inline uint64_t native_address(native_place p) { return p.range->address + p.offset; }

// native_range_enter reports whether the range may be used, until
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

#endif
