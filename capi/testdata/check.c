// What the tests of the library do in a process of C: check NAME [ARGUMENT].
#define _GNU_SOURCE
#include <mscclgo.h>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) expect((call), MSCCLGO_OK, "", #call, __LINE__)
#define FAILS(status, part, call) expect((call), (status), (part), #call, __LINE__)
#define TRUE(condition) hold((condition), #condition, __LINE__)

static void expect(mscclgo_status got, mscclgo_status want, const char* part, const char* call, int line) {
  const char* text = got == MSCCLGO_OK ? "" : mscclgo_error_text();
  if (got == want && strstr(text, part)) return;
  fprintf(stderr, "check.c:%d: %s: %s: %s\nwant %s with %s\n", line, call, mscclgo_status_name(got), text,
          mscclgo_status_name(want), part);
  exit(1);
}

static void hold(int condition, const char* text, int line) {
  if (condition) return;
  fprintf(stderr, "check.c:%d: not so: %s\n", line, text);
  exit(1);
}

// emulated reports whether a device is.
static int emulated(mscclgo_device d) {
  mscclgo_device_info about;
  OK(mscclgo_device_get_info(d, &about));
  return strncmp(about.name, "emu", 3) == 0;
}

// open_group makes a group of one rank.
static mscclgo_group open_group(void) {
  mscclgo_rendezvous r;
  char id[MSCCLGO_ID_BYTES];
  mscclgo_group g;
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  OK(mscclgo_rendezvous_id(r, id, sizeof id));
  OK(mscclgo_group_connect(id, 0, 1, NULL, &g));
  OK(mscclgo_rendezvous_destroy(r));
  return g;
}

// AWAIT waits until something is so, a minute at most.
#define AWAIT(condition)                 \
  do {                                   \
    for (int n = 0; !(condition); n++) { \
      TRUE(n < 60000);                   \
      usleep(1000);                      \
    }                                    \
  } while (0)

static char shared_id[MSCCLGO_ID_BYTES];

enum { RANKS = 3 };

// together runs the ranks of a group, on threads.
static void together(void* (*rank)(void*)) {
  mscclgo_rendezvous r;
  pthread_t threads[RANKS];
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  OK(mscclgo_rendezvous_id(r, shared_id, sizeof shared_id));
  for (intptr_t i = 0; i < RANKS; i++) pthread_create(&threads[i], NULL, rank, (void*)i);
  for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
  OK(mscclgo_rendezvous_destroy(r));
}

static const char kernels[] =
    "#include <mscclgo/group.cuh>\n"
    "extern \"C\" __global__ void add(int* to, char a, long b, short c) { *to = a + (int)b + c; }\n"
    "extern \"C\" __global__ void nothing() {}\n"
    "typedef const float scalar; using floats = scalar*;\n"
    "extern \"C\" __global__ void named(scalar* a, floats b, const mscclgo::GroupHandle* c, void** d, int e) "
    "{}\n"
    "extern \"C\" __global__ void ranks(mscclgo::GroupHandle g, mscclgo::PeerMemory p, int* to) {\n"
    "  *to = 100 * g.size + 10 * g.rank + (p.ranks[g.rank] == (void*)to);\n"
    "}\n";

static void handles(void) {
  const char* destroyed = "destroyed";
  mscclgo_device d, none = NULL;
  mscclgo_buffer b, slice;
  mscclgo_stream s;
  mscclgo_module m;
  mscclgo_kernel k, again;
  OK(mscclgo_device_open("emu:0", &d));
  OK(mscclgo_buffer_create(d, 100, &b));
  OK(mscclgo_buffer_slice(b, 10, 20, &slice));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_module_compile(d, "kernels.cu", kernels, NULL, &m));
  OK(mscclgo_module_kernel(m, "add", &k));
  OK(mscclgo_module_kernel(m, "add", &again));
  TRUE(k == again);

  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_buffer_create(none, 100, &b));
  FAILS(MSCCLGO_INVALID, "a buffer", mscclgo_stream_synchronize((mscclgo_stream)b, -1));
  FAILS(MSCCLGO_INVALID, "a stream", mscclgo_buffer_destroy((mscclgo_buffer)s));
  for (uintptr_t garbage = 1; garbage != 0; garbage <<= 1) {
    FAILS(MSCCLGO_INVALID, "", mscclgo_buffer_destroy((mscclgo_buffer)garbage));
    FAILS(MSCCLGO_INVALID, "", mscclgo_group_destroy((mscclgo_group)garbage));
    mscclgo_channel_options options = {.inbox = (mscclgo_buffer)garbage};
    mscclgo_memory_channels c;
    FAILS(MSCCLGO_INVALID, "", mscclgo_memory_channels_create((mscclgo_group)d, b, &options, &c));
  }
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_buffer_create(d, 100, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_device_open(NULL, &d));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_copy_in(b, 0, NULL, 1));
  FAILS(MSCCLGO_INVALID, "", mscclgo_copy_in(b, 1, kernels, 100));
  FAILS(MSCCLGO_INVALID, "", mscclgo_copy_in(b, UINT64_MAX, kernels, 2));
  FAILS(MSCCLGO_INVALID, "", mscclgo_buffer_create(d, 0, &b));
  FAILS(MSCCLGO_INVALID, "256", mscclgo_stream_fill(s, b, 0, 256, 1));
  FAILS(MSCCLGO_INVALID, "missing", mscclgo_module_kernel(m, "missing", &again));
  FAILS(MSCCLGO_INVALID, "wrong.cu", mscclgo_module_compile(d, "wrong.cu", "nonsense", NULL, &m));

  OK(mscclgo_buffer_destroy(b));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_buffer_destroy(b));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_buffer_destroy(slice));
  OK(mscclgo_module_destroy(m));
  mscclgo_launch_config config = {.grid = {1}};
  mscclgo_parameter_type type;
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_kernel_launch(k, s, &config, NULL, 0));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_kernel_parameter_type(k, 0, &type));
  OK(mscclgo_device_destroy(d));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_stream_destroy(s));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_device_destroy(d));

  mscclgo_group g = open_group();
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_group_device(g, &none));
  TRUE(d == none);
  FAILS(MSCCLGO_INVALID, "the group's", mscclgo_device_destroy(d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_group_destroy(g));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_group_barrier(g, -1));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_stream_destroy(s));
}

static void launches(void) {
  mscclgo_group g = open_group();
  mscclgo_device d;
  mscclgo_module m;
  mscclgo_kernel add, nothing, ranks;
  mscclgo_stream s;
  mscclgo_buffer b;
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_module_compile(d, "kernels.cu", kernels, NULL, &m));
  OK(mscclgo_module_kernel(m, "add", &add));
  OK(mscclgo_module_kernel(m, "nothing", &nothing));
  OK(mscclgo_module_kernel(m, "ranks", &ranks));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, sizeof(int), &b));

  struct {
    void* to;
    char a;
    long b;
    short c;
  } p = {.a = 1, .b = 20, .c = 300};
  OK(mscclgo_buffer_pointer(b, &p.to));
  mscclgo_parameter places[5];
  size_t count;
  OK(mscclgo_kernel_parameters(add, NULL, 0, &count));
  TRUE(count == 4);
  OK(mscclgo_kernel_parameters(add, places, 5, &count));
  TRUE(places[3].offset == (size_t)((char*)&p.c - (char*)&p) && places[3].bytes == sizeof p.c);

  static const struct {
    const char *name, *type;
    mscclgo_kind kind, pointee;
    uint32_t bytes, pointee_bytes;
  } want[] = {
      {"to", "int*", MSCCLGO_KIND_POINTER, MSCCLGO_KIND_INT, 8, 4},
      {"a", "char", MSCCLGO_KIND_INT, MSCCLGO_KIND_UNKNOWN, 1, 0},
      {"b", "long", MSCCLGO_KIND_INT, MSCCLGO_KIND_UNKNOWN, 8, 0},
      {"c", "short", MSCCLGO_KIND_INT, MSCCLGO_KIND_UNKNOWN, 2, 0},
  };
  for (size_t i = 0; i < count; i++) {
    mscclgo_parameter_type t;
    OK(mscclgo_kernel_parameter_type(add, i, &t));
    TRUE(strcmp(t.name, want[i].name) == 0 && strcmp(t.type, want[i].type) == 0 && t.kind == want[i].kind);
    TRUE(t.bytes == want[i].bytes && t.pointee == want[i].pointee &&
         t.pointee_bytes == want[i].pointee_bytes);
  }
  mscclgo_parameter_type type;
  OK(mscclgo_kernel_parameter_type(ranks, 0, &type));
  TRUE(strcmp(type.type, "GroupHandle") == 0 && type.kind == MSCCLGO_KIND_STRUCT);
  TRUE(type.bytes == sizeof(mscclgo_group_handle) && type.pointee == MSCCLGO_KIND_UNKNOWN);
  FAILS(MSCCLGO_INVALID, "no parameter 4 of add, which has 4", mscclgo_kernel_parameter_type(add, 4, &type));
  FAILS(MSCCLGO_INVALID, "no parameter 0", mscclgo_kernel_parameter_type(nothing, 0, &type));
  FAILS(MSCCLGO_INVALID, "18446744073709551615", mscclgo_kernel_parameter_type(add, SIZE_MAX, &type));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_kernel_parameter_type(add, 0, NULL));

  // Names of the program's own.
  mscclgo_kernel named;
  const char* to;
  static const struct {
    const char *type, *to;
    mscclgo_kind pointee;
    uint32_t bytes;
  } named_want[] = {{"scalar*", "float", MSCCLGO_KIND_FLOAT, 4},
                    {"floats", "float", MSCCLGO_KIND_FLOAT, 4},
                    {"const GroupHandle*", "GroupHandle", MSCCLGO_KIND_UNKNOWN, 0},
                    {"void**", "void*", MSCCLGO_KIND_POINTER, 8},
                    {"int", "", MSCCLGO_KIND_UNKNOWN, 0}};
  OK(mscclgo_module_kernel(m, "named", &named));
  for (size_t i = 0; i < 5; i++) {
    OK(mscclgo_kernel_parameter_type(named, i, &type));
    OK(mscclgo_kernel_parameter_pointee(named, i, &to));
    TRUE(strcmp(type.type, named_want[i].type) == 0 && strcmp(to, named_want[i].to) == 0);
    TRUE(type.pointee == named_want[i].pointee && type.pointee_bytes == named_want[i].bytes);
  }
  FAILS(MSCCLGO_INVALID, "no parameter 5 of named, which has 5",
        mscclgo_kernel_parameter_pointee(named, 5, &to));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_kernel_parameter_pointee(named, 0, NULL));

  mscclgo_launch_config config = {.grid = {1}};
  size_t whole = (size_t)((char*)&p.c - (char*)&p) + sizeof p.c;
  for (size_t n = 0; n <= sizeof p + 32; n++) {
    mscclgo_status status = mscclgo_kernel_launch(add, s, &config, &p, n);
    TRUE((status == MSCCLGO_OK) == (n >= whole && n <= sizeof p));
  }
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_kernel_launch(add, s, &config, NULL, sizeof p));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_kernel_launch(add, s, NULL, &p, sizeof p));
  config.block[0] = 1 << 20;
  FAILS(MSCCLGO_INVALID, "block", mscclgo_kernel_launch(nothing, s, &config, NULL, 0));
  config.block[0] = 0;
  OK(mscclgo_kernel_launch(nothing, s, &config, NULL, 0));
  // All the shared memory that a block can have, with no call before.
  mscclgo_device_info info;
  OK(mscclgo_device_get_info(d, &info));
  int blocks = 0;
  config.dynamic_shared_bytes = (uint32_t)info.max_shared_per_block;
  OK(mscclgo_group_max_blocks(g, nothing, 1, info.max_shared_per_block, &blocks));
  TRUE(blocks > 0);
  OK(mscclgo_kernel_launch(nothing, s, &config, NULL, 0));
  config.dynamic_shared_bytes++;
  FAILS(MSCCLGO_INVALID, "a block of", mscclgo_kernel_launch(nothing, s, &config, NULL, 0));
  FAILS(MSCCLGO_UNSUPPORTED, "no block",
        mscclgo_group_max_blocks(g, nothing, 1, info.max_shared_per_block + 1, &blocks));
  config.dynamic_shared_bytes = 0;
  OK(mscclgo_group_synchronize(g, s, -1));
  int got = 0;
  OK(mscclgo_copy_out(&got, b, 0, sizeof got));
  TRUE(got == 321);

  struct {
    mscclgo_group_handle group;
    mscclgo_peer_memory_handle peers;
    void* to;
  } by_value = {.to = p.to};
  mscclgo_peer_memory peers;
  OK(mscclgo_peer_memory_create(g, b, &peers));
  OK(mscclgo_group_get_handle(g, &by_value.group));
  OK(mscclgo_peer_memory_get_handle(peers, &by_value.peers));
  OK(mscclgo_kernel_launch(ranks, s, &config, &by_value, sizeof by_value));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(&got, b, 0, sizeof got));
  TRUE(got == 101);

  // Events and a graph.
  mscclgo_event first, last;
  mscclgo_graph graph;
  double ms = -1;
  int done = 0;
  OK(mscclgo_event_create(d, &first));
  OK(mscclgo_event_create(d, &last));
  FAILS(MSCCLGO_INVALID, "", mscclgo_event_elapsed(first, last, &ms));
  FAILS(MSCCLGO_INVALID, "", mscclgo_stream_end_capture(s, &graph));
  OK(mscclgo_stream_begin_capture(s));
  OK(mscclgo_stream_fill(s, b, 0, 7, sizeof got));
  OK(mscclgo_stream_end_capture(s, &graph));
  OK(mscclgo_event_record(first, s));
  OK(mscclgo_graph_launch(graph, s));
  OK(mscclgo_event_record(last, s));
  OK(mscclgo_event_wait(last, s));
  OK(mscclgo_event_synchronize(last, -1));
  OK(mscclgo_event_query(last, &done));
  TRUE(done == 1);
  OK(mscclgo_event_elapsed(first, last, &ms));
  TRUE(ms >= 0);
  OK(mscclgo_stream_synchronize(s, -1));
  OK(mscclgo_copy_out(&got, b, 0, sizeof got));
  TRUE(got == 0x07070707);

  // A stream and an event of other code are these by their handles.
  mscclgo_stream wrapped;
  mscclgo_event mark;
  void *stream_handle, *event_handle;
  OK(mscclgo_stream_handle(s, &stream_handle));
  OK(mscclgo_event_handle(last, &event_handle));
  if (emulated(d))  // CUDA's driver takes any address for a stream
    FAILS(MSCCLGO_INVALID, "", mscclgo_stream_wrap(d, (void*)7777, &wrapped));
  FAILS(MSCCLGO_INVALID, "", mscclgo_event_wrap(d, NULL, &mark));
  OK(mscclgo_stream_wrap(d, stream_handle, &wrapped));
  OK(mscclgo_event_wrap(d, event_handle, &mark));
  OK(mscclgo_stream_begin_capture(s));  // as its owner
  OK(mscclgo_all_reduce(g, wrapped, p.to, p.to, 1, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_stream_fill(wrapped, b, 0, 9, sizeof got));
  OK(mscclgo_stream_end_capture(s, &graph));
  OK(mscclgo_graph_launch(graph, wrapped));
  OK(mscclgo_event_record(mark, wrapped));
  OK(mscclgo_event_synchronize(last, -1));
  OK(mscclgo_copy_out(&got, b, 0, sizeof got));
  TRUE(got == 0x09090909);
  OK(mscclgo_stream_destroy(wrapped));
  OK(mscclgo_stream_synchronize(s, -1));
  OK(mscclgo_group_destroy(g));
}

static const char pipe_source[] =
    "#include <mscclgo/pipe.cuh>\n"
    "extern \"C\" __global__ void pass(mscclgo::PipeSet pipes, const char* from, char* to, uint64_t bytes) "
    "{\n"
    "  const bool out = blockIdx.x == 0;\n"
    "  if (out) pipes.to(0).send(from, bytes);\n"
    "  else pipes.from(0).recv(to, bytes);\n"
    "}\n";

// ring_of_pipes has a rank be wrong about pipes, and leave while there are some.
static void* ring_of_pipes(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group g;
  mscclgo_pipes p;
  mscclgo_proxy proxy;
  int next = (int)(me + 1) % RANKS, before = (int)(me + RANKS - 1) % RANKS;
  mscclgo_pipe_options o = {.to = &next, .from = &before, .to_count = 1, .from_count = 1}, wrong = o;
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, NULL, &g));
  OK(mscclgo_proxy_create(g, &proxy));
  wrong.to = NULL;
  if (me == 0) FAILS(MSCCLGO_INVALID, "NULL", mscclgo_pipes_create(g, &wrong, &p));
  if (me != 0) FAILS(MSCCLGO_REMOTE, "rank 0", mscclgo_pipes_create(g, &o, &p));
  wrong = o, wrong.proxy = (mscclgo_proxy)g;
  if (me == 1) FAILS(MSCCLGO_INVALID, "a proxy", mscclgo_pipes_create(g, &wrong, &p));
  if (me != 1) FAILS(MSCCLGO_REMOTE, "rank 1", mscclgo_pipes_create(g, &o, &p));
  OK(mscclgo_pipes_create(g, &o, &p));
  o.proxy = proxy, o.ports = 1;
  OK(mscclgo_pipes_create(g, &o, &p));
  o.lazy = 1;
  OK(mscclgo_pipes_create(g, &o, &p));
  int both[] = {next, before}, self = (int)me;
  FAILS(MSCCLGO_INVALID, "no pipes to or from it", mscclgo_pipes_open(p, &self, 1));
  OK(mscclgo_pipes_open(p, both, 2));
  if (me != 0) TRUE(mscclgo_group_barrier(g, -1) != MSCCLGO_OK);  // rank 0 does not come
  OK(mscclgo_group_destroy(g));
  return NULL;
}

