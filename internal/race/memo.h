// memo.h: what an OS thread remembers of the arena, so that it looks there less often.
#ifndef MSCCLGO_RACE_MEMO_H
#define MSCCLGO_RACE_MEMO_H

#include "layout.h"

// race_answer is what a clock knows of all of an instance.
typedef struct {
  uint32_t clock, instance;
  uint32_t time;   // of all its threads
  uint32_t other;  // 1 if there may be entries of warps and threads
} race_answer;

// race_known is the number of a place of synchronisation, and of what it did there.
typedef struct {
  race_place place;
  uint32_t number;
  const char* what;
} race_known;

enum { RACE_ANSWERS = 1024, RACE_KNOWN = 256 };

typedef struct {
  uint32_t generation;  // of the arena
  uint32_t steps;       // since the arena was weighed
  race_answer answers[RACE_ANSWERS];
  race_known known[RACE_KNOWN];
} race_memo;

// race_remember returns the calling thread's memo of this arena, which is empty at first, or
// NULL if there is no memory. It is freed when the thread ends. It is not thread-local
// storage itself: of that a library that is loaded late may have only a little.
race_memo* race_remember(void);

#endif
