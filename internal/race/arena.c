// arena.c: the arena, and what is in tables there.
#define _GNU_SOURCE
#include "arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "memo.h"
#include "weak.h"

race_arena* race;
uint32_t race_generation;

enum { PAGE = RACE_PAGE, EACH = RACE_PAGE_SHADOW };

// TABLE_BYTES is one word for each page of a user's address space.
#define TABLE_BYTES ((uint64_t)1 << (47 - 12 + 3))

race_engine race_functions = {
    .block = race_block,
    .ended = race_ended,
    .access = race_access,
    .atomic = race_atomic,
    .fence = race_fences,
    .barrier = race_barrier,
    .previous = race_previous,
    .beyond = race_beyond,
    .warp = race_warp,
    .shared = race_shared,
    .copy = race_queue_copy,
    .store = race_queue_store,
    .mark = race_queue_mark,
};

static int arena_file = -1;

void race_weigh(void) {
  struct stat s;
  if (arena_file < 0 || fstat(arena_file, &s) || (uint64_t)s.st_blocks * 512 < race->memory) return;
  race_lose(RACE_LOST_MEMORY);
  __atomic_store_n(&race->full, 1, __ATOMIC_RELAXED);
}

static void* reserve(uint64_t bytes, int flags, int fd) {
  void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  return p == MAP_FAILED ? NULL : p;
}