// pipes has a rank send to itself, by threads and by a proxy, through few slots, at once, and through
// slots that it borrows.
static void pipes(void) {
  mscclgo_group g = open_group(), other = open_group();
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer b;
  mscclgo_module m;
  mscclgo_kernel k;
  mscclgo_proxy proxy, foreign;
  mscclgo_pipes p;
  enum { BYTES = 100000 };
  struct {
    mscclgo_pipe_set set;
    char *from, *to;
    uint64_t bytes;
  } parameters = {.bytes = BYTES};
  void* pointer;
  static char sent[BYTES], got[BYTES];
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, 2 * BYTES, &b));
  OK(mscclgo_buffer_pointer(b, &pointer));
  parameters.from = pointer, parameters.to = parameters.from + BYTES;
  OK(mscclgo_module_compile(d, "pass.cu", pipe_source, NULL, &m));
  OK(mscclgo_module_kernel(m, "pass", &k));
  OK(mscclgo_proxy_create(g, &proxy));
  OK(mscclgo_proxy_create(other, &foreign));

  int self[] = {0, 0}, wrong[] = {1};
  mscclgo_launch_config config = {.grid = {2}, .block = {64}};
  mscclgo_pipe_options o = {
      .to = self, .from = self, .to_count = 1, .from_count = 1, .slots = 2, .slot_bytes = 1024};
  for (int way = 0; way < 5; way++) {
    o.ports = way == 1;
    o.shared = way == 3;
    o.lazy = way == 4;
    o.proxy = way == 1 ? proxy : NULL;
    o.buffer = way == 2 ? b : NULL;
    o.name = "itself";
    OK(mscclgo_pipes_create(g, &o, &p));
    OK(mscclgo_pipes_get_set(p, &parameters.set));
    OK(mscclgo_pipes_open(p, self, 1));
    for (int i = 0; i < BYTES; i++) sent[i] = (char)(i * 7 + way), got[i] = 0;
    OK(mscclgo_copy_in(b, 0, sent, BYTES));
    OK(mscclgo_copy_in(b, BYTES, got, BYTES));
    OK(mscclgo_kernel_launch(k, s, &config, &parameters, sizeof parameters));
    OK(mscclgo_group_synchronize(g, s, -1));
    OK(mscclgo_copy_out(got, b, BYTES, BYTES));
    TRUE(memcmp(sent, got, BYTES) == 0);
    if (way == 1) {
      FAILS(MSCCLGO_INVALID, "the proxy's", mscclgo_pipes_destroy(p));
      OK(mscclgo_proxy_destroy(proxy));
    } else {
      OK(mscclgo_pipes_destroy(p));
    }
    FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_pipes_get_set(p, &parameters.set));
  }

  mscclgo_pipe_options none = {0}, bad = o;
  OK(mscclgo_pipes_create(g, &none, &p));  // of no ranks
  OK(mscclgo_pipes_get_set(p, &parameters.set));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_pipes_get_set(p, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_pipes_open(p, NULL, 1));
  FAILS(MSCCLGO_INVALID, "-1 ranks", mscclgo_pipes_open(p, self, -1));
  OK(mscclgo_pipes_open(p, NULL, 0));
  mscclgo_pipe_pool pool;
  OK(mscclgo_group_get_pipe_pool(other, &pool));
  TRUE(pool.bytes == 0);
  OK(mscclgo_group_get_pipe_pool(g, &pool));
  TRUE(pool.bytes == 64 << 20 && pool.for_ends > 0 && pool.taken == 0 && pool.lots > 0 && pool.lent == 0);
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_group_get_pipe_pool(g, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_pipes_create(g, NULL, &p));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_pipes_create(g, &o, NULL));
  FAILS(MSCCLGO_INVALID, "pipes", mscclgo_pipes_destroy((mscclgo_pipes)b));
#define BAD(part, member, value)                                     \
  do {                                                               \
    bad = o;                                                         \
    bad.member = (value);                                            \
    FAILS(MSCCLGO_INVALID, part, mscclgo_pipes_create(g, &bad, &p)); \
  } while (0)
  BAD("NULL", to, NULL);
  BAD("not distinct ranks", from, wrong);
  BAD("-1 ranks", to_count, -1);
  BAD("2 ranks", from_count, 2);
  BAD("is not in its", from_count, 0);
  BAD("power of two", slots, 3);
  BAD("multiple of 128", slot_bytes, 100);
  BAD("pipes for each peer", per_peer, -1);
  BAD("need a service", ports, 1);
  BAD("destroyed", proxy, proxy);
  BAD("another group", proxy, foreign);
  BAD("a buffer", buffer, (mscclgo_buffer)s);
  OK(mscclgo_group_error(g));
  OK(mscclgo_group_destroy(g));
  OK(mscclgo_group_destroy(other));
  together(ring_of_pipes);
}

enum { WORDS = 64, AREA = WORDS * sizeof(uint64_t) };

// ring_of_ports has each rank do all operations on streams with the next one and the one before.
static void* ring_of_ports(void* number) {
  intptr_t me = (intptr_t)number;
  int next = (int)(me + 1) % RANKS, before = (int)(me + RANKS - 1) % RANKS;
  mscclgo_group g;
  mscclgo_device d;
  mscclgo_stream s, wrapped;
  mscclgo_buffer local, inbox;
  mscclgo_proxy proxy;
  mscclgo_port_channels c;
  mscclgo_graph graph;
  void* handle;
  uint64_t mine[WORDS], theirs[WORDS] = {0};
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, NULL, &g));
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_stream_handle(s, &handle));
  OK(mscclgo_stream_wrap(d, handle, &wrapped));
  OK(mscclgo_buffer_create(d, AREA, &local));
  OK(mscclgo_buffer_create(d, AREA, &inbox));
  for (uint64_t i = 0; i < WORDS; i++) mine[i] = 1000 * (uint64_t)me + i;
  theirs[32] = 100, theirs[33] = 900 + (uint64_t)me;
  OK(mscclgo_copy_in(local, 0, mine, AREA));
  OK(mscclgo_copy_in(inbox, 0, theirs, AREA));
  OK(mscclgo_proxy_create(g, &proxy));
  mscclgo_channel_options o = {.per_peer = 2, .inbox = inbox, .name = "ring"};
  OK(mscclgo_port_channels_create_for_streams(g, proxy, local, &o, &c));

  // To the next one. What comes behind a put of one channel, on any stream, is behind it there.
  OK(mscclgo_port_put(c, s, 0, next, 0, 8, 80));
  OK(mscclgo_port_put_with_signal(c, wrapped, 0, next, 80, 88, 80));
  OK(mscclgo_port_put_with_signal_and_flush(c, s, 1, next, 160, 168, 80));
  OK(mscclgo_port_store(c, s, 0, next, 240, 7000 + (uint64_t)me));
  OK(mscclgo_port_store_and_flush(c, s, 1, next, 248, UINT64_MAX - (uint64_t)me));
  OK(mscclgo_port_add(c, s, 0, next, 256, 5));
  OK(mscclgo_port_add_and_flush(c, s, 0, next, 256, UINT64_MAX));
  OK(mscclgo_port_signal(c, s, 0, next));
  OK(mscclgo_port_signal(c, s, 1, next));
  for (int i = 0; i < 2; i++) OK(mscclgo_port_wait(c, s, 0, before));
  for (int i = 0; i < 2; i++) OK(mscclgo_port_wait(c, s, 1, before));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(theirs, inbox, 0, AREA));
  for (uint64_t i = 0; i < 30; i++) TRUE(theirs[i] == 1000 * (uint64_t)before + i + 1);
  TRUE(theirs[30] == 7000 + (uint64_t)before && theirs[31] == UINT64_MAX - (uint64_t)before);
  TRUE(theirs[32] == 104 && theirs[33] == 900 + (uint64_t)me && theirs[34] == 0);

  // What the one before has got of the one before it, and a word in place of the next one's.
  OK(mscclgo_group_barrier(g, -1));
  OK(mscclgo_port_get(c, s, 0, before, 0, 320, 80));
  OK(mscclgo_port_flush(c, s, 0, before));
  OK(mscclgo_port_get_and_flush(c, s, 1, before, 240, 400, 8));
  OK(mscclgo_port_exchange(c, s, 1, next, 264, 77, 416));
  OK(mscclgo_port_exchange_and_flush(c, s, 1, next, 264, UINT64_MAX, 424));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_group_barrier(g, -1));
  OK(mscclgo_copy_out(mine, local, 0, AREA));
  OK(mscclgo_copy_out(theirs, inbox, 0, AREA));
  for (uint64_t i = 0; i < WORDS; i++) {
    uint64_t want = 1000 * (uint64_t)me + i;
    if (i >= 40 && i < 50) want = 1000 * (uint64_t)next + i - 39;
    if (i == 50) want = 7000 + (uint64_t)next;
    if (i == 52) want = 900 + (uint64_t)next;
    if (i == 53) want = 77;
    TRUE(mine[i] == want);
  }
  TRUE(theirs[33] == UINT64_MAX);

  // In a graph, which its stream's owner captures.
  OK(mscclgo_stream_begin_capture(s));
  OK(mscclgo_port_add(c, wrapped, 0, next, 272, 3));
  OK(mscclgo_port_signal(c, wrapped, 0, next));
  OK(mscclgo_port_wait(c, wrapped, 0, before));
  OK(mscclgo_stream_end_capture(s, &graph));
  for (int i = 0; i < 4; i++) OK(mscclgo_graph_launch(graph, s));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(theirs, inbox, 0, AREA));
  TRUE(theirs[34] == 12);
  OK(mscclgo_group_barrier(g, -1));
  OK(mscclgo_group_destroy(g));
  return NULL;
}

// lone_wait has rank 0 wait for a signal that does not come, until the group's timeout or the end of the
// group.
static void* lone_wait(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group_options options = {.timeout_ms = 3000};
  mscclgo_group g;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer b;
  mscclgo_proxy proxy;
  mscclgo_port_channels c;
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, &options, &g));
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, AREA, &b));
  OK(mscclgo_stream_fill(s, b, 0, 0, AREA));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_proxy_create(g, &proxy));
  OK(mscclgo_port_channels_create_for_streams(g, proxy, b, NULL, &c));
  if (me == 0) {
    OK(mscclgo_port_wait(c, s, 0, 1));
    OK(mscclgo_port_store(c, s, 0, 2, 0, 7));  // which does nothing
    FAILS(MSCCLGO_TIMEOUT, "", mscclgo_group_synchronize(g, s, -1));
    TRUE(mscclgo_error_rank() == 0 && mscclgo_error_peer() == 1);
    FAILS(MSCCLGO_TIMEOUT, "", mscclgo_port_wait(c, s, 0, 1));
  } else {
    while (mscclgo_group_error(g) == MSCCLGO_OK) usleep(1000);
    uint64_t word = 1;
    OK(mscclgo_copy_out(&word, b, 0, sizeof word));
    TRUE(word == 0);
  }
  mscclgo_group_destroy(g);
  return NULL;
}

// ports has operations of port channels on streams be right, wrong, and without an end.
static void ports(void) {
  const char *destroyed = "destroyed", *outside = "outside", *aligned = "not aligned to 8 bytes";
  mscclgo_group g = open_group(), other = open_group();
  mscclgo_device d, second;
  mscclgo_stream s, stale, foreign;
  mscclgo_buffer b, inbox;
  mscclgo_proxy proxy, others;
  mscclgo_port_channels c, plain, none;
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_stream_create(d, &stale));
  OK(mscclgo_stream_destroy(stale));
  OK(mscclgo_device_open("emu:1", &second));
  OK(mscclgo_stream_create(second, &foreign));
  OK(mscclgo_buffer_create(d, AREA, &b));
  OK(mscclgo_buffer_create(d, AREA / 2, &inbox));
  OK(mscclgo_proxy_create(g, &proxy));
  OK(mscclgo_proxy_create(other, &others));
  mscclgo_channel_options o = {.per_peer = 2, .inbox = inbox};
  OK(mscclgo_port_channels_create_for_streams(g, proxy, b, &o, &c));
  OK(mscclgo_port_channels_create(g, proxy, b, &o, &plain));
  mscclgo_channel_set set = {{0}};
  void* first;
  OK(mscclgo_port_channels_get_set(plain, &set));
  OK(mscclgo_port_channels_handles(plain, &first));
  TRUE(set.words[0] == (uintptr_t)first);
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_port_channels_get_set(plain, NULL));
  FAILS(MSCCLGO_INVALID, "", mscclgo_memory_channels_get_set((mscclgo_memory_channels)plain, &set));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_port_channels_create_for_streams(NULL, proxy, b, &o, &none));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_port_channels_create_for_streams(g, NULL, b, &o, &none));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_port_channels_create_for_streams(g, proxy, NULL, &o, &none));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_port_channels_create_for_streams(g, proxy, b, &o, NULL));
  FAILS(MSCCLGO_INVALID, "another group", mscclgo_port_channels_create_for_streams(g, others, b, &o, &none));

// Every function, to rank 0, within and at the end of the memories. AREA is the end of this rank's.
#define EVERY_PORT(status, part, channels, stream, i, rank)                                              \
  do {                                                                                                   \
    FAILS(status, part, mscclgo_port_put(channels, stream, i, rank, 0, AREA - 8, 8));                    \
    FAILS(status, part, mscclgo_port_put_with_signal(channels, stream, i, rank, 0, 0, AREA / 2));        \
    FAILS(status, part, mscclgo_port_put_with_signal_and_flush(channels, stream, i, rank, 1, 2, 3));     \
    FAILS(status, part, mscclgo_port_get(channels, stream, i, rank, AREA / 2, AREA, 0));                 \
    FAILS(status, part, mscclgo_port_get_and_flush(channels, stream, i, rank, AREA / 2 - 1, 8, 1));      \
    FAILS(status, part, mscclgo_port_store(channels, stream, i, rank, AREA / 2 - 8, 1));                 \
    FAILS(status, part, mscclgo_port_store_and_flush(channels, stream, i, rank, 0, 2));                  \
    FAILS(status, part, mscclgo_port_add(channels, stream, i, rank, 8, 3));                              \
    FAILS(status, part, mscclgo_port_add_and_flush(channels, stream, i, rank, 16, 4));                   \
    FAILS(status, part, mscclgo_port_exchange(channels, stream, i, rank, 0, 5, AREA - 8));               \
    FAILS(status, part, mscclgo_port_exchange_and_flush(channels, stream, i, rank, AREA / 2 - 8, 6, 0)); \
    for (int n = 0; n < 2; n++) FAILS(status, part, mscclgo_port_signal(channels, stream, i, rank));     \
    FAILS(status, part, mscclgo_port_flush(channels, stream, i, rank));                                  \
    for (int n = 0; n < 4; n++) FAILS(status, part, mscclgo_port_wait(channels, stream, i, rank));       \
  } while (0)
  EVERY_PORT(MSCCLGO_OK, "", c, s, 0, 0);
  EVERY_PORT(MSCCLGO_OK, "", c, s, 1, 0);
  OK(mscclgo_group_synchronize(g, s, -1));
  EVERY_PORT(MSCCLGO_INVALID, "port channels is NULL", NULL, s, 0, 0);
  EVERY_PORT(MSCCLGO_INVALID, "a stream is NULL", c, NULL, 0, 0);
  EVERY_PORT(MSCCLGO_INVALID, "port channels is needed", (mscclgo_port_channels)s, s, 0, 0);
  EVERY_PORT(MSCCLGO_INVALID, "a stream is needed", c, (mscclgo_stream)b, 0, 0);
  EVERY_PORT(MSCCLGO_INVALID, destroyed, c, stale, 0, 0);
  EVERY_PORT(MSCCLGO_INVALID, "the stream is of", c, foreign, 0, 0);
  EVERY_PORT(MSCCLGO_INVALID, "mscclgo_port_channels_create_for_streams", plain, s, 0, 0);
  EVERY_PORT(MSCCLGO_INVALID, "channel 2 is asked for", c, s, 2, 0);
  EVERY_PORT(MSCCLGO_INVALID, "channel -1 is asked for", c, s, -1, 0);
  EVERY_PORT(MSCCLGO_INVALID, "not to rank 1", c, s, 0, 1);
  EVERY_PORT(MSCCLGO_INVALID, "not to rank -1", c, s, 0, -1);
  FAILS(MSCCLGO_INVALID, outside, mscclgo_port_put(c, s, 0, 0, AREA / 2 - 8, 0, 9));
  FAILS(MSCCLGO_INVALID, outside, mscclgo_port_put(c, s, 0, 0, 0, AREA - 8, 9));
  FAILS(MSCCLGO_INVALID, outside, mscclgo_port_put_with_signal(c, s, 0, 0, UINT64_MAX, 0, 2));
  FAILS(MSCCLGO_INVALID, outside, mscclgo_port_get(c, s, 0, 0, 8, UINT64_MAX - 7, 8));
  FAILS(MSCCLGO_INVALID, outside, mscclgo_port_get_and_flush(c, s, 0, 0, 0, 0, UINT64_MAX));
  FAILS(MSCCLGO_INVALID, outside, mscclgo_port_store(c, s, 0, 0, AREA / 2, 1));
  FAILS(MSCCLGO_INVALID, outside, mscclgo_port_exchange(c, s, 0, 0, 0, 1, AREA));
  FAILS(MSCCLGO_INVALID, aligned, mscclgo_port_store(c, s, 0, 0, 4, 1));
  FAILS(MSCCLGO_INVALID, aligned, mscclgo_port_add(c, s, 0, 0, 1, 1));
  FAILS(MSCCLGO_INVALID, aligned, mscclgo_port_exchange(c, s, 0, 0, 7, 1, 0));
  FAILS(MSCCLGO_INVALID, aligned, mscclgo_port_exchange(c, s, 0, 0, 0, 1, 12));

  // None of it has failed the group, or was queued.
  EVERY_PORT(MSCCLGO_OK, "", c, s, 0, 0);
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_group_error(g));
  OK(mscclgo_buffer_destroy(b));
  FAILS(MSCCLGO_INVALID, "closed", mscclgo_port_put(c, s, 0, 0, 0, 0, 8));
  FAILS(MSCCLGO_INVALID, "closed", mscclgo_port_get_and_flush(c, s, 0, 0, 0, 0, 8));
  OK(mscclgo_proxy_destroy(proxy));
  EVERY_PORT(MSCCLGO_INVALID, destroyed, c, s, 0, 0);

  // A group that fails, and one that is destroyed while a stream waits.
  OK(mscclgo_buffer_create(d, AREA, &b));
  OK(mscclgo_proxy_create(g, &proxy));
  OK(mscclgo_port_channels_create_for_streams(g, proxy, b, NULL, &c));
  OK(mscclgo_port_wait(c, s, 0, 0));
  OK(mscclgo_group_abort(g, "enough of this"));
  FAILS(MSCCLGO_ABORTED, "enough of this", mscclgo_group_synchronize(g, s, -1));
  EVERY_PORT(MSCCLGO_ABORTED, "enough of this", c, s, 0, 0);
  OK(mscclgo_group_destroy(g));
  EVERY_PORT(MSCCLGO_INVALID, destroyed, c, s, 0, 0);
  OK(mscclgo_group_device(other, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, AREA, &b));
  OK(mscclgo_port_channels_create_for_streams(other, others, b, NULL, &c));
  OK(mscclgo_port_wait(c, s, 0, 0));
  mscclgo_status status = mscclgo_group_destroy(other);  // which may find that the wait has not ended
  TRUE(status == MSCCLGO_OK || (status == MSCCLGO_ABORTED && strstr(mscclgo_error_text(), "had not ended")));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_port_wait(c, s, 0, 0));
  OK(mscclgo_device_destroy(second));
  together(ring_of_ports);
  together(lone_wait);
}

