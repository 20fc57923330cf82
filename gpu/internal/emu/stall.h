// stall.h: what the threads of a block wait for, told to whoever asks whether any of them
// can go on by itself.
//
// The block's OS thread answers: where it is asked and every thread has since looked in vain
// for what it waits for, or is held by others of its block. Nothing is done while nobody asks,
// but for a note at the begin and end of each wait.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "mscclgo/emu/abi.h"

enum {
  STALL_WAIT,     // for memory to change, in a wait of wait.cuh
  STALL_BARRIER,  // at __syncthreads, for other threads of the block
  STALL_WARP,     // in a warp function, for other lanes
  STALL_MOST = 96,
};

// stall_entry is threads of a block that wait for the same.
typedef struct stall_entry {
  uint32_t what;            // STALL_WAIT and so on
  uint32_t threads, first;  // how many, and the first one's number
  mscclgo_emu_wait wait;    // of a STALL_WAIT
} stall_entry;

// stall_answer is what all threads of a block that have not ended wait for.
typedef struct stall_answer {
  uint32_t question;
  uint64_t epoch;  // of the OS thread: it changes with each wait that begins or ends
  uint32_t block;  // of the launch's
  char kernel[64];
  uint32_t count;  // of entries
  stall_entry entries[STALL_MOST];
} stall_answer;

// stall is the state of one OS thread's blocks. Only that thread uses what is not said to
// be for others.
typedef struct stall {
  _Atomic uint32_t asked;  // the last question's number; any thread
  uint32_t heard;          // the round's
  uint32_t answered;
  uint32_t round;            // of looking: the next one begins when anything changes
  uint32_t waiting, looked;  // threads in waits, and how many of them have looked in this round
  uint64_t epoch;
  struct {
    mscclgo_emu_wait what;
    uint32_t in, round;  // 1 in a wait; the last round in which it looked
  } of[MSCCLGO_EMU_MAX_THREADS];
  pthread_mutex_t lock;  // guards answer
  stall_answer answer;
} stall;

void stall_init(stall*);

// stall_begin begins a block, none of whose threads waits.
void stall_begin(stall*);

// stall_changed tells that a thread may go on which could not before, or has ended.
void stall_changed(stall*);

// stall_await tells that a thread begins a wait, or that it ends its wait if what is NULL.
void stall_await(stall*, uint32_t thread, const mscclgo_emu_wait* what);

// stall_waits reports whether a thread is in a wait.
static inline int stall_waits(const stall* s, uint32_t thread) { return (int)s->of[thread].in; }

// stall_looked tells that a thread has looked for what it waits for, in vain. It reports
// whether all that wait have, since they were asked; then it is time for an answer, and if
// there is none, as some thread does not wait, for another round.
int stall_looked(stall*, uint32_t thread);

// stall_add adds a thread to an answer, and reports whether there is room.
int stall_add(stall_answer*, uint32_t what, uint32_t thread, const mscclgo_emu_wait* wait);

// stall_tell publishes the answer to the round's question, of which question and epoch are
// filled in.
void stall_tell(stall*, stall_answer* answer);

// stall_told copies the answer to a question, and reports whether there is one. Any thread.
int stall_told(stall*, uint32_t question, stall_answer* to);