const race_engine* race_start(int fd, uint64_t memory) {
  race = reserve(RACE_ARENA_BYTES, MAP_SHARED, fd);
  race_functions.table = reserve(TABLE_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (!race || !race_functions.table) {
    race_stop();
    return NULL;
  }
  madvise(race_functions.table, TABLE_BYTES, MADV_NOHUGEPAGE);
  if (memory) {  // a new arena
    race->memory = memory;
    race->shadow = RACE_SHADOW_START;
    race->image = RACE_IMAGE_START;
    race->clock = race->instances = race->streams = race->modules = race->text = race->sites =
        race->histories = 1;
    race->version = RACE_VERSION;
  }
  arena_file = dup(fd);
  race_generation++;
  race_mailbox = 0;
  race_host_start();
  return &race_functions;
}

int race_weaken(void) {
  if (!weak_start()) return 0;
  race_functions.weak = &weak_functions;
  return 1;
}

void race_stop(void) {
  if (race_functions.weak) weak_stop();
  race_functions.weak = NULL;
  if (arena_file >= 0) close(arena_file);
  arena_file = -1;
  if (race) munmap(race, RACE_ARENA_BYTES);
  if (race_functions.table) munmap(race_functions.table, TABLE_BYTES);
  race = NULL;
  race_functions.table = NULL;
}

race_arena* race_current(void) { return race; }

void race_lose(uint32_t what) {
  if (!(__atomic_load_n(&race->lost, __ATOMIC_RELAXED) & what))
    __atomic_fetch_or(&race->lost, what, __ATOMIC_RELAXED);
}

void race_join(void) { __atomic_fetch_add(&race->joined, 1, __ATOMIC_RELAXED); }

uint32_t race_text(const char* text) {
  const uint32_t bytes = (uint32_t)strlen(text) + 1;
  const uint32_t at = __atomic_fetch_add(&race->text, bytes, __ATOMIC_RELAXED);
  if (at + bytes > RACE_TEXT_BYTES) return 0;
  memcpy(race->texts + at, text, bytes);
  return at;
}

uint16_t race_sync(race_place place, const char* what) {
  race_memo* memo = race_remember();
  race_known* s = memo ? &memo->known[(place ^ place >> 8) % RACE_KNOWN] : NULL;
  if (s && s->place == place && s->what == what) return (uint16_t)s->number;
  race_lock(&race->lock);
  uint32_t i = 1;
  while (i < race->sites && (race->site[i].place != place || strcmp(race->texts + race->site[i].what, what)))
    i++;
  if (i == race->sites) {
    if (i < RACE_SITES - 1) {
      race->site[i] = (race_site){place, race_text(what)};
      __atomic_store_n(&race->sites, i + 1, __ATOMIC_RELEASE);
    } else {
      i = 0;
    }
  }
  race_unlock(&race->lock);
  if (s) *s = (race_known){place, i, what};
  return (uint16_t)i;
}

uint32_t race_new_instance(const race_instance* instance) {
  const uint32_t number = __atomic_fetch_add(&race->instances, 1, __ATOMIC_RELAXED);
  if (number >= RACE_INSTANCES) {
    race_lose(RACE_LOST_LAUNCHES);
    return 0;
  }
  race->instance[number] = *instance;
  return number;
}

uint32_t race_module_add(uint64_t digest, const void* image, uint64_t size) {
  race_lock(&race->lock);
  uint32_t i = 1;
  while (i < race->modules && race->module[i].digest != digest) i++;
  if (i == race->modules) {
    if (i == RACE_MODULES || race->image + size > RACE_IMAGE_START + RACE_IMAGE_BYTES) {
      i = 0;
    } else {
      race->module[i] = (race_module){digest, race->image, size};
      memcpy(race_at(race->image), image, size);
      race->image += size;
      race->modules++;
    }
  }
  race_unlock(&race->lock);
  return i;
}

// room returns the number of a region with as many bytes that is unused, or of a new one, or
// RACE_REGIONS. The caller holds the lock.
static uint32_t room(uint64_t size) {
  uint32_t i = 0;
  for (; i < race->regions; i++) {
    const race_region* r = &race->region[i];
    if (!r->users && r->size >= size && r->size / 2 <= size) return i;
  }
  const uint64_t bytes = size / PAGE * EACH;
  if (i == RACE_REGIONS || race->shadow + bytes > RACE_ARENA_BYTES) return RACE_REGIONS;
  race->region[i] = (race_region){.size = size, .shadow = race->shadow};
  race->shadow += bytes;
  return i;
}

// region_of returns the region whose first page has a shadow, an entry of the table, or NULL. The
// caller holds the lock.
static race_region* region_of(uint64_t entry) {
  const uint64_t offset = (uint64_t)(race_page(entry) - (char*)race);
  for (uint32_t i = 0; entry && i < race->regions; i++)
    if (race->region[i].users && race->region[i].shadow == offset) return &race->region[i];
  return NULL;
}

// leave ends one mapping of a region. The caller holds the lock.
static void leave(race_region* r, int freed) {
  if (freed) r->file[1] = 0;  // nobody can map it from now on, though who has it mapped keeps it
  if (!--r->users) r->file[0] = r->file[1] = 0;
  if (!r->users || freed) madvise(race_at(r->shadow), r->size / PAGE * EACH, MADV_REMOVE);
}

int race_map(uint64_t base, const race_region* about) {
  const uint64_t size = (about->size + PAGE - 1) / PAGE * PAGE;
  if (race_mapped(base)) race_unmap(base, size, 0);  // other memory takes its place
  race_lock(&race->lock);
  uint32_t i = 0;
  while (i < race->regions &&
         (!about->file[1] || memcmp(race->region[i].file, about->file, sizeof(about->file)) ||
          race->region[i].size < size))
    i++;
  if (i == race->regions) {
    i = room(size);
    if (i == RACE_REGIONS) {
      race_unlock(&race->lock);
      race_lose(RACE_LOST_REGION);
      return 0;
    }
    race_region* r = &race->region[i];
    const race_region had = *r;
    *r = *about;
    r->size = had.size;
    r->shadow = had.shadow;
    if (i == race->regions) __atomic_store_n(&race->regions, i + 1, __ATOMIC_RELEASE);
  }
  race->region[i].users++;
  race_unlock(&race->lock);
  uint64_t shadow = (uint64_t)(uintptr_t)race_at(race->region[i].shadow) | (about->pinned ? 2 : 0);
  for (uint64_t at = 0; at < size; at += PAGE, shadow += EACH)
    race_functions.table[(base + at) / PAGE] = shadow;
  const uint64_t end = race->region[i].bytes;
  if (end % PAGE && end < size)  // of an import the owner has told it
    race_functions.table[(base + end) / PAGE] |= end % PAGE << RACE_END_SHIFT;
  return 1;
}

void race_unmap(uint64_t base, uint64_t size, int freed) {
  if (race_functions.weak) weak_drop((void*)(uintptr_t)base, size);
  const uint64_t first = race_functions.table[base / PAGE];
  for (uint64_t at = 0; at < size; at += PAGE) race_functions.table[(base + at) / PAGE] = 0;
  race_lock(&race->lock);
  race_region* r = region_of(first);
  if (r) leave(r, freed);
  race_unlock(&race->lock);
}

int race_mapped(uint64_t base) { return race_functions.table[base / PAGE] != 0; }

void race_forget(uint64_t base) {
  char* shadow = race_page(race_functions.table[base / PAGE]);
  if (shadow) madvise(shadow, EACH, MADV_REMOVE);
}

void race_shared(const void* begin, uint64_t bytes) {
  if (race_functions.weak) weak_drop(begin, bytes);
  for (uint64_t page = (uintptr_t)begin / PAGE; page <= ((uintptr_t)begin + bytes - 1) / PAGE; page++) {
    if (race_functions.table[page]) continue;
    void* shadow = reserve(EACH, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (shadow) race_functions.table[page] = (uint64_t)(uintptr_t)shadow | 1;
  }
}
