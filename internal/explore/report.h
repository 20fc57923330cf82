// report.h: parties as the scheduler keeps them, and what they wait for in words.
#ifndef MSCCLGO_EXPLORE_REPORT_H
#define MSCCLGO_EXPLORE_REPORT_H

#include <semaphore.h>
#include <stddef.h>

#include "turns.h"

// The parts of an explore_who, by their lowest bits.
enum {
  WHO_BLOCK = 10,
  WHO_LAUNCH = 26,
  WHO_STREAM = 42,
  WHO_RANK = 52,
  WHO_KIND = 60,
  WHO_THREAD_MASK = 1023
};

// The kinds.
enum { WHO_IS_HOST = 1, WHO_IS_STREAM = 2, WHO_IS_BLOCK = 3, WHO_IS_PROXY = 4 };

typedef enum explore_state {
  THREAD_HELD,   // until another one says that it is ready, or it has the turn
  THREAD_READY,  //
  THREAD_LOOKS,  // until somebody has written
  THREAD_POLLS,  // likewise, or until nobody else can go on
  THREAD_EVENT,  // until an event
} explore_state;

typedef struct explore_thread {
  uint8_t state, point;  // and where it is held
  uint8_t looks;         // it goes on to look again
  uint8_t old;           // it has got an old value since it waited last
  uint32_t reads;        // since it wrote
  uint64_t count;        // of points
  uint64_t seen;         // of writes or events, when it began to look last
  uint64_t resumed;      // of writes, when it last went on to look, and its own since
  uint64_t priority;
  uint64_t calls;  // of the party, when it last looked in vain
  mscclgo_emu_wait wait;
} explore_thread;

struct explore_party {
  explore_who who;
  const char* name;  // of the kernel
  sem_t turn;
  uint32_t threads, live, current;
  explore_thread* thread;
  uint16_t *ready, *spin;  // lists of threads
  uint32_t ready_count, spin_head, spin_count;
  uint64_t woken;  // of writes and events, when all that spin were looked at
  uint32_t at;     // among the active
  uint64_t priority;
  int serves;              // a proxy, which waits for others only
  uint64_t calls;          // of lanes, to a warp function
  uint64_t launches;       // of a stream
  explore_launch* launch;  // of a block
  const void* base;        // of its code
  explore_party* next;
};

struct explore_launch {
  char kernel[64];
  const void* device;
  uint32_t room, threads;
  uint32_t own, *resident;  // blocks of all launches of the device; own, of the first of them
  uint64_t blocks, begun, left;
  explore_launch* next;
  explore_party* party[];
};

// explore_report writes why a run was given up, and what each party waits for.
void explore_report(char* text, size_t bytes, const char* why, explore_party* const* parties, uint32_t count);

// explore_kernel returns the name of a block's kernel, or "?".
const char* explore_kernel(explore_who);

#endif
