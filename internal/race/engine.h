// engine.h: what the emulated device calls of the race finder.
#ifndef MSCCLGO_RACE_ENGINE_H
#define MSCCLGO_RACE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "mscclgo/emu/abi.h"

// race_fence is what a thread knew when it last released by a fence.
typedef struct {
  uint32_t known, clock, block_clock, warp_clock;  // clock 0: there was none
  uint32_t released;                               // these as one clock, made when needed
} race_fence;

// race_word is what is known of one word of memory, as clocks by scope.
typedef struct {
  const void* at;
  uint32_t told[3];
} race_word;

// race_thread is what a CUDA thread, or an operation of a stream or a host, knows. Those of a block are in
// a row.
//
// Knowledge of others is a clock: a number that stands for a set that never changes
// (clock.c). Of its own block a thread knows all accesses with a time up to block_clock,
// and of its warp up to warp_clock, so that barriers make no new clocks.
typedef struct race_thread {
  uint32_t actor;    // as in race_slot
  uint32_t time;     // of its next accesses, from 1
  uint32_t known;    // clock: what happened before
  uint32_t seen[3];  // clocks: what relaxed loads have seen, of any device, of this one and of this block
  // Clocks of sequentially consistent fences, by scope: of fences that this thread has made or met at
  // barriers, and of fences that its relaxed loads have seen.
  uint32_t fenced[3], seen_fenced[3];
  race_word released, loaded;  // what it has released last, and seen by its last relaxed load
  uint32_t base;               // clock: what was known when the kernel began
  uint32_t block_clock, warp_clock;
  race_fence fence[3];       // at system scope, at device scope or wider, and at any
  uint32_t latest[4], turn;  // clocks that were seen lately
  uint32_t device;           // 1 + its number; 0 for hosts
  uint32_t module;           // of its code
  uint64_t code;             // where the module begins
  uint64_t key;              // its block among the clocks
  uint16_t site;             // of its last synchronisation
  uint8_t ended;             // 1 when it has
  uint8_t pending;           // bytes of a volatile access that it has told of, or 0
  uint32_t pending_how;      // MSCCLGO_EMU_WRITE for a write
  const void* pending_at;
} race_thread;

// race_launch is one launch, or one operation, of a stream.
typedef struct {
  uint32_t stream, launch;
  uint32_t base;         // clock: what happens before it
  uint32_t name, where;  // texts
  uint32_t device;
  uint32_t module;
  uint64_t code;
  uint32_t end;  // clock: what its threads knew when they ended; atomic
} race_launch;

// race_sequence is something that does one thing after the other: a stream, or the host.
typedef struct {
  uint32_t stream, launches;
  uint32_t known;     // clock
  uint32_t copy, by;  // texts: how its proxy's copies are called, and the rank and device
} race_sequence;

// race_old is what a load gets an older value for: a load by an actor, and the last write that it
// does not know of.
typedef struct {
  uint32_t reader, writer;
  uint32_t place;  // of the write
} race_old;

// race_weak has loads of explored threads get older values than the newest (weak.c). Whoever has
// the turn calls these, instead of race_engine's access, atomic and fence.
typedef struct race_weak {
  // settle ends what the last read and write began; it comes before anybody else's turn, and
  // before what follows.
  void (*settle)(void);
  // older returns how many older values of some bytes a thread may read next, and of what: 0 for
  // the newest only.
  uint32_t (*older)(const race_thread* thread, const void* at, uint64_t size, int atomic, race_old*);
  // read has the thread's next load get a value of so many writes ago, of those it may get, until
  // settle. write tells of a write that comes next.
  void (*read)(race_thread* thread, const void* at, uint64_t size, uint32_t age);
  void (*write)(race_thread* thread, const void* at, uint64_t size, const void* code);
  // atomic is race_engine's, of which a load gets a value of so many writes ago.
  uint64_t (*atomic)(race_thread* thread, const mscclgo_emu_atomic* what, uint32_t age, const void* code);
  void (*fence)(race_thread* thread, uint32_t order, uint32_t scope, const void* code);
} race_weak;

// race_engine is the finder's functions. Threads of one block call them one at a time.
typedef struct race_engine {
  // table has, for each page of the address space, where its shadow is, or 0.
  uint64_t* table;
  // weak is NULL unless loads may get older values. Then no races are looked for.
  const race_weak* weak;
  // block begins a block: all of its threads.
  void (*block)(race_thread* threads, uint32_t count, const race_launch* launch, uint32_t block,
                mscclgo_emu_dim grid, mscclgo_emu_dim shape);
  // ended tells that a thread has ended.
  void (*ended)(race_thread* thread, race_launch* launch);
  // access checks an access of size bytes, as mscclgo_emu_runtime.accessed tells of it. code is its
  // return address.
  void (*access)(race_thread* thread, const void* at, uint64_t size, uint32_t how, const void* code);
  // atomic does an operation on a word and keeps its order. It returns the old value.
  uint64_t (*atomic)(race_thread* thread, const mscclgo_emu_atomic* what, const void* code);
  // fence is a fence of these orders; see abi.h.
  void (*fence)(race_thread* thread, uint32_t order, uint32_t scope, const void* code);
  // barrier makes threads know what all of them know.
  void (*barrier)(race_thread* threads, uint32_t count, const void* code);
  // warp does so for the lanes in mask.
  void (*warp)(race_thread* lanes, uint32_t mask, const void* code);
  // previous is a wait for the end of the launch before, after which there is the clock.
  void (*previous)(race_thread* thread, uint32_t clock, const void* code);
  // beyond reports whether an access goes behind the end of memory that was asked for, and says so in
  // text. kind is "read" or "write".
  int (*beyond)(const void* at, uint64_t size, const char* kind, char* text, uint64_t room);
  // shared makes the memory of one block known; again for each block.
  void (*shared)(const void* begin, uint64_t bytes);
  // copy and store are what a proxy's thread has a stream do for an entry of a ring. They come before
  // it is done. mark is its mark, behind which hosts know what the stream has done.
  void (*copy)(race_sequence* sequence, const void* trigger, uint64_t dst, uint64_t src, uint64_t n);
  void (*store)(race_sequence* sequence, const void* trigger, uint64_t dst, uint64_t value);
  void (*mark)(race_sequence* sequence);
} race_engine;

#endif