static const char trigger_source[] =
    "#include <mscclgo/fifo.cuh>\n"
    "extern \"C\" __global__ void report(mscclgo::FifoHandle fifo, uint32_t kind) {\n"
    "  for (uint64_t i = 0; i < 4; i++)\n"
    "    fifo.push(mscclgo::Trigger::user(kind, blockDim.x * blockIdx.x + threadIdx.x, i, 1ull << 63));\n"
    "}\n";

typedef struct {
  uint64_t count, next[128];  // of all, and of each thread
  int wrong;
  mscclgo_group group;
  mscclgo_proxy proxy;
  int waits, ended;
  const mscclgo_trigger* trigger;  // of a handler that another thread helps
} reports;

static int serve(void* user, const mscclgo_trigger* t, char* why) {
  reports* r = user;
  if (t->kind == 201) return snprintf(why, MSCCLGO_WHY_BYTES, "kind %d is not for me", (int)t->kind);
  if (t->kind == 203) {  // waits for what never comes
    mscclgo_trigger copy = *t;
    int ends = 1;
    FAILS(MSCCLGO_INVALID, "no handler serves", mscclgo_trigger_ends(&copy, 0, &ends));
    FAILS(MSCCLGO_INVALID, "NULL", mscclgo_trigger_ends(NULL, 0, &ends));
    FAILS(MSCCLGO_INVALID, "NULL", mscclgo_trigger_ends(t, 0, NULL));
    OK(mscclgo_trigger_ends(t, 0, &ends));
    r->wrong |= ends;
    OK(mscclgo_trigger_ends(t, 10, &ends));
    r->wrong |= ends;
    __atomic_store_n(&r->waits, 1, __ATOMIC_RELEASE);
    OK(mscclgo_trigger_ends(t, -1, &ends));
    r->wrong |= !ends;
    OK(mscclgo_trigger_ends(t, 0, &ends));
    r->wrong |= !ends;
    __atomic_store_n(&r->ended, 1, __ATOMIC_RELEASE);
    return snprintf(why, MSCCLGO_WHY_BYTES, "what it waits for has not come");
  }
  if (t->kind == 204) {  // leaves it to another thread to wait
    if (t->b == 0) {
      __atomic_store_n(&r->trigger, t, __ATOMIC_RELEASE);
      AWAIT(__atomic_load_n(&r->waits, __ATOMIC_ACQUIRE));
      usleep(200000);
    }
    return 0;
  }
  if (t->kind == 202 && t->b == 0) {  // which would wait for this call
    FAILS(MSCCLGO_INVALID, "a handler calls it", mscclgo_proxy_destroy(r->proxy));
    FAILS(MSCCLGO_INVALID, "a handler calls it", mscclgo_group_destroy(r->group));
  }
  r->wrong |= t->a >= 128 || t->b != r->next[t->a]++ || t->c != 1ull << 63 || t->detail != 0;
  mscclgo_device d;
  if (mscclgo_device_open("no device", &d) != MSCCLGO_INVALID) r->wrong = 1;  // it may call the library
  __atomic_add_fetch(&r->count, 1, __ATOMIC_RELEASE);
  return 0;
}

// reporter launches kernels that push triggers.
typedef struct {
  mscclgo_group group;
  mscclgo_stream stream;
  mscclgo_kernel kernel;
} reporter;

static reporter open_reporter(void) {
  reporter r = {.group = open_group()};
  mscclgo_device d;
  mscclgo_module m;
  OK(mscclgo_group_device(r.group, &d));
  OK(mscclgo_stream_create(d, &r.stream));
  OK(mscclgo_module_compile(d, "report.cu", trigger_source, NULL, &m));
  OK(mscclgo_module_kernel(m, "report", &r.kernel));
  return r;
}

// report has each thread push four triggers of a kind to a proxy.
static void report(reporter r, mscclgo_proxy p, uint32_t kind, uint32_t blocks, uint32_t threads) {
  struct {
    mscclgo_fifo_handle fifo;
    uint32_t kind;
  } parameters = {.kind = kind};
  mscclgo_launch_config config = {.grid = {blocks}, .block = {threads}};
  OK(mscclgo_proxy_get_fifo(p, &parameters.fifo));
  OK(mscclgo_kernel_launch(r.kernel, r.stream, &config, &parameters, sizeof parameters));
}

// triggers has kernels push triggers of their own.
static void triggers(void) {
  reporter r = open_reporter();
  mscclgo_proxy p;
  mscclgo_fifo_handle fifo;
  reports got = {0};
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_proxy_create_with_handler(r.group, NULL, NULL, &p));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_proxy_create_with_handler(r.group, serve, NULL, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_proxy_create_with_handler(NULL, serve, NULL, &p));
  OK(mscclgo_proxy_create_with_handler(r.group, serve, &got, &p));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_proxy_get_fifo(p, NULL));
  report(r, p, 200, 4, 32);
  OK(mscclgo_group_synchronize(r.group, r.stream, -1));
  OK(mscclgo_proxy_destroy(p));  // which serves what is left
  TRUE(got.count == 4 * 128 && !got.wrong);
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_proxy_get_fifo(p, &fifo));

  // A handler may not destroy what waits for it, which goes on.
  memset(&got, 0, sizeof got);
  OK(mscclgo_proxy_create_with_handler(r.group, serve, &got, &p));
  got.group = r.group, got.proxy = p;
  report(r, p, 202, 1, 1);
  AWAIT(__atomic_load_n(&got.count, __ATOMIC_ACQUIRE) >= 4);
  OK(mscclgo_proxy_get_fifo(p, &fifo));
  OK(mscclgo_proxy_destroy(p));
  TRUE(got.count == 4 && !got.wrong);

  // A handler that fails, fails the group.
  OK(mscclgo_proxy_create_with_handler(r.group, serve, &got, &p));
  report(r, p, 201, 1, 1);
  AWAIT(mscclgo_group_error(r.group) != MSCCLGO_OK);
  TRUE(strstr(mscclgo_error_text(), "kind 201 is not for me") != NULL);
  mscclgo_proxy_destroy(p);
  OK(mscclgo_group_destroy(r.group));
}

// waiting_trigger has a kernel push a trigger whose handler waits until it is to return.
static void waiting_trigger(int destroys) {
  reporter r = open_reporter();
  mscclgo_proxy p;
  reports got = {0};
  OK(mscclgo_proxy_create_with_handler(r.group, serve, &got, &p));
  report(r, p, 203, 1, 1);
  AWAIT(__atomic_load_n(&got.waits, __ATOMIC_ACQUIRE));
  if (destroys) {
    TRUE(mscclgo_proxy_destroy(p) != MSCCLGO_OK);
    TRUE(strstr(mscclgo_error_text(), "has not returned") == NULL);
  } else {
    OK(mscclgo_group_abort(r.group, "the program gives up"));
    AWAIT(__atomic_load_n(&got.ended, __ATOMIC_ACQUIRE));
    mscclgo_proxy_destroy(p);
  }
  TRUE(got.ended && !got.wrong);
  mscclgo_group_destroy(r.group);
}

static void* help(void* user) {
  reports* r = user;
  const mscclgo_trigger* t;
  int ends = 9;
  AWAIT((t = __atomic_load_n(&r->trigger, __ATOMIC_ACQUIRE)) != NULL);
  __atomic_store_n(&r->waits, 1, __ATOMIC_RELEASE);
  FAILS(MSCCLGO_INVALID, "no handler serves", mscclgo_trigger_ends(t, -1, &ends));
  TRUE(ends == 9);
  __atomic_store_n(&r->ended, 1, __ATOMIC_RELEASE);
  return NULL;
}

// outlived_trigger has a thread wait with a handler that returns first.
static void outlived_trigger(void) {
  reporter r = open_reporter();
  mscclgo_proxy p;
  pthread_t helper;
  reports got = {0};
  OK(mscclgo_proxy_create_with_handler(r.group, serve, &got, &p));
  pthread_create(&helper, NULL, help, &got);
  report(r, p, 204, 1, 1);
  AWAIT(__atomic_load_n(&got.ended, __ATOMIC_ACQUIRE));
  pthread_join(helper, NULL);
  OK(mscclgo_proxy_destroy(p));
  OK(mscclgo_group_destroy(r.group));
}

static void waiting_triggers(void) {
  waiting_trigger(0);
  waiting_trigger(1);
  outlived_trigger();
}

// prepared has calls prepared on memory that the ranks, of which there is one, reach.
static void precompile(void) {
  mscclgo_precompile_options o = {.architectures = "emu", .collectives = "scatter, gather", .ranks = "2"};
  OK(mscclgo_precompile(&o));
  OK(mscclgo_precompile(&o));  // which finds all
  o.architectures = "emu,tpu";
  FAILS(MSCCLGO_INVALID, "unknown architecture \"tpu\"", mscclgo_precompile(&o));
  o = (mscclgo_precompile_options){.architectures = "emu", .collectives = "scattered"};
  FAILS(MSCCLGO_INVALID, "scattered", mscclgo_precompile(&o));
  o = (mscclgo_precompile_options){.architectures = "emu", .types = "f33"};
  FAILS(MSCCLGO_INVALID, "f33", mscclgo_precompile(&o));
  o = (mscclgo_precompile_options){.architectures = "emu", .operations = "mean"};
  FAILS(MSCCLGO_INVALID, "mean", mscclgo_precompile(&o));
  o = (mscclgo_precompile_options){.architectures = "emu", .ranks = "-1"};
  FAILS(MSCCLGO_INVALID, "no group of -1 ranks", mscclgo_precompile(&o));
  mscclgo_device gpu;
  if (mscclgo_device_open("cuda:0", &gpu) != MSCCLGO_OK)
    FAILS(MSCCLGO_INVALID, "there is no GPU here", mscclgo_precompile(NULL));
}

static void prepared(void) {
  const char* destroyed = "destroyed";
  mscclgo_group g = open_group(), other = open_group();
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer b, elsewhere;
  mscclgo_peer_memory memory, foreign;
  mscclgo_prepared p, again;
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, 256, &b));
  OK(mscclgo_peer_memory_create(g, b, &memory));
  for (int kind = MSCCLGO_ALL_REDUCE; kind <= MSCCLGO_SCATTER; kind++) {
    mscclgo_call call = {
        .collective = (mscclgo_collective)kind, .type = MSCCLGO_I32, .operation = MSCCLGO_MAX};
    call.count = 2;
    call.in = call.out = memory;
    call.out_offset = 128;
    int sent[2] = {kind, 41}, got[2] = {0};
    OK(mscclgo_copy_in(b, 0, sent, sizeof sent));
    OK(mscclgo_copy_in(b, 128, got, sizeof got));
    OK(mscclgo_prepare(g, &call, &p));
    OK(mscclgo_prepared_launch(p, s));
    OK(mscclgo_group_synchronize(g, s, -1));
    OK(mscclgo_copy_out(got, b, 128, sizeof got));
    TRUE(got[0] == kind && got[1] == 41);
    OK(mscclgo_prepared_destroy(p));
    FAILS(MSCCLGO_INVALID, destroyed, mscclgo_prepared_launch(p, s));
  }
  mscclgo_call in_place = {.type = MSCCLGO_F32, .count = 64, .out = memory, .overlap = 1};
  OK(mscclgo_prepare(g, &in_place, &p));
  OK(mscclgo_prepared_launch(p, s));
  OK(mscclgo_prepared_launch(p, s));
  OK(mscclgo_group_synchronize(g, s, -1));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_prepared_launch(NULL, s));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_prepared_launch(p, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_prepare(g, NULL, &again));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_prepare(g, &in_place, NULL));

  mscclgo_call none = {0}, wrong = in_place;
  OK(mscclgo_prepare(g, &none, &again));  // of no elements
  OK(mscclgo_prepared_launch(again, s));
  wrong.out = NULL;
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_prepare(g, &wrong, &again));
  wrong.out = (mscclgo_peer_memory)b;
  FAILS(MSCCLGO_INVALID, "peer memory", mscclgo_prepare(g, &wrong, &again));
  OK(mscclgo_group_device(other, &d));
  OK(mscclgo_buffer_create(d, 256, &elsewhere));
  OK(mscclgo_peer_memory_create(other, elsewhere, &foreign));
  wrong.out = foreign;
  FAILS(MSCCLGO_INVALID, "another group", mscclgo_prepare(g, &wrong, &again));
  wrong = in_place;
  wrong.out_offset = 4;
  FAILS(MSCCLGO_INVALID, "252 bytes", mscclgo_prepare(g, &wrong, &again));
  wrong.out_offset = UINT64_MAX;
  FAILS(MSCCLGO_INVALID, "outside", mscclgo_prepare(g, &wrong, &again));
  wrong = in_place;
  wrong.collective = (mscclgo_collective)99;
  FAILS(MSCCLGO_INVALID, "", mscclgo_prepare(g, &wrong, &again));
  wrong.collective = (mscclgo_collective)-1;
  FAILS(MSCCLGO_INVALID, "", mscclgo_prepare(g, &wrong, &again));
  wrong = in_place;
  wrong.type = (mscclgo_type)300;
  FAILS(MSCCLGO_INVALID, "", mscclgo_prepare(g, &wrong, &again));
  wrong = in_place;
  wrong.collective = MSCCLGO_BROADCAST;
  wrong.root = 1;
  FAILS(MSCCLGO_INVALID, "root", mscclgo_prepare(g, &wrong, &again));

  OK(mscclgo_peer_memory_destroy(memory));
  FAILS(MSCCLGO_INVALID, "closed", mscclgo_prepared_launch(p, s));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_prepare(g, &in_place, &again));
  OK(mscclgo_group_destroy(g));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_prepared_destroy(p));
  OK(mscclgo_group_destroy(other));
}

// prepare_apart prepares calls that are wrong on rank 0, or others there, each on memory of its own. The
// group is none the worse for it.
static void* prepare_apart(void* number) {
  enum { CASES = 8 };
  intptr_t me = (intptr_t)number;
  mscclgo_group g;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_peer_memory stale;
  mscclgo_buffer b;
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, NULL, &g));
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, 1024, &b));
  OK(mscclgo_peer_memory_create(g, b, &stale));
  OK(mscclgo_peer_memory_destroy(stale));
  for (int i = 0; i < CASES; i++) {
    mscclgo_peer_memory out, in;
    mscclgo_buffer other;
    mscclgo_prepared p = NULL, none = NULL;
    OK(mscclgo_buffer_create(d, 1024, &other));
    OK(mscclgo_peer_memory_create(g, b, &out));
    OK(mscclgo_peer_memory_create(g, other, &in));
    mscclgo_call right = {.type = MSCCLGO_F32, .count = 64, .out = out, .in = in}, call = right;
    const char* why = NULL;  // what is wrong on rank 0, or else the calls differ
    if (me == 0) {
      if (i == 0) call.out = NULL;
      if (i == 1) call.out = stale;
      if (i == 2) call.in = (mscclgo_peer_memory)b;
      if (i == 3) call.in_offset = 2000;
      if (i == 4) call.type = (mscclgo_type)300;
      if (i == 5) call.count = 0;
      if (i == 6) call.in = NULL;
      if (i == 7) call.in = out;
    }
    if (i < 5) why = (const char*[]){"NULL", "destroyed", "peer memory", "outside", "no type 300"}[i];
    if (me == 0 || why == NULL) {
      FAILS(MSCCLGO_INVALID, why && me == 0 ? why : "it has", mscclgo_prepare(g, &call, &none));
    } else {
      FAILS(MSCCLGO_REMOTE, why, mscclgo_prepare(g, &call, &none));
    }
    TRUE(none == NULL && (me == 0 || mscclgo_error_peer() == 0));
    OK(mscclgo_group_error(g));
    OK(mscclgo_prepare(g, &right, &p));
    OK(mscclgo_prepared_launch(p, s));
    OK(mscclgo_group_synchronize(g, s, -1));
    OK(mscclgo_prepared_destroy(p));
    OK(mscclgo_peer_memory_destroy(in));
    OK(mscclgo_peer_memory_destroy(out));
    OK(mscclgo_buffer_destroy(other));
  }
  OK(mscclgo_group_destroy(g));
  return NULL;
}

// collectives calls each once, in a group of one rank, and with wrong arguments.
static int first_queued;

