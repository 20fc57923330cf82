// arena.h: what the finder's own files share.
#ifndef MSCCLGO_RACE_ARENA_H
#define MSCCLGO_RACE_ARENA_H

#include "engine.h"
#include "layout.h"

// race_functions is what the device calls.
extern race_engine race_functions;

// race is the arena as this process maps it.
extern race_arena* race;

// race_generation tells arenas of this process apart, for what threads remember of them.
extern uint32_t race_generation;

// race_page returns the shadow that an entry of the engine's table is of. The entry's lowest two bits are
// flags, and those from RACE_END_SHIFT on the offset in the page at which the memory ends, or 0.
enum { RACE_END_SHIFT = 48 };
static inline char* race_page(uint64_t entry) {
  return (char*)(uintptr_t)(entry & (((uint64_t)1 << RACE_END_SHIFT) - 4));
}

static inline void* race_at(uint64_t offset) { return (char*)race + offset; }

// race_weigh stops watching if the arena takes more memory than it may.
void race_weigh(void);

// race_lose notes that something is not watched.
void race_lose(uint32_t what);

// race_text returns the number of a new text; 0 is "".
uint32_t race_text(const char* text);

// race_sync returns the number of a place of synchronisation. what is a constant.
uint16_t race_sync(race_place place, const char* what);

// race_new_instance returns the number of a new instance, or 0 if there are too many.
uint32_t race_new_instance(const race_instance* instance);

// Clocks (clock.c). Clock 0 knows nothing.
uint32_t clock_join(uint32_t a, uint32_t b);
uint32_t clock_add(uint32_t clock, uint64_t key, uint32_t time);

// clock_of returns what a thread knew and had done at a time.
uint32_t clock_of(const race_thread* t, const race_fence* at);

uint64_t clock_key(uint32_t stream, uint32_t launch, uint32_t block);
uint64_t clock_warp(uint64_t block, uint32_t warp);
uint64_t clock_thread(uint64_t block, uint32_t thread);

// clock_stream is the key of all launches of a stream; their time is the last one's number.
uint64_t clock_stream(uint32_t stream);

// clock_has reports whether a clock knows an access of an actor.
int clock_has(uint32_t clock, uint32_t actor, uint32_t time);

// Shadow (shadow.c). shadow_access checks an access; where loads may get older values it only has
// no load get one from before a write.
void shadow_access(race_thread*, const void* at, uint64_t size, uint32_t flags, race_place);

// shadow_cell returns the cell of a word, or NULL; *pinned becomes whether it is the host's.
race_cell* shadow_cell(const void* at, int* pinned);

// shadow_key returns what tells 8 bytes apart from others, wherever they are mapped, or 0 if they
// are not memory of a device or of a block.
uintptr_t shadow_key(const void* at);

// shadow_ordered reports whether what an actor did at a time happens before what a thread does now.
int shadow_ordered(const race_thread* t, uint32_t actor, uint32_t time);

// Order of atomic operations (sync.c). sync_atomic does one, whose cell it locks. sync_refresh
// has a cell that a host has changed stand for what hosts know; sync_observe is a load's part, and
// sync_offer a store's.
uint64_t sync_atomic(race_thread*, race_cell*, const mscclgo_emu_atomic*, int pinned, const void* code);
void sync_tell(race_cell*, uint32_t clock);
void sync_refresh(race_cell*, uint64_t value);
void sync_observe(race_thread*, const race_cell*, const mscclgo_emu_atomic*, const void* code);
void sync_offer(race_thread*, race_cell*, const mscclgo_emu_atomic*, int pinned, const void* code);

// race_digest is what a cell keeps of a value. RACE_ANY stands for one that is not known yet.
#define RACE_ANY (~(uint32_t)0)
static inline uint32_t race_digest(uint64_t value) {
  const uint32_t d = (uint32_t)(value ^ value >> 32);
  return d == RACE_ANY ? 0 : d;
}

// The arena's lock, for what is rare.
void race_lock(uint8_t* lock);
void race_unlock(uint8_t* lock);

// race_place_of returns the place of an address in a thread's code.
static inline race_place race_place_of(const race_thread* t, const void* code) {
  if (!t->module) return (race_place)(uintptr_t)code;
  return t->module << RACE_CODE_BITS |
         (uint32_t)(((uint64_t)(uintptr_t)code - t->code) & ((1u << RACE_CODE_BITS) - 1));
}

// race_mailbox is what this process's kernels have released to its host.
extern uint32_t race_mailbox;

// race_publish adds a clock to a word that several threads add to.
void race_publish(uint32_t* word, uint32_t clock);

// race_pushed notes the place of a store to memory of the host, which may be to the entry of a ring: the
// proxy that serves it does so for that place (host.c).
void race_pushed(const void* at, race_place);

// Functions of race_engine.
void race_block(race_thread*, uint32_t, const race_launch*, uint32_t, mscclgo_emu_dim, mscclgo_emu_dim);
void race_ended(race_thread*, race_launch*);
void race_access(race_thread*, const void*, uint64_t, uint32_t, const void*);
uint64_t race_atomic(race_thread*, const mscclgo_emu_atomic*, const void*);
void race_fences(race_thread*, uint32_t, uint32_t, const void*);
void race_barrier(race_thread*, uint32_t, const void*);
void race_previous(race_thread*, uint32_t, const void*);
void race_warp(race_thread*, uint32_t, const void*);
void race_shared(const void*, uint64_t);
int race_beyond(const void*, uint64_t, const char*, char*, uint64_t);
void race_queue_copy(race_sequence*, const void*, uint64_t, uint64_t, uint64_t);
void race_queue_store(race_sequence*, const void*, uint64_t, uint64_t);
void race_queue_mark(race_sequence*);

#endif
