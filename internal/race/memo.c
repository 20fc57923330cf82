// memo.c: the memos of threads.
#include "memo.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int keyed;  // 1 if there is a key

static void make_key(void) { keyed = pthread_key_create(&key, free) == 0; }

static race_memo* make_memo(void) {
  pthread_once(&once, make_key);
  race_memo* m = keyed ? calloc(1, sizeof(*m)) : NULL;
  if (m && pthread_setspecific(key, m)) {
    free(m);
    m = NULL;
  }
  return m;
}

race_memo* race_remember(void) {
  static __thread race_memo* mine;
  if (!mine && !(mine = make_memo())) return NULL;
  if (mine->generation != race_generation) {
    memset(mine, 0, sizeof(*mine));
    mine->generation = race_generation;
  }
  return mine;
}