// load_first has rank 0 make the first call of each collective before another rank makes it, which would wait
// for them if it were not prepared.
static void* load_first(void* number) {
  intptr_t me = (intptr_t)number;
  enum { COUNT = 5 };
  mscclgo_group g;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer b;
  void* pointer;
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, NULL, &g));
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, 2 * RANKS * COUNT * sizeof(int), &b));
  OK(mscclgo_buffer_pointer(b, &pointer));
  int *in = pointer, *out = in + RANKS * COUNT, sums[COUNT], ones[RANKS * COUNT];
  for (int i = 0; i < RANKS * COUNT; i++) ones[i] = 1;
  OK(mscclgo_copy_in(b, 0, ones, sizeof ones));
  for (int c = MSCCLGO_ALL_REDUCE; c <= MSCCLGO_SCATTER; c++)
    OK(mscclgo_collective_load(g, (mscclgo_collective)c, COUNT, MSCCLGO_I32, MSCCLGO_SUM, 1));
  if (me != 0) AWAIT(__atomic_load_n(&first_queued, __ATOMIC_ACQUIRE));
  OK(mscclgo_all_gather(g, s, out, in, COUNT, MSCCLGO_I32));
  OK(mscclgo_reduce_scatter(g, s, out, in, COUNT, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_all_to_all(g, s, out, in, COUNT, MSCCLGO_I32));
  OK(mscclgo_send_receive(g, s, out, in, COUNT, MSCCLGO_I32));
  OK(mscclgo_broadcast(g, s, out, in, COUNT, MSCCLGO_I32, 1));
  OK(mscclgo_reduce(g, s, out, in, COUNT, MSCCLGO_I32, MSCCLGO_SUM, 1));
  OK(mscclgo_gather(g, s, out, in, COUNT, MSCCLGO_I32, 1));
  OK(mscclgo_scatter(g, s, out, in, COUNT, MSCCLGO_I32, 1));
  OK(mscclgo_all_reduce(g, s, out, in, COUNT, MSCCLGO_I32, MSCCLGO_SUM));
  if (me == 0) __atomic_store_n(&first_queued, 1, __ATOMIC_RELEASE);
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(sums, b, RANKS * COUNT * sizeof(int), sizeof sums));
  for (int i = 0; i < COUNT; i++) TRUE(sums[i] == RANKS);
  OK(mscclgo_group_destroy(g));
  return NULL;
}

static void collectives(void) {
  together(load_first);
  mscclgo_group g = open_group();
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer b;
  char *in, *out, host[8] = {0};
  void* pointer;
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, 128, &b));
  OK(mscclgo_buffer_pointer(b, &pointer));
  in = pointer, out = in + 64;
  uint64_t counts[1] = {2}, too_many[1] = {UINT64_MAX};
#define EACH(call)                                \
  do {                                            \
    int sent[2] = {0, 41}, got[2] = {0};          \
    sent[0]++;                                    \
    OK(mscclgo_copy_in(b, 0, sent, sizeof sent)); \
    OK(mscclgo_copy_in(b, 64, got, sizeof got));  \
    OK(call);                                     \
    OK(mscclgo_group_synchronize(g, s, -1));      \
    OK(mscclgo_copy_out(got, b, 64, sizeof got)); \
    TRUE(got[0] == 1 && got[1] == 41);            \
  } while (0)
  EACH(mscclgo_all_reduce(g, s, out, in, 2, MSCCLGO_I32, MSCCLGO_SUM));
  EACH(mscclgo_all_gather(g, s, out, in, 2, MSCCLGO_I32));
  EACH(mscclgo_reduce_scatter(g, s, out, in, 2, MSCCLGO_I32, MSCCLGO_MAX));
  EACH(mscclgo_all_to_all(g, s, out, in, 2, MSCCLGO_I32));
  EACH(mscclgo_all_to_all_v(g, s, out, in, counts, counts, MSCCLGO_I32));
  EACH(mscclgo_broadcast(g, s, out, in, 2, MSCCLGO_I32, 0));
  EACH(mscclgo_reduce(g, s, out, in, 2, MSCCLGO_I32, MSCCLGO_MIN, 0));
  EACH(mscclgo_gather(g, s, out, in, 2, MSCCLGO_I32, 0));
  EACH(mscclgo_scatter(g, s, out, in, 2, MSCCLGO_I32, 0));
  EACH(mscclgo_send_receive(g, s, out, in, 2, MSCCLGO_I32));
  OK(mscclgo_all_reduce(g, s, NULL, NULL, 0, MSCCLGO_F32, MSCCLGO_SUM));

  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_all_reduce(g, s, NULL, in, 2, MSCCLGO_F32, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, out, (void*)8, 2, MSCCLGO_F32, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "out is the handle of a buffer, and no address",
        mscclgo_all_reduce(g, s, b, in, 2, MSCCLGO_F32, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "mscclgo_buffer_pointer", mscclgo_all_gather(g, s, out, b, 2, MSCCLGO_F32));
  FAILS(MSCCLGO_INVALID, "the pointer is the handle of a stream", mscclgo_buffer_wrap(d, s, 8, &b));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, out, in, 1 << 20, MSCCLGO_F32, MSCCLGO_SUM));
  const mscclgo_type vouched = (mscclgo_type)(MSCCLGO_F32 | MSCCLGO_VOUCHED);
  OK(mscclgo_all_reduce(g, s, out, in, 2, vouched, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_all_reduce(g, s, NULL, in, 2, vouched, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "65578 is not a type of elements",
        mscclgo_all_reduce(g, s, out, in, 2, (mscclgo_type)(42 | MSCCLGO_VOUCHED), MSCCLGO_SUM));
  if (emulated(d))  // elsewhere the caller vouches for it
    FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, out, (void*)8, 2, vouched, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, out, in, UINT64_MAX, MSCCLGO_F32, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "type", mscclgo_all_reduce(g, s, out, in, 2, (mscclgo_type)99, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "type", mscclgo_all_reduce(g, s, out, in, 2, (mscclgo_type)-1, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, out, in, 2, MSCCLGO_F32, (mscclgo_operation)77));
  FAILS(MSCCLGO_INVALID, "", mscclgo_broadcast(g, s, out, in, 2, MSCCLGO_F32, 1));
  FAILS(MSCCLGO_INVALID, "", mscclgo_broadcast(g, s, out, in, 2, MSCCLGO_F32, -1));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_to_all_v(g, s, out, in, counts, too_many, MSCCLGO_F32));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_all_to_all_v(g, s, out, in, counts, NULL, MSCCLGO_F32));

  OK(mscclgo_collective_load(g, MSCCLGO_ALL_REDUCE, 0, vouched, MSCCLGO_SUM, 0));
  FAILS(MSCCLGO_INVALID, "NULL",
        mscclgo_collective_load(NULL, MSCCLGO_ALL_REDUCE, 2, MSCCLGO_F32, MSCCLGO_SUM, 0));
  for (int c = -1; c < 1000; c = c < 0 ? 9 : c * 10 + 1)
    FAILS(MSCCLGO_INVALID, "collective",
          mscclgo_collective_load(g, (mscclgo_collective)c, 2, MSCCLGO_F32, MSCCLGO_SUM, 0));
  FAILS(MSCCLGO_INVALID, "type",
        mscclgo_collective_load(g, MSCCLGO_ALL_REDUCE, 2, (mscclgo_type)99, MSCCLGO_SUM, 0));
  FAILS(MSCCLGO_INVALID, "operation",
        mscclgo_collective_load(g, MSCCLGO_ALL_REDUCE, 2, MSCCLGO_F32, (mscclgo_operation)77, 0));
  FAILS(MSCCLGO_INVALID, "root",
        mscclgo_collective_load(g, MSCCLGO_BROADCAST, 2, MSCCLGO_F32, MSCCLGO_SUM, 1));
  FAILS(MSCCLGO_INVALID, "",
        mscclgo_collective_load(g, MSCCLGO_ALL_REDUCE, UINT64_MAX, MSCCLGO_F32, MSCCLGO_SUM, 0));

  OK(mscclgo_group_all_gather(g, "abc", 4, host, -1));
  TRUE(strcmp(host, "abc") == 0);
  OK(mscclgo_group_broadcast(g, 0, host, sizeof host, 1000));
  FAILS(MSCCLGO_INVALID, "", mscclgo_group_broadcast(g, 3, host, sizeof host, -1));
  // Memory of the host is taken while it is wrapped.
  mscclgo_buffer pinned;
  int* memory = calloc(1000, sizeof *memory);
  FAILS(MSCCLGO_INVALID, "", mscclgo_buffer_wrap_host(d, NULL, 8, &pinned));
  FAILS(MSCCLGO_INVALID, "", mscclgo_buffer_wrap_host(d, (void*)0x10000000, 8, &pinned));
  FAILS(MSCCLGO_INVALID, "", mscclgo_buffer_wrap_host(d, memory, UINT64_MAX, &pinned));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, memory, memory, 1000, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_buffer_wrap_host(d, memory, 1000 * sizeof *memory, &pinned));
  OK(mscclgo_buffer_pointer(pinned, &pointer));
  memory[0] = 5;
  OK(mscclgo_all_reduce(g, s, (int*)pointer + 500, pointer, 500, MSCCLGO_I32, MSCCLGO_SUM));
  FAILS(MSCCLGO_INVALID, "",
        mscclgo_all_reduce(g, s, (int*)pointer + 500, pointer, 501, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_group_synchronize(g, s, -1));
  TRUE(memory[500] == 5);
  OK(mscclgo_buffer_destroy(pinned));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, pointer, pointer, 500, MSCCLGO_I32, MSCCLGO_SUM));
  free(memory);

  OK(mscclgo_buffer_destroy(b));
  FAILS(MSCCLGO_INVALID, "", mscclgo_all_reduce(g, s, out, in, 2, MSCCLGO_F32, MSCCLGO_SUM));
  OK(mscclgo_group_error(g));
  OK(mscclgo_group_abort(g, "enough of this"));
  FAILS(MSCCLGO_ABORTED, "enough of this", mscclgo_group_error(g));
  TRUE(mscclgo_error_rank() == 0);
  FAILS(MSCCLGO_ABORTED, "enough of this", mscclgo_group_barrier(g, -1));
  OK(mscclgo_group_destroy(g));
}

enum { PAGE = 65536 };  // a multiple of each machine's

// map returns two pages, of which the second has another protection. Of a file, it is beyond its end.
static char* map(int protection, const char* file) {
  int f = file ? open(file, O_RDWR | O_CREAT | O_EXCL, 0600) : -1;
  TRUE(!file || (unlink(file) == 0 && ftruncate(f, PAGE) == 0));
  char* at =
      mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, f, 0);
  TRUE(at != MAP_FAILED && mprotect(at + PAGE, PAGE, protection) == 0);
  return at;
}

// inaccessible passes memory of the host that cannot be read, or only that, or is beyond the end of a file.
static void inaccessible(const char* file) {
  mscclgo_group g = open_group(), part;
  mscclgo_device d;
  mscclgo_buffer b, wrapped;
  mscclgo_pipes pipes;
  mscclgo_stream s;
  mscclgo_module m;
  mscclgo_kernel k;
  mscclgo_rendezvous r;
  mscclgo_launch_config config = {.grid = {1}, .block = {1}};
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_buffer_create(d, PAGE, &b));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_module_compile(d, "kernels.cu", kernels, NULL, &m));
  OK(mscclgo_module_kernel(m, "ranks", &k));
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  char* readable = map(PROT_READ, NULL) + PAGE;
  char* none[] = {map(PROT_NONE, NULL) + PAGE, map(PROT_READ | PROT_WRITE, file) + PAGE, (char*)(1ul << 62)};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    char* end = i < 2 ? none[i] - 8 : none[i];  // some of it is there
    const char* refused = "cannot be read";
    FAILS(MSCCLGO_INVALID, "the 16 bytes at 0x", mscclgo_copy_in(b, 0, end, 16));
    FAILS(MSCCLGO_INVALID, refused, mscclgo_copy_in(b, 0, none[i], PAGE));
    FAILS(MSCCLGO_INVALID, "cannot be written", mscclgo_copy_out(end, b, 0, 16));
    FAILS(MSCCLGO_INVALID, refused, mscclgo_group_all_gather(g, end, 16, end, -1));
    FAILS(MSCCLGO_INVALID, "cannot be written", mscclgo_group_all_gather(g, "sixteen bytes..", 16, end, -1));
    FAILS(MSCCLGO_INVALID, refused, mscclgo_group_broadcast(g, 0, end, 16, -1));
    FAILS(MSCCLGO_INVALID, refused, mscclgo_module_load(d, end, 16, &m));
    FAILS(MSCCLGO_INVALID, refused, mscclgo_kernel_launch(k, s, &config, end, 16));
    FAILS(MSCCLGO_INVALID, refused, mscclgo_messages_launch(g, (mscclgo_message*)end, 2));
    FAILS(MSCCLGO_INVALID, refused, mscclgo_messages_launch(g, (mscclgo_message*)(none[i] - PAGE), PAGE));
    FAILS(MSCCLGO_INVALID, refused,
          mscclgo_all_to_all_v(g, s, NULL, NULL, (uint64_t*)none[i], (uint64_t*)none[i], MSCCLGO_F32));
    mscclgo_pipe_options to = {.to = (int*)none[i], .to_count = 1};
    FAILS(MSCCLGO_INVALID, refused, mscclgo_pipes_create(g, &to, &pipes));
    if (i == 2) continue;
    *(size_t*)end = sizeof(mscclgo_group_config);
    FAILS(MSCCLGO_INVALID, refused, mscclgo_group_join_configured(NULL, (mscclgo_group_config*)end, &part));
    FAILS(MSCCLGO_INVALID, "cannot be written", mscclgo_rendezvous_id(r, end, 4096));
    FAILS(MSCCLGO_INVALID, i < 2 ? refused : "", mscclgo_buffer_wrap_host(d, end, 16, &wrapped));
  }
  FAILS(MSCCLGO_INVALID, "cannot be written", mscclgo_copy_out(readable - 1, b, 0, 2));
  OK(mscclgo_copy_in(b, 0, readable, PAGE));
  OK(mscclgo_group_broadcast(g, 0, readable, PAGE, -1));  // of the root nothing is written
  OK(mscclgo_group_all_gather(g, readable, PAGE, readable - PAGE, -1));
  if (mscclgo_buffer_wrap_host(d, readable, 16, &wrapped) == MSCCLGO_OK) {  // as on emulated devices
    OK(mscclgo_copy_out(readable - PAGE, wrapped, 0, 16));
    FAILS(MSCCLGO_INVALID, "cannot be written", mscclgo_copy_in(wrapped, 0, "sixteen bytes..", 16));
    TRUE(mprotect(readable, PAGE, PROT_NONE) == 0);
    FAILS(MSCCLGO_INVALID, "cannot be read", mscclgo_copy_out(none[0] - PAGE, wrapped, 0, 16));
  }
  OK(mscclgo_rendezvous_destroy(r));
  OK(mscclgo_group_destroy(g));
}

static void* exchange(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group g;
  mscclgo_device d;
  mscclgo_stream s, t;
  mscclgo_buffer b;
  mscclgo_graph graph;
  void* pointer;
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, NULL, &g));
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_stream_create(d, &t));
  OK(mscclgo_buffer_create(d, 2 * 100000 * sizeof(int), &b));
  OK(mscclgo_buffer_pointer(b, &pointer));
  OK(mscclgo_messages_load(g));
  int *out = pointer, *in = out + 100000, next = (int)(me + 1) % RANKS,
      before = (int)(me + RANKS - 1) % RANKS;
  static int sent[RANKS][100000], got[RANKS][100000];

  // Around the ring, more and more each time, on two streams and in a graph.
  for (uint64_t count = 1; count <= 100000; count *= 10) {
    mscclgo_message ring[] = {
        {s, out, count, MSCCLGO_I32, next, MSCCLGO_SEND},
        {t, in, count, MSCCLGO_I32, before, MSCCLGO_RECV},
    };
    for (uint64_t i = 0; i < count; i++) sent[me][i] = (int)(me * 1000000 + (intptr_t)i);
    OK(mscclgo_copy_in(b, 0, sent[me], count * sizeof(int)));
    OK(mscclgo_messages_launch(g, ring, 2));
    OK(mscclgo_stream_fill(t, b, 0, 0, count * sizeof(int)));  // behind the messages
    OK(mscclgo_group_synchronize(g, s, -1));
    OK(mscclgo_group_synchronize(g, t, -1));
    OK(mscclgo_copy_out(got[me], b, 100000 * sizeof(int), count * sizeof(int)));
    for (uint64_t i = 0; i < count; i++) TRUE(got[me][i] == before * 1000000 + (int)i);
  }
  mscclgo_message ring[] = {
      {s, out, 100, MSCCLGO_I32, next, MSCCLGO_SEND},
      {s, in, 100, MSCCLGO_I32, before, MSCCLGO_RECV},
  };
  OK(mscclgo_stream_begin_capture(s));
  OK(mscclgo_messages_launch(g, ring, 2));
  OK(mscclgo_stream_copy(s, b, 0, b, 100000 * sizeof(int), 100 * sizeof(int)));
  OK(mscclgo_stream_end_capture(s, &graph));
  OK(mscclgo_copy_in(b, 0, sent[me], 100 * sizeof(int)));
  for (int i = 0; i < 2; i++) OK(mscclgo_graph_launch(graph, s));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(got[me], b, 0, 100 * sizeof(int)));
  for (int i = 0; i < 100; i++) TRUE(got[me][i] == next * 1000000 + i);  // two further, of three

  // All to all: rank p gets 10 * me + p elements, which may be none, this rank too.
  mscclgo_message all[2 * RANKS];
  uint64_t to = 0, from = 0;
  for (int p = 0; p < RANKS; p++) {
    uint64_t gives = (uint64_t)(10 * me + p), takes = (uint64_t)(10 * p + me);
    all[p] = (mscclgo_message){s, in + from, takes, MSCCLGO_I32, p, MSCCLGO_RECV};
    all[RANKS + p] = (mscclgo_message){s, gives ? out + to : NULL, gives, MSCCLGO_I32, p, MSCCLGO_SEND};
    for (uint64_t i = 0; i < gives; i++) sent[me][to + i] = (int)(me * 10000 + p * 100 + (intptr_t)i);
    to += gives, from += takes;
  }
  OK(mscclgo_copy_in(b, 0, sent[me], 1000 * sizeof(int)));
  OK(mscclgo_messages_launch(g, all, 2 * RANKS));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(got[me], b, 100000 * sizeof(int), 1000 * sizeof(int)));
  int* at = got[me];
  for (int p = 0; p < RANKS; p++)
    for (int i = 0; i < 10 * p + me; i++) TRUE(*at++ == p * 10000 + me * 100 + i);

  // One way, of which the third rank knows nothing, and a count that differs between the ends.
  if (me == 0) OK(mscclgo_send(g, s, out, 3, MSCCLGO_I32, 1));
  if (me == 1) OK(mscclgo_recv(g, s, in, 3, MSCCLGO_I32, 0));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(got[me], b, (me == 1) * 100000 * sizeof(int), sizeof(int)));
  if (me == 1) TRUE(got[1][0] == 0 * 10000 + 1 * 100);  // the first that rank 0 had for a peer
  OK(mscclgo_group_barrier(g, -1));
  if (me == 0) OK(mscclgo_send(g, s, out, 8, MSCCLGO_F16, 1));
  if (me == 1) OK(mscclgo_recv(g, s, in, 4, MSCCLGO_F32, 0));
  if (me == 1) {
    FAILS(MSCCLGO_INVALID, "8 f16", mscclgo_group_synchronize(g, s, -1));
    TRUE(strstr(mscclgo_error_text(), "4 f32") != NULL);
  }
  mscclgo_group_destroy(g);  // which waits for the others
  return NULL;
}

