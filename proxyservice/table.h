// A table of what ids stand for. One thread at a time adds, another looks up
// meanwhile: what is there never moves and never goes.
#ifndef MSCCLGO_PROXYSERVICE_TABLE_H
#define MSCCLGO_PROXYSERVICE_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { PROXY_CHUNK = 256, PROXY_CHUNKS = 256 };  // ids have 16 bits

typedef struct {
  uint32_t size;
  void** chunks[PROXY_CHUNKS];
} proxy_table;

// proxy_table_get gives what an id stands for, or NULL.
static inline void* proxy_table_get(const proxy_table* table, uint64_t id) {
  if (id >= __atomic_load_n(&table->size, __ATOMIC_ACQUIRE)) return NULL;
  return table->chunks[id / PROXY_CHUNK][id % PROXY_CHUNK];
}

// proxy_table_add gives the next id to an entry, which may be NULL. It says whether
// there was host memory, and an id left.
static inline bool proxy_table_add(proxy_table* table, void* entry) {
  uint32_t id = table->size;
  if (id == PROXY_CHUNK * PROXY_CHUNKS) return false;
  void*** chunk = &table->chunks[id / PROXY_CHUNK];
  if (!*chunk) *chunk = calloc(PROXY_CHUNK, sizeof **chunk);
  if (!*chunk) return false;
  (*chunk)[id % PROXY_CHUNK] = entry;
  __atomic_store_n(&table->size, id + 1, __ATOMIC_RELEASE);
  return true;
}

// proxy_table_free frees the table, and its entries with drop, if that is not NULL.
static inline void proxy_table_free(proxy_table* table, void (*drop)(void*)) {
  for (uint32_t id = 0; drop && id < table->size; id++) drop(proxy_table_get(table, id));
  for (int i = 0; i < PROXY_CHUNKS; i++) free(table->chunks[i]);
}

#endif
