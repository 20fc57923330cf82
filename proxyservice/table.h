// A table of what ids stand for. One thread at a time adds and any looks up
// meanwhile: entries never move and never go.
#ifndef MSCCLGO_PROXYSERVICE_TABLE_H
#define MSCCLGO_PROXYSERVICE_TABLE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PROXY_IDS = 1 << 16 };

typedef struct {
  uint32_t size;
  void* entries[PROXY_IDS];  // pages that are not used take no memory
} proxy_table;

// proxy_table_get returns what an id stands for, or NULL.
static inline void* proxy_table_get(const proxy_table* table, uint64_t id) {
  return id < __atomic_load_n(&table->size, __ATOMIC_ACQUIRE) ? table->entries[id] : NULL;
}

// proxy_table_add assigns the next id, which must exist, to a copy of an entry of n
// bytes. Without host memory it ends the process, as Go's allocator does.
static inline void proxy_table_add(proxy_table* table, const void* entry, size_t n) {
  void* copy = malloc(n);
  if (!copy) abort();
  table->entries[table->size] = memcpy(copy, entry, n);
  __atomic_store_n(&table->size, table->size + 1, __ATOMIC_RELEASE);
}

static inline void proxy_table_free(proxy_table* table) {
  for (uint32_t id = 0; id < table->size; id++) free(table->entries[id]);
}

#endif