// messages has sends and receives of one rank, most of them wrong, and of several.
static void messages(void) {
  const char* destroyed = "destroyed";
  mscclgo_group g = open_group();
  mscclgo_device d;
  mscclgo_stream s, gone;
  mscclgo_buffer b;
  void* pointer;
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_stream_create(d, &gone));
  OK(mscclgo_stream_destroy(gone));
  OK(mscclgo_buffer_create(d, 64, &b));
  OK(mscclgo_buffer_pointer(b, &pointer));
  int *out = pointer, *in = out + 8, sent[2] = {7, 41}, got[2] = {0};
  mscclgo_message self[2] = {
      {s, out, 2, MSCCLGO_I32, 0, MSCCLGO_SEND},
      {s, in, 2, MSCCLGO_I32, 0, MSCCLGO_RECV},
  };
  OK(mscclgo_messages_launch(g, NULL, 0));
  OK(mscclgo_copy_in(b, 0, sent, sizeof sent));
  OK(mscclgo_messages_launch(g, self, 2));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(got, b, 32, sizeof got));
  TRUE(got[0] == 7 && got[1] == 41);

#define WRONG(part, member, value)                                      \
  do {                                                                  \
    mscclgo_message wrong[2] = {self[0], self[1]};                      \
    wrong[1].member = (value);                                          \
    FAILS(MSCCLGO_INVALID, part, mscclgo_messages_launch(g, wrong, 2)); \
  } while (0)
  WRONG("message 2 of 2", stream, NULL);
  WRONG(destroyed, stream, gone);
  WRONG("a stream", stream, (mscclgo_stream)b);
  WRONG("NULL", buffer, NULL);
  WRONG("", buffer, (void*)8);
  WRONG("overlaps", buffer, out + 1);
  WRONG("to itself", count, 3);
  WRONG("", count, 9);  // more than there is
  WRONG("", count, (uint64_t)-1);
  WRONG("to itself", type, MSCCLGO_F32);
  WRONG("type", type, (mscclgo_type)300);
  WRONG("type", type, (mscclgo_type)-1);
  WRONG("ranks 0 to 0", peer, 1);
  WRONG("ranks 0 to 0", peer, -1);
  WRONG("direction", direction, (mscclgo_direction)2);
  WRONG("direction", direction, (mscclgo_direction)-1);
  WRONG("does not receive", direction, MSCCLGO_SEND);
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_messages_launch(g, NULL, 2));
  FAILS(MSCCLGO_INVALID, "fewer than", mscclgo_messages_launch(g, self, SIZE_MAX));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_messages_launch(NULL, self, 2));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_messages_load(NULL));
  FAILS(MSCCLGO_INVALID, "does not receive", mscclgo_send(g, s, out, 2, MSCCLGO_I32, 0));
  FAILS(MSCCLGO_INVALID, "does not send", mscclgo_recv(g, s, in, 2, MSCCLGO_I32, 0));
  FAILS(MSCCLGO_INVALID, "send to rank 0", mscclgo_send(g, s, NULL, 2, MSCCLGO_I32, 0));
  FAILS(MSCCLGO_INVALID, "receive from rank 0", mscclgo_recv(g, s, NULL, 2, MSCCLGO_I32, 0));

  // None of it has failed the group, or sent anything.
  OK(mscclgo_stream_fill(s, b, 32, 0, sizeof got));
  OK(mscclgo_messages_launch(g, self, 2));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_copy_out(got, b, 32, sizeof got));
  TRUE(got[0] == 7 && got[1] == 41);
  OK(mscclgo_buffer_destroy(b));
  FAILS(MSCCLGO_INVALID, "message 1 of 2", mscclgo_messages_launch(g, self, 2));  // freed memory
  OK(mscclgo_group_abort(g, "enough of this"));
  FAILS(MSCCLGO_ABORTED, "enough of this", mscclgo_messages_launch(g, NULL, 0));
  OK(mscclgo_group_destroy(g));
  FAILS(MSCCLGO_INVALID, destroyed, mscclgo_messages_launch(g, self, 2));
  together(exchange);
}

static void* divide(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group whole, part, alone, none;
  mscclgo_device d, same;
  mscclgo_stream s;
  mscclgo_buffer b;
  void* pointer;
  int rank = -1, size = -1, value = (int)me + 1;
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, NULL, &whole));
  OK(mscclgo_group_split(whole, me < 2 ? 5 : 6, -(int)me, &part));  // ranks 1 and 0, and rank 2
  OK(mscclgo_group_rank(part, &rank));
  OK(mscclgo_group_size(part, &size));
  TRUE(rank == (me == 0) && size == (me < 2 ? 2 : 1));
  OK(mscclgo_group_split(whole, me == 1 ? 0 : -1, 0, &none));
  TRUE((none != NULL) == (me == 1));
  OK(mscclgo_group_device(whole, &d));
  OK(mscclgo_group_device(part, &same));
  TRUE(d == same);
  FAILS(MSCCLGO_INVALID, "the group's", mscclgo_device_destroy(same));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_group_split(whole, 0, 0, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_group_split(NULL, 0, 0, &alone));

  // Sums of a part, and of the whole, on one stream.
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, sizeof value, &b));
  OK(mscclgo_buffer_pointer(b, &pointer));
  OK(mscclgo_copy_in(b, 0, &value, sizeof value));
  OK(mscclgo_all_reduce(part, s, pointer, pointer, 1, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_all_reduce(whole, s, pointer, pointer, 1, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_group_synchronize(part, s, -1));
  OK(mscclgo_copy_out(&value, b, 0, sizeof value));
  TRUE(value == 3 + 3 + 3);

  // A part fails alone, and a part of a part lives on.
  OK(mscclgo_group_split(part, 0, 0, &alone));
  OK(mscclgo_group_barrier(whole, -1));
  if (me == 2) {
    OK(mscclgo_group_abort(part, "enough of this"));
    FAILS(MSCCLGO_ABORTED, "enough of this", mscclgo_group_barrier(part, -1));
  }
  OK(mscclgo_group_error(whole));
  OK(mscclgo_group_barrier(alone, -1));
  OK(mscclgo_group_barrier(whole, -1));
  if (me == 1) OK(mscclgo_group_destroy(none));
  OK(mscclgo_group_destroy(whole));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_group_barrier(part, -1));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_group_destroy(alone));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_stream_destroy(s));
  return NULL;
}

static void split(void) { together(divide); }

// differ gathers from ranks of which the last sends more than the others: what fails stores nothing.
static void* differ(void* number) {
  intptr_t me = (intptr_t)number;
  int last = me == RANKS - 1;
  char sent[2] = "ab", got[2 * RANKS], before[2 * RANKS];
  mscclgo_group g;
  memset(got, '-', sizeof got);
  memset(before, '-', sizeof before);
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, NULL, &g));
  FAILS(MSCCLGO_INVALID, last ? "rank 0 sent 1 bytes, and this one 2" : "rank 2 sent 2 bytes, and this one 1",
        mscclgo_group_all_gather(g, sent, last ? 2 : 1, got, -1));
  TRUE(memcmp(got, before, sizeof got) == 0);
  OK(mscclgo_group_all_gather(g, sent, 2, got, -1));
  TRUE(memcmp(got, "ababab", sizeof got) == 0);
  OK(mscclgo_group_destroy(g));
  return NULL;
}

