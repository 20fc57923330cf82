// turns.h: what Go uses of the scheduler.
#ifndef MSCCLGO_EXPLORE_TURNS_H
#define MSCCLGO_EXPLORE_TURNS_H

#include "engine.h"

typedef enum explore_scheduler {
  EXPLORE_FIXED,  // go on with the same thread, but for the given switches
  EXPLORE_RANDOM,
  EXPLORE_PCT,
  EXPLORE_ROUND_ROBIN,
} explore_scheduler;

// explore_who is a thread: kind, rank, stream, launch, block, thread, from the highest bits on,
// or 0 for none.
typedef uint64_t explore_who;

// explore_switch is a choice other than the choice of EXPLORE_FIXED: after how many points of
// a thread which other one went on, or of how many writes ago the value was that it got.
typedef struct explore_switch {
  explore_who from, to;  // to is 0 for a load
  uint64_t count;
  const void* code;  // where from was
  uint32_t point;
  uint32_t age;  // of the value, or 0
  race_old of;   // what the load did not get
} explore_switch;

// explore_step is what was done at a step.
typedef struct explore_step {
  explore_who who;
  uint32_t place;  // in the module, or of the host's call
  uint32_t point;
} explore_step;

enum { EXPLORE_STEPS = 1 << 22, EXPLORE_SWITCHES = 1 << 20, EXPLORE_TEXT = 8192 };

typedef struct explore_plan {
  uint64_t seed;
  explore_scheduler scheduler;
  uint64_t most;                   // steps
  const explore_switch* switches;  // of EXPLORE_FIXED, sorted by from, count and age
  uint64_t switch_count;           //
  const explore_step* expected;    // what is compared, or NULL
  uint64_t expected_count;
} explore_plan;

typedef struct explore_outcome {
  uint64_t steps, digest;
  uint64_t switch_count;
  const explore_switch* switches;
  uint64_t kept;  // of the steps: at most EXPLORE_STEPS
  const explore_step* trace;
  int diverged;  // 1: expected and did are what differs at step `at`
  uint64_t at;
  explore_step expected, did;
  const void* code;         // of did
  char text[EXPLORE_TEXT];  // why the run was ended, or ""
} explore_outcome;

// explore_begin begins a run, with nobody that takes part. It returns 0 if there is no memory.
int explore_begin(const explore_plan*);
const explore_engine* explore_functions(void);
const explore_outcome* explore_result(void);
uint64_t explore_steps(void);

// explore_end frees all. Nobody takes part any more.
void explore_end(void);

// explore_join adds a host's, a stream's or a proxy's party, which waits for its first turn. Only whoever
// has the turn calls it, or anybody before explore_start. It returns NULL, and the run is over, if
// there is no memory: then nobody looks at a party.
explore_party* explore_join_host(uint32_t rank);
explore_party* explore_join_stream(uint32_t rank, uint32_t number);
explore_party* explore_join_proxy(uint32_t rank, uint32_t number);

// explore_start gives the first turn.
void explore_start(void);

// explore_await waits for the party's first turn; then it has it.
void explore_await(explore_party*);

// explore_step_of may give the turn away.
void explore_step_of(explore_party*, explore_point, uint32_t place);

// explore_waits gives the turn away until something has happened: with memory 1, until somebody
// has written, with 2 also if nobody else can go on, or with 0 until explore_event.
void explore_waits(explore_party*, uint32_t place, int memory);

// explore_event tells that what a host or a stream waits for may have happened.
void explore_event(void);

// explore_outside tells that something without a turn writes memory, so that time has to pass
// until nothing can go on. Any thread.
void explore_outside(void);

// explore_rest has a party that has the turn take part no more, until explore_wake.
void explore_rest(explore_party*);
void explore_wake(explore_party*);

// explore_over ends the exploration: all go on at once, and the launches fail. Any thread.
void explore_over(const char* text);
int explore_is_over(void);

// explore_idle reports, after all hosts rest, whether the turn is nobody's, and all that is left
// are proxies without work, which go on without turns. Any thread.
int explore_idle(void);

#endif
