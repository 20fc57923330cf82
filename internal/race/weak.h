// weak.h: what the finder's own files use of weak.c.
#ifndef MSCCLGO_RACE_WEAK_H
#define MSCCLGO_RACE_WEAK_H

#include "engine.h"

extern const race_weak weak_functions;

// weak_start begins with no history, and returns 0 if there is no memory.
int weak_start(void);
void weak_stop(void);

// weak_drop has all read the newest of some memory: something else than an explored thread
// is about to write it.
void weak_drop(const void* at, uint64_t size);

#endif