// configure joins a group whose collectives have few blocks and a tuning of their own, then one of which
// rank 1 has another bound.
static void* configure(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group whole, part, other;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer b;
  void* pointer;
  int value = (int)me + 1;
  mscclgo_group_config config = {.bytes = sizeof config,
                                 .transports = "cudaipc, shm",
                                 .tuning = "* allreduce * * direct 4 64",
                                 .collective_scratch_bytes = 1 << 16,
                                 .max_blocks = 2};
  OK(mscclgo_group_connect_configured(shared_id, (int)me, RANKS, NULL, &config, &whole));
  OK(mscclgo_group_device(whole, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, sizeof value, &b));
  OK(mscclgo_buffer_pointer(b, &pointer));
  OK(mscclgo_copy_in(b, 0, &value, sizeof value));
  OK(mscclgo_all_reduce(whole, s, pointer, pointer, 1, MSCCLGO_I32, MSCCLGO_SUM));
  // A part has the bound of the group unless it is given one.
  OK(mscclgo_group_split_configured(whole, 0, 0, NULL, &part));
  OK(mscclgo_all_reduce(part, s, pointer, pointer, 1, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_group_synchronize(whole, s, -1));
  OK(mscclgo_copy_out(&value, b, 0, sizeof value));
  TRUE(value == 18);
  FAILS(MSCCLGO_INVALID, "leave them 0", mscclgo_group_split_configured(whole, 0, 0, &config, &other));
  mscclgo_group_config bound = {.bytes = sizeof bound, .max_blocks = me == 1 ? 3 : 4};
  OK(mscclgo_group_split_configured(whole, 0, 0, &bound, &other));
  FAILS(MSCCLGO_INVALID, "a bound of 3 blocks",
        mscclgo_all_reduce(other, s, pointer, pointer, 1, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_group_barrier(whole, -1));  // no rank leaves before all were told
  OK(mscclgo_group_destroy(whole));
  return NULL;
}

// on_hosts joins a group on as many hosts as it has ranks, whose pool has room for few pipes.
static void* on_hosts(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group g;
  mscclgo_proxy proxy;
  mscclgo_pipes p;
  mscclgo_pipe_pool pool;
  int next = (int)(me + 1) % RANKS, before = (int)(me + RANKS - 1) % RANKS;
  char host[] = {'A' + (char)me, 0};
  mscclgo_group_config config = {
      .bytes = sizeof config, .transports = "cudaipc,ethernet", .host = host, .pipe_pool_bytes = 1 << 20};
  OK(mscclgo_group_connect_configured(shared_id, (int)me, RANKS, NULL, &config, &g));
  OK(mscclgo_proxy_create(g, &proxy));
  mscclgo_pipe_options o = {.to = &next,
                            .from = &before,
                            .to_count = 1,
                            .from_count = 1,
                            .slot_bytes = 1024,
                            .proxy = proxy,
                            .shared = 1};
  OK(mscclgo_pipes_create(g, &o, &p));
  OK(mscclgo_group_get_pipe_pool(g, &pool));
  TRUE(pool.bytes == 1 << 20 && pool.taken > 0);
  o.slot_bytes = 1 << 20;
  FAILS(MSCCLGO_INVALID, "raise Options.PipePool", mscclgo_pipes_create(g, &o, &p));
  OK(mscclgo_group_barrier(g, -1));  // no rank leaves before all were told
  OK(mscclgo_group_destroy(g));
  return NULL;
}

// out_of_reach asks for a group whose ranks map no memory of each other's and have no network.
static void* out_of_reach(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group g;
  char host[] = {'A' + (char)me, 0};
  mscclgo_group_config config = {.bytes = sizeof config, .transports = "cudaipc", .host = host};
  // Who finds it first ends the calls of the others, which may not have come so far.
  mscclgo_status status = mscclgo_group_connect_configured(shared_id, (int)me, RANKS, NULL, &config, &g);
  TRUE(status == MSCCLGO_UNSUPPORTED || status == MSCCLGO_REMOTE);
  TRUE(strstr(mscclgo_error_text(), "no transport reaches it") != NULL);
  return NULL;
}

static void configured(void) {
  mscclgo_rendezvous r;
  mscclgo_group g;
  struct {
    mscclgo_group_config now;
    uint64_t later;
  } newer = {.now = {.bytes = sizeof newer}};
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  OK(mscclgo_rendezvous_id(r, shared_id, sizeof shared_id));
#define WRONG_CONFIG(status, part, ...)                                                       \
  do {                                                                                        \
    mscclgo_group_config wrong = {__VA_ARGS__};                                               \
    FAILS(status, part, mscclgo_group_connect_configured(shared_id, 0, 1, NULL, &wrong, &g)); \
  } while (0)
  WRONG_CONFIG(MSCCLGO_INVALID, "sizeof(mscclgo_group_config), 72", .max_blocks = 1);
  WRONG_CONFIG(MSCCLGO_INVALID, "sizeof(mscclgo_group_config), 72", .bytes = SIZE_MAX);
  WRONG_CONFIG(MSCCLGO_INVALID, "max_blocks is -1", .bytes = sizeof wrong, .max_blocks = -1);
  WRONG_CONFIG(MSCCLGO_INVALID, "pigeons", .bytes = sizeof wrong, .transports = "cudaipc,pigeons");
  WRONG_CONFIG(MSCCLGO_INVALID, "line 2", .bytes = sizeof wrong, .tuning = "# mine\nnonsense");
  WRONG_CONFIG(MSCCLGO_INVALID, "trace_events", .bytes = sizeof wrong, .trace = "x",
               .trace_events = UINT64_MAX);
  newer.later = 1;
  FAILS(MSCCLGO_UNSUPPORTED, "install",
        mscclgo_group_connect_configured(shared_id, 0, 1, NULL, &newer.now, &g));

  newer.later = 0;  // what a later header has is as this library does it
  char trace[] = "/tmp/check-XXXXXX", *line = NULL;
  size_t room = 0;
  close(mkstemp(trace));
  newer.now.trace = trace, newer.now.trace_events = 16, newer.now.find_deadlocks = 1;
  OK(mscclgo_group_connect_configured(shared_id, 0, 1, NULL, &newer.now, &g));
  OK(mscclgo_group_destroy(g));
  FILE* written = fopen(trace, "r");
  TRUE(written && getline(&line, &room, written) > 0);
  fclose(written);
  free(line);
  unlink(trace);
  OK(mscclgo_rendezvous_destroy(r));
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  OK(mscclgo_rendezvous_id(r, shared_id, sizeof shared_id));
  OK(mscclgo_group_connect_configured(shared_id, 0, 1, NULL, NULL, &g));
  OK(mscclgo_group_destroy(g));
  OK(mscclgo_rendezvous_destroy(r));
  together(configure);
  together(on_hosts);
  together(out_of_reach);
}

static mscclgo_group ranks[2];

static void* connect_rank(void* number) {
  int rank = (int)(intptr_t)number;
  TRUE(*mscclgo_error_text() == 0);  // a thread's own
  OK(mscclgo_group_connect(shared_id, rank, 2, NULL, &ranks[rank]));
  return NULL;
}

static volatile int entered;

static void* wait_for_other(void* number) {
  entered = 1;
  OK(mscclgo_group_barrier(ranks[(intptr_t)number], -1));
  return NULL;
}

static void* leave(void* number) {
  OK(mscclgo_group_destroy(ranks[(intptr_t)number]));
  return NULL;
}

// busy tries to destroy a group in whose barrier a thread is.
static void busy(void) {
  mscclgo_rendezvous r;
  pthread_t other[2];
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  OK(mscclgo_rendezvous_id(r, shared_id, sizeof shared_id));
  for (intptr_t i = 0; i < 2; i++) pthread_create(&other[i], NULL, connect_rank, (void*)i);
  for (int i = 0; i < 2; i++) pthread_join(other[i], NULL);
  FAILS(MSCCLGO_TIMEOUT, "rank 0", mscclgo_group_barrier(ranks[1], 100));
  TRUE(mscclgo_error_peer() == 0);
  TRUE(mscclgo_group_barrier(ranks[0], -1) != MSCCLGO_OK);  // rank 1 has left this one

  // The barrier of rank 0 lasts until rank 1 comes.
  pthread_create(&other[0], NULL, wait_for_other, (void*)0);
  while (!entered) usleep(1000);
  usleep(200000);
  FAILS(MSCCLGO_INVALID, "another thread", mscclgo_group_destroy(ranks[0]));
  wait_for_other((void*)1);
  pthread_join(other[0], NULL);
  for (intptr_t i = 0; i < 2; i++) pthread_create(&other[i], NULL, leave, (void*)i);
  for (int i = 0; i < 2; i++) pthread_join(other[i], NULL);
  OK(mscclgo_rendezvous_destroy(r));
}

// What a rank of reformed has of its group, through all groups.
typedef struct {
  mscclgo_group g;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer data, words;
  mscclgo_memory_channels memory;
  mscclgo_port_channels ports;
  mscclgo_proxy proxy;
  mscclgo_peer_memory peers;
  mscclgo_prepared sum;
} survivor;

static char ids[5][MSCCLGO_ID_BYTES];  // of rendezvous
static pthread_barrier_t step;         // of the threads that are ranks

// share_survivor makes what a rank of a new group has, but for its prepared call.
static void share_survivor(survivor* r, mscclgo_group g) {
  r->g = g;
  OK(mscclgo_group_device(g, &r->d));
  OK(mscclgo_stream_create(r->d, &r->s));
  OK(mscclgo_buffer_create(r->d, 4000, &r->data));
  OK(mscclgo_buffer_create(r->d, 8 * (RANKS + 1), &r->words));
  OK(mscclgo_memory_channels_create(g, r->data, NULL, &r->memory));
  OK(mscclgo_proxy_create(g, &r->proxy));
  OK(mscclgo_port_channels_create_for_streams(g, r->proxy, r->words, NULL, &r->ports));
  OK(mscclgo_peer_memory_create(g, r->data, &r->peers));
}

// prepare_sum makes the prepared call.
static void prepare_sum(survivor* r) {
  mscclgo_call call = {.type = MSCCLGO_I32, .count = 1000, .out = r->peers};
  OK(mscclgo_prepare(r->g, &call, &r->sum));
}

// begin_survivor makes all of that.
static void begin_survivor(survivor* r, mscclgo_group g) {
  share_survivor(r, g);
  prepare_sum(r);
}

// carry brings what a rank has to its new group, but for its prepared call.
static void carry(survivor* r, int captured) {
  int memory = -1, ports = -1, peers = -1;
  OK(mscclgo_memory_channels_reform(r->memory, &memory));
  OK(mscclgo_proxy_create(r->g, &r->proxy));
  OK(mscclgo_port_channels_reform(r->ports, r->proxy, &ports));
  OK(mscclgo_peer_memory_reform(r->peers, &peers));
  // Ranks of one process map nothing, and share all addresses.
  TRUE(memory == captured && ports == captured && peers == captured);
}

// carry_sum brings the rank's prepared call there.
static void carry_sum(survivor* r, int captured) {
  int sum = -1;
  OK(mscclgo_prepared_reform(r->sum, &sum));
  TRUE(sum == captured);
}

// sum_right launches a prepared call, or a graph of it where that is not NULL.
static void sum_right(survivor* r, int rank, int size, mscclgo_prepared sum, mscclgo_graph graph) {
  int values[1000];
  for (int i = 0; i < 1000; i++) values[i] = i - rank;
  OK(mscclgo_copy_in(r->data, 0, values, sizeof values));
  OK(mscclgo_group_barrier(r->g, -1));
  if (graph) OK(mscclgo_graph_launch(graph, r->s));
  if (!graph) OK(mscclgo_prepared_launch(sum, r->s));
  OK(mscclgo_group_synchronize(r->g, r->s, -1));
  OK(mscclgo_copy_out(values, r->data, 0, sizeof values));
  for (int i = 0; i < 1000; i++) TRUE(values[i] == size * i - size * (size - 1) / 2);
  OK(mscclgo_group_barrier(r->g, -1));
}

// tell queues a word for the next rank, and waits for the previous rank's word.
static void tell(survivor* r, int rank, int size) {
  OK(mscclgo_port_put_with_signal(r->ports, r->s, 0, (rank + 1) % size, 0, 8, 8));
  OK(mscclgo_port_wait(r->ports, r->s, 0, (rank + size - 1) % size));
  OK(mscclgo_port_flush(r->ports, r->s, 0, (rank + 1) % size));
}

// works has all that a rank has be right in a group of ranks. tells is a graph of tell, or NULL.
static void works(survivor* r, int want_rank, int want_size, mscclgo_graph tells) {
  int rank = -1, size = -1, values[1000];
  uint64_t words[2] = {0, 0};
  void *data, *handles;
  mscclgo_device same;
  mscclgo_group_handle handle;
  mscclgo_peer_memory_handle memory;
  OK(mscclgo_group_error(r->g));
  OK(mscclgo_group_rank(r->g, &rank));
  OK(mscclgo_group_size(r->g, &size));
  OK(mscclgo_group_device(r->g, &same));
  TRUE(rank == want_rank && size == want_size && same == r->d);
  for (int i = 0; i < 1000; i++) values[i] = i + rank;
  words[1] = 500 + (uint64_t)rank;
  OK(mscclgo_copy_in(r->data, 0, values, sizeof values));
  OK(mscclgo_copy_in(r->words, 0, words, sizeof words));
  OK(mscclgo_buffer_pointer(r->data, &data));
  OK(mscclgo_group_barrier(r->g, -1));
  OK(mscclgo_all_reduce(r->g, r->s, data, data, 1000, MSCCLGO_I32, MSCCLGO_SUM));
  if (tells) OK(mscclgo_graph_launch(tells, r->s));
  if (!tells) tell(r, rank, size);
  OK(mscclgo_group_synchronize(r->g, r->s, -1));
  OK(mscclgo_copy_out(values, r->data, 0, sizeof values));
  OK(mscclgo_copy_out(words, r->words, 0, sizeof words));
  for (int i = 0; i < 1000; i++) TRUE(values[i] == size * i + size * (size - 1) / 2);
  TRUE(words[0] == 500 + (uint64_t)((rank + size - 1) % size));
  OK(mscclgo_memory_channels_handle(r->memory, 0, size - 1, &handles));
  FAILS(MSCCLGO_INVALID, "there is no channel", mscclgo_memory_channels_handle(r->memory, 0, size, &handles));
  OK(mscclgo_group_get_handle(r->g, &handle));
  OK(mscclgo_peer_memory_get_handle(r->peers, &memory));
  // A call that is prepared on memory of before, in the new group.
  mscclgo_call call = {.type = MSCCLGO_I32, .count = 1000, .out = r->peers};
  mscclgo_prepared sum;
  OK(mscclgo_prepare(r->g, &call, &sum));
  sum_right(r, rank, size, sum, NULL);
  OK(mscclgo_prepared_destroy(sum));
  sum_right(r, rank, size, r->sum, NULL);
}

// capture_sums captures collectives and messages on the rank's data.
static void capture_sums(survivor* r, int rank, int size, mscclgo_graph* graph) {
  void* data;
  OK(mscclgo_messages_load(r->g));
  OK(mscclgo_buffer_pointer(r->data, &data));
  OK(mscclgo_stream_begin_capture(r->s));
  mscclgo_message both[] = {
      {r->s, data, 500, MSCCLGO_I32, (rank + 1) % size, MSCCLGO_SEND},
      {r->s, (int*)data + 500, 500, MSCCLGO_I32, (rank + size - 1) % size, MSCCLGO_RECV},
  };
  OK(mscclgo_messages_launch(r->g, both, 2));
  OK(mscclgo_all_reduce(r->g, r->s, data, data, 500, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_stream_end_capture(r->s, graph));
}

// sums_right launches that graph, in which all is right.
static void sums_right(survivor* r, int rank, int size, mscclgo_graph graph) {
  int values[1000], before = (rank + size - 1) % size;
  for (int i = 0; i < 1000; i++) values[i] = i + rank;
  OK(mscclgo_copy_in(r->data, 0, values, sizeof values));
  OK(mscclgo_group_barrier(r->g, -1));
  OK(mscclgo_graph_launch(graph, r->s));
  OK(mscclgo_group_synchronize(r->g, r->s, -1));
  OK(mscclgo_copy_out(values, r->data, 0, sizeof values));
  for (int i = 0; i < 500; i++)
    TRUE(values[i] == size * i + size * (size - 1) / 2 && values[500 + i] == i + before);
  OK(mscclgo_group_barrier(r->g, -1));
}

static volatile int held[2] = {0, 0};  // a kernel of rank 1's may end, and has ended

// survive is a rank: rank 2 fails, and leaves. The others go on without it, and then a new one comes.
static void* survive(void* number) {
  static const char spin[] =
      "extern \"C\" __global__ void spin(volatile int* held) {\n"
      "  while (!held[0]) __nanosleep(1000);\n"
      "  held[1] = 1;\n"
      "}\n";
  intptr_t me = (intptr_t)number;
  int captured = -1, values[2] = {7, 8};
  survivor r;
  mscclgo_group g, part;
  mscclgo_pipes pipes;
  mscclgo_graph tells, sums, sum;
  mscclgo_buffer flags;
  mscclgo_module m;
  mscclgo_kernel k;
  mscclgo_fifo_handle fifo;
  void* address;
  OK(mscclgo_group_connect(ids[0], (int)me, RANKS, NULL, &g));
  begin_survivor(&r, g);
  works(&r, (int)me, RANKS, NULL);
  OK(mscclgo_group_split(g, 0, 0, &part));
  mscclgo_pipe_options o = {.per_peer = 1};
  OK(mscclgo_pipes_create(g, &o, &pipes));
  FAILS(MSCCLGO_INVALID, "group already", mscclgo_prepared_reform(r.sum, &captured));
  FAILS(MSCCLGO_INVALID, "has turned into", mscclgo_memory_channels_reform(r.memory, &captured));
  TRUE(captured == -1);
  if (me != 2) OK(mscclgo_port_wait(r.ports, r.s, 0, 2));  // which ends when the group fails
  pthread_barrier_wait(&step);
  if (me == 2) {
    OK(mscclgo_group_abort(g, "the disk is full"));
    OK(mscclgo_group_destroy(g));
  } else {
    TRUE(mscclgo_group_synchronize(g, r.s, -1) != MSCCLGO_OK);
    FAILS(MSCCLGO_ABORTED, "the disk is full", mscclgo_group_barrier(g, -1));
    OK(mscclgo_copy_in(r.data, 400, values, sizeof values));

    // What is wrong changes nothing.
    FAILS(MSCCLGO_INVALID, "NULL", mscclgo_group_reform(NULL, ids[1], (int)me, 2, -1));
    FAILS(MSCCLGO_INVALID, "NULL", mscclgo_group_reform(g, NULL, (int)me, 2, -1));
    FAILS(MSCCLGO_INVALID, "", mscclgo_group_reform(g, "nonsense", (int)me, 2, -1));
    FAILS(MSCCLGO_INVALID, "outside a world of 2", mscclgo_group_reform(g, ids[1], 2, 2, -1));
    FAILS(MSCCLGO_INVALID, "world size 0", mscclgo_group_reform(g, ids[1], 0, 0, -1));
    FAILS(MSCCLGO_INVALID, "a part", mscclgo_group_reform(part, ids[1], (int)me, 2, -1));
    FAILS(MSCCLGO_INVALID, "a group", mscclgo_group_reform((mscclgo_group)r.d, ids[1], (int)me, 2, -1));
    // A rank that does not come.
    FAILS(MSCCLGO_TIMEOUT, "", mscclgo_group_reform(g, ids[1], (int)me, RANKS, 300));
    OK(mscclgo_proxy_get_fifo(r.proxy, &fifo));
    OK(mscclgo_group_rank(part, &captured));
    FAILS(MSCCLGO_ABORTED, "the disk is full", mscclgo_group_error(g));
  }
  pthread_barrier_wait(&step);
  if (me == 2) {
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    OK(mscclgo_group_connect(ids[4], 2, RANKS, NULL, &g));
    share_survivor(&r, g);
    mscclgo_call wrong = {.type = MSCCLGO_I32, .count = 1000};
    FAILS(MSCCLGO_INVALID, "NULL", mscclgo_prepare(g, &wrong, &r.sum));
    prepare_sum(&r);
    works(&r, 2, RANKS, NULL);
    mscclgo_group_destroy(g);
    return NULL;
  }

  // A second failure: work of rank 1's does not end in its time.
  if (me == 1) {
    OK(mscclgo_buffer_wrap_host(r.d, (void*)held, sizeof held, &flags));
    OK(mscclgo_buffer_pointer(flags, &address));
    OK(mscclgo_module_compile(r.d, "spin.cu", spin, NULL, &m));
    OK(mscclgo_module_kernel(m, "spin", &k));
    mscclgo_launch_config config = {.grid = {1}, .block = {1}};
    OK(mscclgo_kernel_launch(k, r.s, &config, &address, sizeof address));
    FAILS(MSCCLGO_TIMEOUT, "the work of the old group", mscclgo_group_reform(g, ids[2], 1, 2, 1000));
    TRUE(!held[1]);
    held[0] = 1;
  } else {
    mscclgo_status status = mscclgo_group_reform(g, ids[2], 0, 2, -1);
    TRUE(status == MSCCLGO_ABORTED || status == MSCCLGO_REMOTE || status == MSCCLGO_TIMEOUT);
    TRUE(strstr(mscclgo_error_text(), "rank 1") != NULL);
  }
  pthread_barrier_wait(&step);
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_proxy_get_fifo(r.proxy, &fifo));
  TRUE(mscclgo_group_barrier(g, -1) != MSCCLGO_OK);

  // Without rank 2.
  OK(mscclgo_group_reform(g, ids[3], (int)me, 2, -1));
  TRUE(me == 0 || held[1]);
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_group_rank(part, &captured));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_pipes_destroy(pipes));
  FAILS(MSCCLGO_INVALID, "re-form a prepared call too", mscclgo_prepared_launch(r.sum, r.s));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_proxy_destroy(r.proxy));
  OK(mscclgo_copy_out(values, r.data, 400, sizeof values));
  TRUE(values[0] == 7 && values[1] == 8);
  mscclgo_peer_memory_handle handle;
  FAILS(MSCCLGO_INVALID, "re-form peer memory too", mscclgo_peer_memory_get_handle(r.peers, &handle));
  FAILS(MSCCLGO_INVALID, "re-form memory channels too", mscclgo_memory_channels_handles(r.memory, &address));
  FAILS(MSCCLGO_INVALID, "re-form port channels too", mscclgo_port_signal(r.ports, r.s, 0, 0));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_port_channels_reform(r.ports, NULL, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_memory_channels_reform(NULL, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_peer_memory_reform(NULL, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_prepared_reform(NULL, NULL));
  FAILS(MSCCLGO_INVALID, "re-form peer memory too", mscclgo_prepared_reform(r.sum, NULL));
  carry(&r, 0);
  carry_sum(&r, 0);
  works(&r, (int)me, 2, NULL);
  OK(mscclgo_stream_begin_capture(r.s));
  tell(&r, (int)me, 2);
  OK(mscclgo_stream_end_capture(r.s, &tells));
  capture_sums(&r, (int)me, 2, &sums);
  sums_right(&r, (int)me, 2, sums);
  OK(mscclgo_stream_begin_capture(r.s));
  OK(mscclgo_prepared_launch(r.sum, r.s));
  OK(mscclgo_stream_end_capture(r.s, &sum));

  // A group that works, as another of the same ranks, in which the graph is right; and with a new one.
  OK(mscclgo_group_reform(g, shared_id, (int)me, 2, -1));
  carry(&r, 1);
  FAILS(MSCCLGO_INVALID, "capture it again", mscclgo_graph_launch(sums, r.s));
  OK(mscclgo_group_reform_collectives(g, &captured));
  TRUE(captured == 1);
  sums_right(&r, (int)me, 2, sums);
  FAILS(MSCCLGO_INVALID, "capture it again", mscclgo_graph_launch(sum, r.s));
  carry_sum(&r, 1);
  sum_right(&r, (int)me, 2, NULL, sum);
  works(&r, (int)me, 2, tells);
  OK(mscclgo_group_reform_collectives(g, &captured));
  TRUE(captured == 1);
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_group_reform_collectives(NULL, &captured));
  pthread_barrier_wait(&step);
  OK(mscclgo_group_reform(g, ids[4], (int)me, RANKS, -1));
  carry(&r, 0);
  // This carries the collectives first, as any of them does; then the call of the new one is wrong.
  FAILS(MSCCLGO_REMOTE, "NULL", mscclgo_prepared_reform(r.sum, &captured));
  TRUE(mscclgo_error_peer() == 2 && captured == 1);
  carry_sum(&r, 0);
  works(&r, (int)me, RANKS, NULL);
  OK(mscclgo_group_reform_collectives(g, &captured));
  TRUE(captured == 0);
  FAILS(MSCCLGO_INVALID, "capture it again", mscclgo_graph_launch(sums, r.s));
  FAILS(MSCCLGO_INVALID, "capture it again", mscclgo_graph_launch(sum, r.s));
  mscclgo_group_destroy(g);
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_group_reform(g, ids[4], (int)me, RANKS, -1));
  return NULL;
}

static char elastic_id[MSCCLGO_ID_BYTES];

// generations is a rank at an elastic server: the one that becomes rank 1 fails and leaves, and comes again.
static void* generations(void* unused) {
  (void)unused;
  mscclgo_member m;
  mscclgo_group g;
  uint64_t generation = 1;
  int rank = -1, size = 0, came = -1;
  survivor r;
  OK(mscclgo_member_create(elastic_id, NULL, NULL, &m));
  OK(mscclgo_member_generation(m, &generation));
  OK(mscclgo_member_newcomers(m, &came));
  TRUE(generation == 0 && came == 0);
  OK(mscclgo_member_connect(m, -1, &g));
  OK(mscclgo_group_rank(g, &rank));
  begin_survivor(&r, g);
  works(&r, rank, RANKS, NULL);
  pthread_barrier_wait(&step);
  if (rank == 1) {
    OK(mscclgo_group_abort(g, "the disk is full"));
    OK(mscclgo_group_destroy(g));
    OK(mscclgo_member_destroy(m));
    FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_member_connect(m, -1, &g));
    pthread_barrier_wait(&step);  // the others are in a group of two
    OK(mscclgo_member_create(elastic_id, NULL, NULL, &m));
    OK(mscclgo_member_connect(m, -1, &g));
    begin_survivor(&r, g);
  } else {
    while (mscclgo_group_error(g) == MSCCLGO_OK) usleep(1000);
    OK(mscclgo_member_reform(m, g, -1));
    OK(mscclgo_member_generation(m, &generation));
    OK(mscclgo_group_size(g, &size));
    TRUE(generation == 2 && size == 2);
    OK(mscclgo_group_rank(g, &rank));
    carry(&r, 0);
    carry_sum(&r, 0);
    works(&r, rank, 2, NULL);
    pthread_barrier_wait(&step);
    for (char mine = 0, all[2] = {0, 0}; !(all[0] || all[1]);) {
      OK(mscclgo_member_newcomers(m, &came));
      mine = (char)came;
      OK(mscclgo_group_all_gather(g, &mine, 1, all, -1));
    }
    OK(mscclgo_member_reform(m, g, -1));
    carry(&r, 0);
    carry_sum(&r, 0);
  }
  OK(mscclgo_member_generation(m, &generation));
  OK(mscclgo_group_rank(g, &rank));
  TRUE(generation == 3);
  works(&r, rank, RANKS, NULL);
  mscclgo_group_destroy(g);
  OK(mscclgo_member_destroy(m));
  return NULL;
}

