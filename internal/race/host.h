// host.h: what Go calls: the arena, and what streams and hosts do.
#ifndef MSCCLGO_RACE_HOST_H
#define MSCCLGO_RACE_HOST_H

#include "engine.h"
#include "layout.h"

// race_start maps an arena, and race_stop unmaps it. memory is not 0 for a new one: the
// bytes that it may take. It returns NULL where there is no room.
const race_engine* race_start(int fd, uint64_t memory);
void race_stop(void);
race_arena* race_current(void);

// race_weaken has loads get older values (weak.c), and no races be looked for, until race_stop. It
// returns 0 if there is no memory.
int race_weaken(void);

uint32_t race_text(const char* text);
void race_lose(uint32_t what);
void race_join(void);  // counts a device that was opened

// race_module_add returns the number of an image, or 0.
uint32_t race_module_add(uint64_t digest, const void* image, uint64_t size);

// race_map gives whole pages a shadow, which is the shadow of their file if that has one already. about has
// no shadow yet. It returns 0 if there is no room. race_unmap takes the shadow away, for all processes if the
// memory is freed. When nobody maps a shadow any more, other memory may have it.
int race_map(uint64_t base, const race_region* about);
void race_unmap(uint64_t base, uint64_t size, int freed);

// race_mapped reports whether the page at an address has a shadow, and race_forget has it be as if
// nobody had accessed the page.
int race_mapped(uint64_t base);
void race_forget(uint64_t base);

// race_about returns the text of the memory that begins at base, and how many bytes it has, or 0.
uint32_t race_about(uint64_t base, uint64_t* bytes);

void race_host_start(void);

// race_new_sequence returns a sequence with nothing done.
race_sequence race_new_sequence(void);

// race_learn adds to what a sequence knows.
void race_learn(race_sequence* sequence, uint32_t clock);

// race_begin begins the next thing that a sequence does, name and where are texts. race_finish ends it.
race_launch race_begin(race_sequence* sequence, uint32_t name, uint32_t where, uint32_t device);
void race_finish(race_sequence* sequence, const race_launch* launch);

// race_both returns a clock of what either knows.
uint32_t race_both(uint32_t a, uint32_t b);

// race_touch is a read or write by what a sequence does: a copy, a fill. place is a text.
void race_touch(const race_launch* launch, uint64_t at, uint64_t n, uint32_t flags, uint32_t place);

// race_store is a store of a word that releases. race_await is a wait, for at least a value or for that
// value, which has ended and acquires what was; race_expect comes before it begins.
// place is a text, or a line of a kernel.
// race_update does an atomic operation of abi.h, exchange or addition, which releases, and with
// an exchange acquires. It returns 0 and does nothing if the word is not watched.
void race_store(const race_launch* launch, uint64_t at, uint64_t value, uint32_t place);
int race_update(race_launch* launch, uint32_t what, uint64_t at, uint64_t value, uint64_t* old);
void race_expect(uint64_t at);
void race_await(race_launch* launch, uint64_t at, uint64_t value, int equal);

// race_asked is who asks for something by a trigger: the place of its line, and what it released with
// the trigger, a clock. A place of 0 is nobody's.
typedef struct {
  race_place place;
  uint32_t known;
} race_asked;

// race_who_asks returns who wrote the entry of a ring, and race_queued is an access by a transport
// for that.
race_asked race_who_asks(const void* entry);
void race_queued(race_sequence* sequence, race_asked asked, uint64_t at, uint64_t n, uint32_t flags);

// race_host_handled has what proxies serve from now on come after what hosts have done.
void race_host_handled(void);

// race_sent notes the place that asks for what goes from a rank to an offset of a memory of another's,
// or is read there, and race_arrived returns it there, or 0. Of what is on its way to one offset the
// last counts.
typedef struct {
  uint32_t from, to, memory;
  uint64_t offset;
} race_route;
void race_sent(race_route, race_place);
race_place race_arrived(race_route);

// race_host_now returns what this process's host knows, race_host_learn adds to it, and
// race_host_meet adds what all hosts know. race_host_touch is an access of the host's.
uint32_t race_host_now(void);
void race_host_learn(uint32_t clock);
void race_host_meet(void);
void race_host_touch(uint64_t at, uint64_t n, uint32_t flags, uint32_t name, uint32_t where, uint32_t place);

#endif