static mscclgo_group lone;

static void* wait_for_second(void* id) {
  entered = 1;
  FAILS(MSCCLGO_TIMEOUT, "", mscclgo_group_reform(lone, id, 0, 2, 1500));
  return NULL;
}

static void* wait_for_generation(void* member) {
  mscclgo_group g;
  entered = 1;
  FAILS(MSCCLGO_ABORTED, "the member leaves", mscclgo_member_connect(member, -1, &g));
  FAILS(MSCCLGO_ABORTED, "the member leaves", mscclgo_member_reform(member, lone, -1));
  entered = 0;
  return NULL;
}

static int reform_here(void* user, const mscclgo_trigger* t, char* why) {
  (void)t, (void)why;
  FAILS(MSCCLGO_INVALID, "a handler calls it", mscclgo_group_reform(lone, user, 0, 1, -1));
  entered = 1;
  return 0;
}

// reform_refused re-forms a group of one rank where that is wrong, and then right.
static void reform_refused(void) {
  mscclgo_elastic e;
  mscclgo_member m;
  mscclgo_proxy p;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_module module;
  mscclgo_kernel k;
  mscclgo_group g;
  pthread_t other;
  struct {
    mscclgo_fifo_handle fifo;
    uint32_t kind;
  } parameters = {.kind = 200};
  mscclgo_elastic_options few = {.least = 3, .most = 2}, early = {.settle_ms = -1},
                          nowhere = {.id = "nonsense"}, two = {.least = 2, .settle_ms = 50};
  mscclgo_group_options wrong = {.timeout_ms = -5};
  FAILS(MSCCLGO_INVALID, "from 3 to 2 ranks", mscclgo_elastic_create("127.0.0.1:0", &few, &e));
  FAILS(MSCCLGO_INVALID, "settle_ms is -1, not from 0", mscclgo_elastic_create("127.0.0.1:0", &early, &e));
  FAILS(MSCCLGO_INVALID, "", mscclgo_elastic_create("127.0.0.1:0", &nowhere, &e));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_elastic_create(NULL, NULL, &e));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_elastic_create("127.0.0.1:0", NULL, NULL));
  OK(mscclgo_elastic_create("127.0.0.1:0", &two, &e));
  FAILS(MSCCLGO_INVALID, "MSCCLGO_ID_BYTES", mscclgo_elastic_id(e, elastic_id, 5));
  OK(mscclgo_elastic_id(e, elastic_id, sizeof elastic_id));
  FAILS(MSCCLGO_INVALID, "timeout_ms is -5, not from 0", mscclgo_member_create(elastic_id, &wrong, NULL, &m));
  FAILS(MSCCLGO_INVALID, "", mscclgo_member_create("nonsense", NULL, NULL, &m));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_member_create(NULL, NULL, NULL, &m));
  OK(mscclgo_member_create(elastic_id, NULL, NULL, &m));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_member_connect(m, -1, NULL));
  FAILS(MSCCLGO_TIMEOUT, "no generation formed", mscclgo_member_connect(m, 300, &g));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_member_generation(m, NULL));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_member_newcomers(m, NULL));

  lone = open_group();
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_member_reform(m, NULL, -1));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_member_reform(NULL, lone, -1));
  FAILS(MSCCLGO_TIMEOUT, "no generation formed", mscclgo_member_reform(m, lone, 300));
  entered = 0;
  pthread_create(&other, NULL, wait_for_generation, m);
  while (!entered) usleep(1000);
  for (; entered; usleep(10000)) OK(mscclgo_member_leave(m));
  pthread_join(other, NULL);
  OK(mscclgo_group_barrier(lone, -1));  // all is as before
  OK(mscclgo_member_destroy(m));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_member_leave(m));
  OK(mscclgo_elastic_destroy(e));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_elastic_id(e, elastic_id, sizeof elastic_id));

  // By two threads at once, one of which waits for a rank.
  entered = 0;
  pthread_create(&other, NULL, wait_for_second, ids[1]);
  while (!entered) usleep(1000);
  usleep(300000);
  FAILS(MSCCLGO_INVALID, "another thread", mscclgo_group_reform(lone, ids[0], 0, 1, -1));
  FAILS(MSCCLGO_INVALID, "another thread", mscclgo_group_destroy(lone));
  OK(mscclgo_group_error(lone));
  pthread_join(other, NULL);

  // By a handler, for whose return it would wait.
  OK(mscclgo_group_device(lone, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_module_compile(d, "report.cu", trigger_source, NULL, &module));
  OK(mscclgo_module_kernel(module, "report", &k));
  OK(mscclgo_proxy_create_with_handler(lone, reform_here, ids[0], &p));
  OK(mscclgo_proxy_get_fifo(p, &parameters.fifo));
  entered = 0;
  mscclgo_launch_config config = {.grid = {1}, .block = {1}};
  OK(mscclgo_kernel_launch(k, s, &config, &parameters, sizeof parameters));
  while (!entered) usleep(1000);
  OK(mscclgo_group_synchronize(lone, s, -1));
  OK(mscclgo_group_reform(lone, ids[0], 0, 1, -1));  // which is right here
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_proxy_destroy(p));
  OK(mscclgo_group_barrier(lone, -1));
  OK(mscclgo_group_destroy(lone));
}

// open_rendezvous opens one, and stores its id.
static mscclgo_rendezvous open_rendezvous(char id[MSCCLGO_ID_BYTES]) {
  mscclgo_rendezvous r;
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  OK(mscclgo_rendezvous_id(r, id, MSCCLGO_ID_BYTES));
  return r;
}

static void reformed(void) {
  enum { IDS = sizeof ids / sizeof *ids };
  mscclgo_rendezvous all[IDS];
  mscclgo_elastic e;
  mscclgo_elastic_options options = {.least = 2, .most = RANKS, .settle_ms = 1000};
  pthread_barrier_init(&step, NULL, RANKS);
  for (int i = 0; i < 2; i++) all[i] = open_rendezvous(ids[i]);
  reform_refused();
  for (int i = 0; i < 2; i++) OK(mscclgo_rendezvous_destroy(all[i]));
  for (int i = 0; i < IDS; i++) all[i] = open_rendezvous(ids[i]);
  together(survive);
  for (int i = 0; i < IDS; i++) OK(mscclgo_rendezvous_destroy(all[i]));
  OK(mscclgo_elastic_create("127.0.0.1:0", &options, &e));
  OK(mscclgo_elastic_id(e, elastic_id, sizeof elastic_id));
  together(generations);
  OK(mscclgo_elastic_destroy(e));
}

// all_reduces is a process that is a rank of the elastic server in MSCCLGO_ID: it all-reduces and checks the
// sums until it is killed, or has done so in a group of two. kind is its device's kind.
static void all_reduces(const char* kind) {
  mscclgo_group_options options = {.device = kind};
  mscclgo_member m;
  mscclgo_group g;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_buffer b;
  void* data;
  OK(mscclgo_member_create(getenv("MSCCLGO_ID"), &options, NULL, &m));
  OK(mscclgo_member_connect(m, -1, &g));
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, 4000, &b));
  OK(mscclgo_buffer_pointer(b, &data));
  for (int steps = 0;; steps++) {
    int rank, size, values[1000];
    OK(mscclgo_group_rank(g, &rank));
    OK(mscclgo_group_size(g, &size));
    for (int i = 0; i < 1000; i++) values[i] = i + rank;
    OK(mscclgo_copy_in(b, 0, values, sizeof values));
    mscclgo_status status = mscclgo_all_reduce(g, s, data, data, 1000, MSCCLGO_I32, MSCCLGO_SUM);
    if (!status) status = mscclgo_group_synchronize(g, s, -1);
    if (status) {
      printf("lost: %s\n", mscclgo_error_text());
      fflush(stdout);
      OK(mscclgo_member_reform(m, g, -1));
      continue;
    }
    OK(mscclgo_copy_out(values, b, 0, sizeof values));
    for (int i = 0; i < 1000; i++) TRUE(values[i] == size * i + size * (size - 1) / 2);
    if (steps == 0 || size == 2) printf("%d ranks are right\n", size);
    fflush(stdout);
    if (size == 2) break;
  }
  OK(mscclgo_group_barrier(g, -1));
  OK(mscclgo_group_destroy(g));
  OK(mscclgo_member_destroy(m));
}

// abandon has rank 0 leave its group while its kernels wait on a stream of other code, whose work ends
// then, and which goes on.
static void* abandon(void* number) {
  intptr_t me = (intptr_t)number;
  mscclgo_group_options options = {.device = "emu:3", .timeout_ms = 60000};
  mscclgo_group g;
  mscclgo_device d, own;
  mscclgo_stream s, theirs;
  mscclgo_buffer b, input;
  void *handle, *data;
  int done = 1;
  OK(mscclgo_device_open("emu:3", &own));
  OK(mscclgo_stream_create(own, &theirs));
  OK(mscclgo_stream_handle(theirs, &handle));
  OK(mscclgo_buffer_create(own, 4096, &b));
  OK(mscclgo_group_connect(shared_id, (int)me, RANKS, &options, &g));
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_wrap(d, handle, &s));
  OK(mscclgo_buffer_create(d, 4096, &input));
  OK(mscclgo_buffer_pointer(input, &data));
  OK(mscclgo_all_reduce(g, s, data, data, 4, MSCCLGO_I32, MSCCLGO_SUM));
  OK(mscclgo_group_synchronize(g, s, -1));
  if (me == 0) {
    for (int i = 0; i < 30; i++) OK(mscclgo_all_reduce(g, s, data, data, 1024, MSCCLGO_I32, MSCCLGO_SUM));
    usleep(50000);
    OK(mscclgo_stream_query(theirs, &done));
    TRUE(!done);
  }
  mscclgo_status left = mscclgo_group_destroy(g);
  TRUE(left == MSCCLGO_OK || left == MSCCLGO_ABORTED);
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_stream_query(s, &done));
  OK(mscclgo_stream_synchronize(theirs, 5000));
  OK(mscclgo_stream_fill(theirs, b, 0, 7, 4096));
  OK(mscclgo_stream_synchronize(theirs, 5000));
  OK(mscclgo_device_destroy(own));
  return NULL;
}

static volatile int flags[2];  // that a kernel may go on, and that it has ended

static void* let_go(void* unused) {
  usleep(200000);
  flags[0] = 1;
  return unused;
}

// late destroys a group that has a stream with work: one that was destroyed, or that captures more.
static void late(void) {
  static const char source[] =
      "extern \"C\" __global__ void wait(volatile int* flags) {\n"
      "  while (!flags[0]) __nanosleep(1000);\n"
      "  flags[1] = 1;\n"
      "}\n";
  for (int captures = 0; captures < 2; captures++) {
    mscclgo_group g = open_group();
    mscclgo_device d;
    mscclgo_buffer b;
    mscclgo_stream s, other;
    mscclgo_module m;
    mscclgo_kernel k;
    pthread_t thread;
    void* pointer;
    int idle = 1;
    flags[0] = flags[1] = 0;
    OK(mscclgo_group_device(g, &d));
    OK(mscclgo_buffer_wrap_host(d, (void*)flags, sizeof flags, &b));
    OK(mscclgo_buffer_pointer(b, &pointer));
    OK(mscclgo_stream_create(d, &s));
    OK(mscclgo_module_compile(d, "wait.cu", source, NULL, &m));
    OK(mscclgo_module_kernel(m, "wait", &k));
    mscclgo_launch_config config = {.grid = {1}, .block = {1}};
    OK(mscclgo_kernel_launch(k, s, &config, &pointer, sizeof pointer));
    OK(mscclgo_stream_query(s, &idle));
    TRUE(!idle);
    if (captures) {
      OK(mscclgo_stream_begin_capture(s));
    } else {
      OK(mscclgo_stream_destroy(s));
      FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_stream_query(s, &idle));
      OK(mscclgo_stream_create(d, &other));
    }
    pthread_create(&thread, NULL, let_go, NULL);
    OK(mscclgo_group_destroy(g));
    TRUE(flags[1]);
    pthread_join(thread, NULL);
  }
}

static void environment(void) {
  mscclgo_group g;
  int size = 0;
  FAILS(MSCCLGO_INVALID, "RANK", mscclgo_group_join(NULL, &g));
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29400", 1);
  setenv("MSCCLGO_DEVICE", "emu:77777777", 1);
  FAILS(MSCCLGO_INVALID, "77777777", mscclgo_group_join(NULL, &g));
  unsetenv("MSCCLGO_DEVICE");
  mscclgo_rendezvous r;
  char id[MSCCLGO_ID_BYTES];
  OK(mscclgo_rendezvous_create("127.0.0.1:0", &r));
  OK(mscclgo_rendezvous_id(r, id, sizeof id));
  setenv("MSCCLGO_ID", id, 1);
  setenv("LOCAL_RANK", "0", 1);
  setenv("LOCAL_WORLD_SIZE", "1", 1);
  mscclgo_group_options options = {.device = "emu", .timeout_ms = 20000};
  OK(mscclgo_group_join(&options, &g));
  OK(mscclgo_group_size(g, &size));
  TRUE(size == 1);
  OK(mscclgo_group_destroy(g));
  options.timeout_ms = -1;
  FAILS(MSCCLGO_INVALID, "timeout_ms is -1, not from 0 to 1099511627776", mscclgo_group_join(&options, &g));
  FAILS(MSCCLGO_INVALID, "", mscclgo_group_connect("no id", 0, 1, NULL, &g));
}

static int opened;

static void* read_environment(void* unused) {
  mscclgo_device d;
  while (!__atomic_load_n(&opened, __ATOMIC_ACQUIRE))
    FAILS(MSCCLGO_INVALID, "", mscclgo_device_open("no device", &d));
  return unused;
}

// opening opens a GPU, for which the library sets variables, while threads make calls that
// read all of many variables.
static void opening(void) {
  pthread_t readers[2];
  char name[32];
  for (int i = 0; i < 5000; i++) {
    snprintf(name, sizeof name, "CHECK_%d", i);
    setenv(name, "a value", 1);
  }
  for (int i = 0; i < 200000; i++) TRUE(strdup(name) != NULL);  // nothing is free where the variables end
  for (int i = 0; i < 2; i++) pthread_create(&readers[i], NULL, read_environment, NULL);
  usleep(20000);
  mscclgo_device d;
  mscclgo_device_open("cuda:0", &d);  // if there is one
  usleep(20000);
  __atomic_store_n(&opened, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
}

static int entries(const char* folder) {
  DIR* d = opendir(folder);
  int n = 0;
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

// usage stores descriptors, mappings and threads of the process, and its memory in KiB.
static void usage(long of[4]) {
  char line[512];
  of[0] = entries("/proc/self/fd");
  of[2] = entries("/proc/self/task");
  of[1] = of[3] = 0;
  FILE* f = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, f)) of[1]++;
  fclose(f);
  f = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, f)) sscanf(line, "VmRSS: %ld", &of[3]);
  fclose(f);
}

// once makes one of everything and destroys it.
static void once(void) {
  mscclgo_group g = open_group(), part;
  mscclgo_device d;
  mscclgo_stream s;
  mscclgo_event e;
  mscclgo_graph graph;
  mscclgo_buffer b, h, w;
  mscclgo_module m;
  mscclgo_kernel k;
  mscclgo_parameter_type type;
  mscclgo_proxy p;
  mscclgo_memory_channels c;
  mscclgo_port_channels ports, queued;
  mscclgo_peer_memory peers, other;
  mscclgo_prepared sum, lost;
  void* address;
  OK(mscclgo_group_device(g, &d));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_event_create(d, &e));
  OK(mscclgo_buffer_create(d, 1 << 20, &b));
  OK(mscclgo_buffer_create_host(d, 4096, &h));
  OK(mscclgo_buffer_host_pointer(h, &address));
  memset(address, 1, 4096);
  OK(mscclgo_buffer_pointer(b, &address));
  OK(mscclgo_buffer_wrap(d, address, 4096, &w));
  OK(mscclgo_module_compile(d, "kernels.cu", kernels, NULL, &m));
  OK(mscclgo_module_kernel(m, "ranks", &k));
  OK(mscclgo_kernel_parameter_type(k, 2, &type));
  TRUE(strcmp(type.name, "to") == 0);
  OK(mscclgo_module_kernel(m, "nothing", &k));
  OK(mscclgo_proxy_create(g, &p));
  OK(mscclgo_memory_channels_create(g, b, NULL, &c));
  OK(mscclgo_port_channels_create(g, p, b, NULL, &ports));
  OK(mscclgo_port_channels_create_for_streams(g, p, b, NULL, &queued));
  OK(mscclgo_port_put_with_signal(queued, s, 0, 0, 0, 4096, 4096));
  OK(mscclgo_port_wait(queued, s, 0, 0));
  OK(mscclgo_peer_memory_create(g, b, &peers));
  OK(mscclgo_peer_memory_create(g, b, &other));
  mscclgo_call call = {.type = MSCCLGO_F32, .count = 1000, .out = peers};
  OK(mscclgo_prepare(g, &call, &sum));
  call.out = other;
  OK(mscclgo_prepare(g, &call, &lost));
  OK(mscclgo_stream_begin_capture(s));
  OK(mscclgo_all_reduce(g, s, address, address, 1000, MSCCLGO_F32, MSCCLGO_SUM));
  OK(mscclgo_stream_end_capture(s, &graph));
  OK(mscclgo_graph_launch(graph, s));
  mscclgo_message self[] = {
      {s, address, 1000, MSCCLGO_F32, 0, MSCCLGO_SEND},
      {s, (float*)address + 1000, 1000, MSCCLGO_F32, 0, MSCCLGO_RECV},
  };
  OK(mscclgo_messages_launch(g, self, 2));
  OK(mscclgo_event_record(e, s));
  OK(mscclgo_group_synchronize(g, s, -1));
  FAILS(MSCCLGO_INVALID, "", mscclgo_buffer_create(d, 0, &w));
  OK(mscclgo_group_split(g, 0, 0, &part));
  OK(mscclgo_all_reduce(part, s, address, address, 1000, MSCCLGO_F32, MSCCLGO_SUM));
  OK(mscclgo_group_synchronize(part, s, -1));
  mscclgo_rendezvous r = open_rendezvous(shared_id);
  OK(mscclgo_group_reform(g, shared_id, 0, 1, -1));
  OK(mscclgo_rendezvous_destroy(r));
  OK(mscclgo_memory_channels_reform(c, NULL));
  OK(mscclgo_proxy_create(g, &p));
  OK(mscclgo_port_channels_reform(queued, p, NULL));  // the others are freed with the group
  OK(mscclgo_peer_memory_reform(peers, NULL));
  OK(mscclgo_prepared_reform(sum, NULL));
  OK(mscclgo_prepared_launch(sum, s));
  OK(mscclgo_peer_memory_destroy(other));
  FAILS(MSCCLGO_INVALID, "destroyed", mscclgo_prepared_reform(lost, NULL));
  OK(mscclgo_all_reduce(g, s, address, address, 1000, MSCCLGO_F32, MSCCLGO_SUM));
  OK(mscclgo_group_synchronize(g, s, -1));
  OK(mscclgo_group_destroy(g));
}

// Of LeakSanitizer, if this program is linked with it: returns whether there are leaks, and
// prints them.
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

// grown returns how many more mappings there are, without some three of each new thread. With
// LeakSanitizer it is 0: its allocator maps more as it goes.
static long grown(const long before[4], const long after[4]) {
  if (__lsan_do_recoverable_leak_check) return 0;
  long threads = after[2] > before[2] ? after[2] - before[2] : 0;
  return after[1] - before[1] - 3 * threads;
}

static void leaks(void) {
  enum { WARM = 5, MORE = 40 };  // so many that a thread which the runtime starts late is no leak
  long before[4], after[4];
  for (int i = 0; i < WARM; i++) once();
  usage(before);
  for (int i = 0; i < MORE; i++) once();
  // What is closed in the background goes soon.
  for (int tries = 0; tries < 200; tries++) {
    usage(after);
    if (after[0] <= before[0] && grown(before, after) <= MORE / 2 && after[2] <= before[2] + 4) break;
    usleep(100000);
  }
  printf("before: %ld descriptors, %ld mappings, %ld threads, %ld KiB\n", before[0], before[1], before[2],
         before[3]);
  printf("after:  %ld descriptors, %ld mappings, %ld threads, %ld KiB\n", after[0], after[1], after[2],
         after[3]);
  TRUE(after[0] <= before[0]);
  TRUE(grown(before, after) <= MORE / 2);
  TRUE(after[2] <= before[2] + 4);
  TRUE(after[3] <= before[3] + 1024 * MORE);
  for (int tries = 0; __lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check(); tries++) {
    TRUE(tries < 50);
    usleep(200000);
  }
  // The sanitizer's check at the end would not wait for what Go's collector has yet to free.
  fflush(stdout);
  if (__lsan_do_recoverable_leak_check) _exit(0);
}

// leak loses memory, for LeakSanitizer to find.
static void leak(void) {
  void* volatile lost = malloc(4321);
  lost = NULL;
  (void)lost;
}

// context calls the library while the thread has a context, with a driver that is not real.
static void context(void) {
  mscclgo_device d;
  mscclgo_device_info info;
  mscclgo_stream s;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *mine = &d, *now = NULL;
  TRUE(driver != NULL);
  int (*set)(void*) = (int (*)(void*))dlsym(driver, "cuCtxSetCurrent");
  int (*get)(void**) = (int (*)(void**))dlsym(driver, "cuCtxGetCurrent");
  int (*sets)(void) = (int (*)(void))dlsym(driver, "test_sets");
  set(mine);
  OK(mscclgo_device_open("cuda:0", &d));  // this loads the driver here
  get(&now);
  TRUE(now == mine);
  set(NULL);
  int count = sets();
  OK(mscclgo_stream_create(d, &s));
  TRUE(sets() > count);  // the call had a context
  get(&now);
  TRUE(now == NULL);
  set(mine);
  OK(mscclgo_device_get_info(d, &info));
  TRUE(strcmp(info.model, "Fake") == 0 && strcmp(info.name, "cuda:0") == 0);
  FAILS(MSCCLGO_INVALID, "", mscclgo_stream_query((mscclgo_stream)d, NULL));
  OK(mscclgo_device_destroy(d));
  get(&now);
  TRUE(now == mine);
}

// sockets returns how many sockets the process has.
static int sockets(void) {
  int n = 0;
  DIR* all = opendir("/proc/self/fd");
  TRUE(all != NULL);
  for (struct dirent* entry; (entry = readdir(all));) {
    struct stat is;
    n += fstatat(dirfd(all), entry->d_name, &is, 0) == 0 && S_ISSOCK(is.st_mode);
  }
  closedir(all);
  return n;
}

static void forked(void) {
  int mine = sockets();
  struct sockaddr_in free_port = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t bytes = sizeof free_port;
  int s = socket(AF_INET, SOCK_STREAM, 0);
  TRUE(bind(s, (struct sockaddr*)&free_port, bytes) == 0 &&
       getsockname(s, (struct sockaddr*)&free_port, &bytes) == 0);
  char address[64];
  snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(free_port.sin_port));
  TRUE(close(s) == 0 && socket(AF_INET, SOCK_STREAM, 0) == s);  // the program's own, which the child keeps
  mscclgo_rendezvous r;
  OK(mscclgo_rendezvous_create(address, &r));
  mscclgo_group g = open_group();
  TRUE(sockets() > mine + 1);
  int told[2];
  TRUE(pipe(told) == 0);
  pid_t child = fork();
  if (child == 0) {  // it lives, with no socket of the library
    int others = sockets() - mine - 1;
    TRUE(write(told[1], &others, sizeof others) == sizeof others);
    pause();
    _exit(9);
  }
  int others;
  TRUE(read(told[0], &others, sizeof others) == sizeof others && others == 0);
  OK(mscclgo_rendezvous_destroy(r));
  OK(mscclgo_rendezvous_create(address, &r));
  OK(mscclgo_rendezvous_destroy(r));
  TRUE(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
  child = fork();
  if (child == 0) {
    FAILS(MSCCLGO_INVALID, "fork", mscclgo_group_barrier(g, -1));
    FAILS(MSCCLGO_INVALID, "fork", mscclgo_group_destroy(g));
    FAILS(MSCCLGO_INVALID, "fork", mscclgo_check_version(MSCCLGO_VERSION));
    execl("/proc/self/exe", "check", "version", NULL);
    _exit(9);
  }
  int status;
  TRUE(waitpid(child, &status, 0) == child && status == 0);
  OK(mscclgo_group_barrier(g, -1));
  OK(mscclgo_group_destroy(g));
}

static void version(void) {
  OK(mscclgo_check_version(MSCCLGO_VERSION));
  OK(mscclgo_check_version(MSCCLGO_VERSION + 1));  // a patch
  FAILS(MSCCLGO_UNSUPPORTED, "version 0.2.0", mscclgo_check_version(2 << 8));
  TRUE(mscclgo_version() == MSCCLGO_VERSION);
  TRUE(strcmp(mscclgo_status_name(MSCCLGO_TIMEOUT), "timeout") == 0);
  TRUE(strcmp(mscclgo_status_name((mscclgo_status)99), "unknown status") == 0);
  printf("%s\n", mscclgo_version_text());
}

static pthread_mutex_t records = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t recorded = PTHREAD_COND_INITIALIZER;
static int refused;

static void record(void* user, int level, const char* text) {
  pthread_mutex_lock(&records);
  if (user == (void*)5 && level >= MSCCLGO_LOG_INFO && !strchr(text, '\n') && strstr(text, "msg=")) refused++;
  printf("%d %s\n", level, text);
  pthread_cond_broadcast(&recorded);
  pthread_mutex_unlock(&records);
}

// logs has a stranger come to a rendezvous at a port.
static void logs(const char* port) {
  char address[64];
  mscclgo_rendezvous r;
  OK(mscclgo_set_log(record, (void*)5, MSCCLGO_LOG_INFO));
  snprintf(address, sizeof address, "127.0.0.1:%s", port);
  OK(mscclgo_rendezvous_create(address, &r));
  struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int s = socket(AF_INET, SOCK_STREAM, 0);
  TRUE(connect(s, (struct sockaddr*)&to, sizeof to) == 0);
  char noise[4096];
  memset(noise, 'x', sizeof noise);
  TRUE(write(s, noise, sizeof noise) > 0);
  pthread_mutex_lock(&records);
  while (!refused) pthread_cond_wait(&recorded, &records);
  pthread_mutex_unlock(&records);
  close(s);
  OK(mscclgo_set_log(NULL, NULL, 0));
  OK(mscclgo_rendezvous_destroy(r));
}

// undescribed asks for the parameters of a kernel whose image, a file, does not describe them.
static void undescribed(const char* path) {
  static char image[8 << 20];
  mscclgo_device d;
  mscclgo_module m;
  mscclgo_kernel k;
  mscclgo_parameter_type type;
  FILE* file = fopen(path, "rb");
  TRUE(file != NULL);
  size_t bytes = fread(image, 1, sizeof image, file);
  TRUE(feof(file) && fclose(file) == 0);
  OK(mscclgo_device_open("emu:0", &d));
  OK(mscclgo_module_load(d, image, bytes, &m));
  OK(mscclgo_module_kernel(m, "k", &k));
  OK(mscclgo_kernel_parameter_type(k, 1, &type));
  TRUE(strcmp(type.name, "") == 0 && strcmp(type.type, "") == 0 && type.kind == MSCCLGO_KIND_UNKNOWN);
  TRUE(type.bytes == 4 && type.pointee == MSCCLGO_KIND_UNKNOWN && type.pointee_bytes == 0);
  FAILS(MSCCLGO_INVALID, "no parameter 2 of k", mscclgo_kernel_parameter_type(k, 2, &type));
  const char* to;
  OK(mscclgo_kernel_parameter_pointee(k, 0, &to));
  TRUE(strcmp(to, "") == 0);
  OK(mscclgo_device_destroy(d));
}

// bundle loads a kernel from a file, and what is none.
static void bundle(const char* path) {
  mscclgo_device d;
  mscclgo_module m;
  mscclgo_kernel k;
  mscclgo_stream s;
  mscclgo_buffer b;
  void* at;
  int result = 0;
  OK(mscclgo_device_open("emu:0", &d));
  OK(mscclgo_module_load_bundle(d, path, &m));
  OK(mscclgo_module_kernel(m, "k", &k));
  OK(mscclgo_stream_create(d, &s));
  OK(mscclgo_buffer_create(d, sizeof result, &b));
  OK(mscclgo_buffer_pointer(b, &at));
  struct {
    void* to;
    int n;
  } block = {at, 77};
  mscclgo_launch_config config = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
  OK(mscclgo_kernel_launch(k, s, &config, &block, sizeof block));
  OK(mscclgo_stream_synchronize(s, 10000));
  OK(mscclgo_copy_out(&result, b, 0, sizeof result));
  TRUE(result == 77);
  FAILS(MSCCLGO_SYSTEM, "no such file", mscclgo_module_load_bundle(d, "/no/such/file", &m));
  FAILS(MSCCLGO_INVALID, "not a bundle", mscclgo_module_load_bundle(d, "/proc/self/exe", &m));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_module_load_bundle(d, NULL, &m));
  OK(mscclgo_device_destroy(d));
}

static int passed[2];  // a pipe of signals for ranks

static void pass(int number) {
  char byte = (char)number;
  if (write(passed[1], &byte, 1) != 1) _exit(42);
}

// run runs ranks that are shells.
static void run(void) {
  int code = 0;
#define RUN(ranks, signals, script) \
  mscclgo_run((ranks), (const char* const[]){"/bin/sh", "-c", (script), NULL}, (signals), &code)
  OK(mscclgo_set_log(NULL, NULL, 0));
  setenv("SET_LATE", "late", 1);  // after Go has read the environment
  code = 9;
  OK(RUN(2, -1, "echo $RANK of $WORLD_SIZE, ${MSCCLGO_ID:+id}, $SET_LATE; cat"));
  TRUE(code == 0);
  FAILS(MSCCLGO_REMOTE, "exited with code 3; of the others, 0,2 were ended by SIGTERM",
        RUN(3, -1, "[ $RANK = 1 ] && exit 3; exec sleep 60"));
  TRUE(code == 3 && mscclgo_error_rank() == 1);
  FAILS(MSCCLGO_INVALID, "from 1 to", RUN(0, -1, "exit 0"));
  TRUE(code == 2);
  FAILS(MSCCLGO_INVALID, "from 1 to", RUN(1000000, -1, "exit 0"));
  TRUE(code == 2);
  FAILS(MSCCLGO_INVALID, "not found", mscclgo_run(1, (const char* const[]){"mscclgo-none", NULL}, -1, &code));
  TRUE(code == 127);
  FAILS(MSCCLGO_INVALID, "permission", mscclgo_run(1, (const char* const[]){"/etc/passwd", NULL}, -1, &code));
  TRUE(code == 126);
  FAILS(MSCCLGO_INVALID, "the descriptor 999", RUN(1, 999, "exit 0"));
  TRUE(code == 1);
  FAILS(MSCCLGO_INVALID, "no program", mscclgo_run(1, (const char* const[]){NULL}, -1, &code));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_run(1, NULL, -1, &code));
  FAILS(MSCCLGO_INVALID, "NULL", mscclgo_run(1, (const char* const[]){"true", NULL}, -1, NULL));

  // Signals of this process are its own; signals that it passes on go to all ranks.
  TRUE(pipe(passed) == 0);
  struct sigaction host = {.sa_handler = pass, .sa_flags = SA_ONSTACK}, before, after;
  sigaction(SIGUSR1, &host, NULL);
  sigaction(SIGUSR1, NULL, &before);
  FAILS(MSCCLGO_REMOTE, "exited with code 7",
        RUN(1, passed[0],
            "exec 2>/dev/null; trap 'exit 7' USR1; kill -USR1 $PPID; while :; do sleep 0.02; done"));
  TRUE(code == 7);
  pass(SIGTERM);
  FAILS(MSCCLGO_REMOTE, "ended by SIGTERM", RUN(2, passed[0], "exec sleep 60"));
  TRUE(code == 128 + SIGTERM);
  sigaction(SIGUSR1, NULL, &after);
  TRUE(after.sa_handler == pass && after.sa_flags == before.sa_flags);
  close(passed[1]);
  OK(RUN(1, passed[0], "exit 0"));  // which has ended

  // Output that nobody reads is an error, where SIGPIPE is ignored.
  int unread[2], out = dup(1);
  TRUE(out >= 0 && pipe(unread) == 0 && dup2(unread[1], 1) == 1);
  close(unread[0]);
  close(unread[1]);
  signal(SIGPIPE, SIG_IGN);
  code = 9;
  FAILS(MSCCLGO_SYSTEM, "write the ranks' output", RUN(1, -1, "echo"));
  TRUE(code == 1);
  signal(SIGPIPE, SIG_DFL);
  TRUE(dup2(out, 1) == 1);
  close(out);

  // What takes the status of children is told of.
  signal(SIGCHLD, SIG_IGN);
  FAILS(MSCCLGO_REMOTE, "ignores SIGCHLD", RUN(2, -1, "exit 0"));
  TRUE(code == 1);
}

int main(int count, char** arguments) {
  const char* name = count > 1 ? arguments[1] : "";
  const char* argument = count > 2 ? arguments[2] : "";
  alarm(120);
  if (!strcmp(name, "handles")) return handles(), 0;
  if (!strcmp(name, "launches")) return launches(), 0;
  if (!strcmp(name, "collectives")) return collectives(), 0;
  if (!strcmp(name, "inaccessible")) return inaccessible(argument), 0;
  if (!strcmp(name, "bundle")) return bundle(argument), 0;
  if (!strcmp(name, "prepared")) return prepared(), 0;
  if (!strcmp(name, "prepared-apart")) return together(prepare_apart), 0;
  if (!strcmp(name, "precompile")) return precompile(), 0;
  if (!strcmp(name, "messages")) return messages(), 0;
  if (!strcmp(name, "split")) return split(), 0;
  if (!strcmp(name, "differ")) return together(differ), 0;
  if (!strcmp(name, "configured")) return configured(), 0;
  if (!strcmp(name, "pipes")) return pipes(), 0;
  if (!strcmp(name, "ports")) return ports(), 0;
  if (!strcmp(name, "triggers")) return triggers(), 0;
  if (!strcmp(name, "waiting-triggers")) return waiting_triggers(), 0;
  if (!strcmp(name, "busy")) return busy(), 0;
  if (!strcmp(name, "reformed")) return reformed(), 0;
  if (!strcmp(name, "all-reduces")) return all_reduces(argument), 0;
  if (!strcmp(name, "abandoned")) return together(abandon), 0;
  if (!strcmp(name, "late")) return late(), 0;
  if (!strcmp(name, "environment")) return environment(), 0;
  if (!strcmp(name, "run")) return run(), 0;
  if (!strcmp(name, "opening")) return opening(), 0;
  if (!strcmp(name, "leaks")) return leaks(), 0;
  if (!strcmp(name, "leak")) return leak(), 0;
  if (!strcmp(name, "context")) return context(), 0;
  if (!strcmp(name, "fork")) return forked(), 0;
  if (!strcmp(name, "version")) return version(), 0;
  if (!strcmp(name, "undescribed")) return undescribed(argument), 0;
  if (!strcmp(name, "logs")) return logs(argument), 0;
  fprintf(stderr, "there is no %s\n", name);
  return 2;
}
