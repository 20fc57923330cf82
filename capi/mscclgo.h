// mscclgo.h: collectives and channels between GPUs, for C and C++.
//
//   mscclgo_group group;
//   if (mscclgo_group_join(NULL, &group)) return complain(mscclgo_error_text());
//   mscclgo_group_device(group, &device);
//   mscclgo_buffer_create(device, bytes, &buffer);
//   mscclgo_buffer_pointer(buffer, &out);
//   ...
//   mscclgo_all_reduce(group, stream, out, in, count, MSCCLGO_F32, MSCCLGO_SUM);
//   mscclgo_group_synchronize(group, stream, -1);
//
// Errors. A function returns MSCCLGO_OK, or the kind of failure, and then stores nothing
// in its results. mscclgo_error_text tells the rest. No argument ends the process: a
// handle that is NULL, stale or of another kind is MSCCLGO_INVALID, and so is a NULL
// pointer where a value is needed. Where bytes of the host are passed with their number,
// each page of them is looked at: if one is not mapped, is protected or is beyond the end
// of its file, that is MSCCLGO_INVALID too. Otherwise the memory behind a pointer of the
// host must have the size that the function needs.
//
// Handles. A handle is a number in the type of a pointer; it points nowhere. A function
// that stores a handle makes an object, which mscclgo_KIND_destroy destroys; where it
// says so, the object is another's instead. Destroying an object also destroys what was
// made of it, the newest first: a group all that its functions made and its device's
// objects, a module its kernels, a buffer its slices. Their handles are stale then, and
// never used again. An object that another thread's call is using is not destroyed:
// that is MSCCLGO_INVALID. After any other error of a destroy the object is gone.
//
// Threads. All functions may be called from any thread, at the same time. Those marked
// collective are called by every rank of the group, in the same order and with
// arguments that fit, and for one group by one thread at a time. A call leaves the
// calling thread's current CUDA context as it was. While one reads the environment, no thread of
// the program's own may change its variables. The calls that read it open a device, or join or connect
// a group, or are mscclgo_module_compile, mscclgo_rendezvous_create, mscclgo_elastic_create,
// mscclgo_member_create, mscclgo_run and mscclgo_precompile.
//
// Ranks. A process is usually one rank. It may be several, with a group each, whose
// collective calls are then made by threads of their own, since they wait for each other.
//
// Units. Sizes and offsets are in bytes, counts in elements, times in milliseconds. A
// negative time is without limit.
//
// Strings are UTF-8 and end with a zero byte. The library keeps no pointer of the caller's
// beyond the call, but mscclgo_set_log's.
//
// The process. The library holds a Go runtime. It stays loaded: dlclose does nothing.
// Handlers that the process has for SIGSEGV, SIGBUS, SIGFPE and SIGPIPE when it loads the
// library still get the signals of its own code, and where it has none they do what they
// did. A handler installed later must have SA_ONSTACK, since it may run on a small stack; one
// for SIGSEGV or SIGBUS must also call the handler of before for faults of the library's code,
// or bytes that cannot be accessed end the process; and setting SIGPIPE to SIG_DFL later would
// have a connection that breaks end the process.
// After fork the child may call exec and nothing of this library: its functions return
// MSCCLGO_INVALID there. The library's sockets and pipes are closed in it.
#ifndef MSCCLGO_H
#define MSCCLGO_H

#include <stddef.h>
#include <stdint.h>

#define MSCCLGO_VERSION_MAJOR 0
#define MSCCLGO_VERSION_MINOR 1
#define MSCCLGO_VERSION_PATCH 0

// MSCCLGO_VERSION is the version of this header as one number.
#define MSCCLGO_VERSION ((MSCCLGO_VERSION_MAJOR << 16) | (MSCCLGO_VERSION_MINOR << 8) | MSCCLGO_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

#define MSCCLGO_API __attribute__((visibility("default")))

// mscclgo_status is the result of a function. Values that are not listed may be added.
typedef enum {
  MSCCLGO_OK = 0,
  MSCCLGO_INVALID = 1,      // the call is wrong
  MSCCLGO_TIMEOUT = 2,      // a time passed
  MSCCLGO_ABORTED = 3,      // a rank aborted the group, or it was destroyed during the call
  MSCCLGO_REMOTE = 4,       // a peer failed, left, or sent something wrong
  MSCCLGO_UNSUPPORTED = 5,  // this machine, device or build cannot do that
  MSCCLGO_SYSTEM = 6        // the operating system, the driver or a compiler failed
} mscclgo_status;

// The kinds of handles.
typedef struct mscclgo_group_* mscclgo_group;                      // one rank's view of its group
typedef struct mscclgo_rendezvous_* mscclgo_rendezvous;            // where ranks meet
typedef struct mscclgo_device_* mscclgo_device;                    // a GPU, or an emulated one
typedef struct mscclgo_buffer_* mscclgo_buffer;                    // a range of memory that kernels reach
typedef struct mscclgo_stream_* mscclgo_stream;                    // work in order
typedef struct mscclgo_event_* mscclgo_event;                      // a point in a stream's work
typedef struct mscclgo_graph_* mscclgo_graph;                      // captured work
typedef struct mscclgo_module_* mscclgo_module;                    // device code, loaded
typedef struct mscclgo_kernel_* mscclgo_kernel;                    // an entry point of a module
typedef struct mscclgo_memory_channels_* mscclgo_memory_channels;  // channels to mapped memory
typedef struct mscclgo_port_channels_* mscclgo_port_channels;      // channels that the host serves
typedef struct mscclgo_proxy_* mscclgo_proxy;                      // serves what kernels ask of the host
typedef struct mscclgo_peer_memory_* mscclgo_peer_memory;          // a buffer of each rank
typedef struct mscclgo_prepared_* mscclgo_prepared;                // a collective that is ready to run
typedef struct mscclgo_pipes_* mscclgo_pipes;                      // one-way streams of messages
typedef struct mscclgo_elastic_* mscclgo_elastic;                  // where processes meet again and again
typedef struct mscclgo_member_* mscclgo_member;                    // a process that comes there

// ---- Version and errors ----

// mscclgo_version returns the library's version, a number as MSCCLGO_VERSION.
MSCCLGO_API uint32_t mscclgo_version(void);

// mscclgo_version_text returns the library's version for people, such as "v0.1.0". The
// text is the library's.
MSCCLGO_API const char* mscclgo_version_text(void);

// mscclgo_check_version fails unless the library can be used by what was compiled with the
// header of a version: call it with MSCCLGO_VERSION, before anything else. Major and minor
// version must be equal.
//
// Errors: MSCCLGO_UNSUPPORTED, with both versions.
MSCCLGO_API mscclgo_status mscclgo_check_version(uint32_t header);

// mscclgo_status_name returns the name of a status, such as "timeout". The text is the
// library's.
MSCCLGO_API const char* mscclgo_status_name(mscclgo_status status);

// mscclgo_error_text returns what the calling thread's last call that failed has to tell:
// what was tried, why it failed, and what to do. It is "" if none has failed. The text is
// the library's, and valid until the thread's next call that fails.
MSCCLGO_API const char* mscclgo_error_text(void);

// mscclgo_error_rank and mscclgo_error_peer are of the calling thread's last call that failed:
// the rank that reports it, usually this one, and the one to blame or at the other end. The
// peer is -1 where that is the rank itself, and each where none is known. Of mscclgo_run, the
// rank is the one to blame.
MSCCLGO_API int mscclgo_error_rank(void);
MSCCLGO_API int mscclgo_error_peer(void);

// The levels of log records.
enum { MSCCLGO_LOG_DEBUG = -4, MSCCLGO_LOG_INFO = 0, MSCCLGO_LOG_WARN = 4, MSCCLGO_LOG_ERROR = 8 };

// mscclgo_log receives a record of the log: events that are not errors of a call, such as a
// refused connection. text is one line, valid during the call. It is called by threads of
// the library and by threads in a call of it, one at a time. It must not call the library, nor
// take a lock that a thread holds in a call.
typedef void (*mscclgo_log)(void* user, int level, const char* text);

// mscclgo_set_log has all records of this level and above passed to f, with user; NULL ends
// that. It concerns the whole process. When it returns, the function of before is not in a
// call any longer. With the variable MSCCLGO_LOG=info (or debug, warn, error) groups write
// theirs to the standard error too.
MSCCLGO_API mscclgo_status mscclgo_set_log(mscclgo_log f, void* user, int level);

// ---- Groups ----

// mscclgo_group_options are options of a group. All zero is right for most uses.
typedef struct {
  // device names the device, as for mscclgo_device_open. With "auto" (NULL means that), "cuda"
  // or "emu" the ranks of a machine take its devices in turn.
  const char* device;
  // local_rank is this rank's number among the ranks of this machine, for the choice of a
  // device. mscclgo_group_join uses what the environment says instead.
  int local_rank;
  // timeout_ms bounds waits in kernels and the exchanges of collective calls. 0 means 30
  // seconds.
  int64_t timeout_ms;
  // heartbeat_timeout_ms is for how long a rank may give no sign of life. 0 means 5 seconds,
  // less than 0 for ever; at least 100.
  int64_t heartbeat_timeout_ms;
  // scratch_bytes is the size of the packet memory of each rank, the same on all ranks. 0
  // means 48 MiB.
  uint64_t scratch_bytes;
} mscclgo_group_options;

// mscclgo_group_join joins the group that the environment describes, as set by torchrun,
// mpirun, srun, a Kubernetes indexed job or mscclgo run, and opens a device: the one that the
// variable MSCCLGO_DEVICE names, if it is set. options may be NULL. Collective.
//
// Errors: MSCCLGO_INVALID if the environment describes no group; MSCCLGO_TIMEOUT, which
// names the ranks that did not come; MSCCLGO_UNSUPPORTED if there is no such device.
MSCCLGO_API mscclgo_status mscclgo_group_join(const mscclgo_group_options* options, mscclgo_group* group);

// mscclgo_group_connect is mscclgo_group_join for a program whose ranks know the id of a
// rendezvous, their numbers from 0, and how many they are. Collective.
MSCCLGO_API mscclgo_status mscclgo_group_connect(const char* id, int rank, int size,
                                                 const mscclgo_group_options* options, mscclgo_group* group);

// mscclgo_group_config is what mscclgo_group_options lack, whose size is settled. All zero but bytes is right
// for most uses. It may grow: what is behind its first bytes, in a program of an earlier header, counts as 0.
typedef struct {
  size_t bytes;  // sizeof(mscclgo_group_config)
  // transports names the transports that may be used, separated by commas: cudaipc, shm, infiniband,
  // ethernet. They may differ among ranks. NULL means all. mscclgo_group_join uses the variable
  // MSCCLGO_TRANSPORTS instead if it is set.
  const char* transports;
  // trace is a file to which destroying the group of rank 0 writes a timeline of all ranks, for
  // ui.perfetto.dev; if the group fails, each rank writes its own, with .rankN behind the name. All ranks
  // or none have one. Kernels tell of more than launches where they are compiled with the variable
  // MSCCLGO_TRACE set. trace_events is how many events a rank keeps: 16 to 1 << 24, 0 means 65536.
  // mscclgo_group_join uses the variables MSCCLGO_TRACE and MSCCLGO_TRACE_EVENTS instead if they are set.
  const char* trace;
  uint64_t trace_events;
  // The collectives of the group, alike on all ranks. tuning is the text of a tuning, which chooses the
  // algorithms, as "mscclgo bench -tune" writes it; NULL means the library's.
  const char* tuning;
  // collective_scratch_bytes is the device memory for the input, and for the output, of collectives on any
  // memory whose algorithms reach the peers', on several hosts for both together. Larger calls go through
  // it in pieces. 0 means 64 MiB.
  uint64_t collective_scratch_bytes;
  // max_blocks bounds the blocks of each kernel of the collectives and messages, and so the
  // multiprocessors that it takes from kernels on other streams. 0 means no bound.
  int max_blocks;
  // find_deadlocks, if it is not 0, has the group fail as soon as nothing of it can go on, on emulated
  // devices of one host, for programs in which no other thread ends a wait. All ranks set it, or nothing
  // is found. mscclgo_group_join uses the variable MSCCLGO_DEADLOCKS instead if it is set.
  int find_deadlocks;
  // pipe_pool_bytes is the size of the memory for shared pipes, which each rank has from its first such
  // pipes on; it may differ among ranks. 0 means 64 MiB.
  uint64_t pipe_pool_bytes;
  // host is the identity of this rank's host: ranks with the same one may map each other's memory, others
  // need a network. NULL means the variable MSCCLGO_HOST_ID, or else the kernel's identity.
  const char* host;
} mscclgo_group_config;

// mscclgo_group_join_configured and mscclgo_group_connect_configured are mscclgo_group_join and
// mscclgo_group_connect with a config, which may be NULL. Collective.
//
// Errors: also MSCCLGO_INVALID for a config that is wrong, and MSCCLGO_UNSUPPORTED for one of a later header
// with what this library does not know. Where the collectives' part differs among ranks, the first
// collective is MSCCLGO_INVALID, and fails the group.
MSCCLGO_API mscclgo_status mscclgo_group_join_configured(const mscclgo_group_options* options,
                                                         const mscclgo_group_config* config,
                                                         mscclgo_group* group);
MSCCLGO_API mscclgo_status mscclgo_group_connect_configured(const char* id, int rank, int size,
                                                            const mscclgo_group_options* options,
                                                            const mscclgo_group_config* config,
                                                            mscclgo_group* group);

// mscclgo_group_destroy leaves the group and frees all that was made of it. It waits for the other
// ranks to leave too, for at most 5 seconds, so ranks of one process call it on threads of their
// own. Then waits in kernels end as aborted, and what is queued on streams of the group's device,
// wrapped ones too, has 30 seconds to end before its memory is freed. Captures that the library began
// end with it. It does not wait for streams that other code captures, or that were destroyed while they
// captured or were wrapped, nor, for a subgroup, for any: their work must have ended. Graphs that hold
// work of the group must not be launched afterwards.
MSCCLGO_API mscclgo_status mscclgo_group_destroy(mscclgo_group group);

// mscclgo_group_rank stores this rank's number, from 0; mscclgo_group_size the number of ranks.
MSCCLGO_API mscclgo_status mscclgo_group_rank(mscclgo_group group, int* rank);
MSCCLGO_API mscclgo_status mscclgo_group_size(mscclgo_group group, int* size);

// mscclgo_group_device stores this rank's device, the same handle each time. It is the
// group's: destroying it is an error.
MSCCLGO_API mscclgo_status mscclgo_group_device(mscclgo_group group, mscclgo_device* device);

// mscclgo_group_error returns MSCCLGO_OK while the group works, and why it failed when it has.
MSCCLGO_API mscclgo_status mscclgo_group_error(mscclgo_group group);

// mscclgo_group_abort fails the group: waits in kernels of all ranks end, and calls of all
// ranks return an error with the text, which is the reason. Its peer is this rank, or -1 on
// this rank itself. A group that has failed keeps its first error.
MSCCLGO_API mscclgo_status mscclgo_group_abort(mscclgo_group group, const char* text);

// mscclgo_group_barrier waits until all ranks have called it. It does not wait for streams.
// Collective.
//
// Errors: MSCCLGO_TIMEOUT, which names the rank that is missing.
MSCCLGO_API mscclgo_status mscclgo_group_barrier(mscclgo_group group, int64_t timeout_ms);

// mscclgo_group_all_gather stores the bytes of all ranks, in the order of the ranks, in
// received, which has room for bytes times the number of ranks: at most 64 MiB. bytes is the
// same on all ranks. Both are memory of the host. Collective.
MSCCLGO_API mscclgo_status mscclgo_group_all_gather(mscclgo_group group, const void* sent, size_t bytes,
                                                    void* received, int64_t timeout_ms);

// mscclgo_group_broadcast copies bytes from the data of rank root to all others'. data
// is memory of the host. Collective.
MSCCLGO_API mscclgo_status mscclgo_group_broadcast(mscclgo_group group, int root, void* data, size_t bytes,
                                                   int64_t timeout_ms);

// mscclgo_group_synchronize waits until a stream's work is done, and reports a wait of its
// kernels that failed.
//
// Errors: the group's; MSCCLGO_TIMEOUT when timeout_ms has passed, while the work goes on;
// MSCCLGO_SYSTEM when the work failed.
MSCCLGO_API mscclgo_status mscclgo_group_synchronize(mscclgo_group group, mscclgo_stream stream,
                                                     int64_t timeout_ms);

// mscclgo_group_max_blocks stores how many blocks of a kernel whose blocks wait for peers a
// rank may launch, the same number on all ranks. When it returns, all ranks have loaded the
// kernel; do not launch it before. Collective.
//
// Errors: MSCCLGO_UNSUPPORTED, on all ranks, when not even one block of each rank fits.
MSCCLGO_API mscclgo_status mscclgo_group_max_blocks(mscclgo_group group, mscclgo_kernel kernel, int threads,
                                                    int dynamic_shared_bytes, int* blocks);

// mscclgo_group_handle is what a kernel takes by value as mscclgo::GroupHandle of
// <mscclgo/group.cuh>.
typedef struct {
  uint64_t words[88];
} mscclgo_group_handle;

// mscclgo_group_get_handle stores the group's handle for kernels, the same each time.
// Collective the first time.
//
// Errors: MSCCLGO_UNSUPPORTED when the ranks do not all map each other's memory, or are more
// than 256.
MSCCLGO_API mscclgo_status mscclgo_group_get_handle(mscclgo_group group, mscclgo_group_handle* handle);

// mscclgo_group_split divides the group: the ranks that pass the same color form a group of their
// own, in the order of their keys, and by rank where keys are equal. part is this rank's view
// of that group, or NULL for a negative color. It has the device of group, and is destroyed with
// group unless it was destroyed before. Each fails alone. Collective, also for ranks with a
// negative color.
//
// Collectives and messages of the two groups have no order among them: on several streams their kernels run
// at the same time. Then the device needs room for all of their blocks, or ranks may wait for each other;
// max_blocks of the configs bounds them. On one stream, in the same order on all ranks, one's room is enough.
MSCCLGO_API mscclgo_status mscclgo_group_split(mscclgo_group group, int color, int key, mscclgo_group* part);

// mscclgo_group_split_configured is mscclgo_group_split with a config for the part, alike on its ranks. Only
// the fields for collectives may be other than 0. NULL means the group's config, as in
// mscclgo_group_split. Collective.
//
// Errors: also as mscclgo_group_connect_configured, on this rank alone: the others wait until the
// group's timeout.
MSCCLGO_API mscclgo_status mscclgo_group_split_configured(mscclgo_group group, int color, int key,
                                                          const mscclgo_group_config* config,
                                                          mscclgo_group* part);

// MSCCLGO_ID_BYTES is room enough for the text of any id.
#define MSCCLGO_ID_BYTES 4096

// mscclgo_rendezvous_create opens the place where the ranks of a new group meet, at an
// address "host:port". With port 0 the system chooses one, with no host all addresses of this
// machine count: ":0" suits most. One process calls it, and passes the id to all ranks. When all
// are connected, the same processes may meet there for another group.
MSCCLGO_API mscclgo_status mscclgo_rendezvous_create(const char* address, mscclgo_rendezvous* rendezvous);

// mscclgo_rendezvous_id stores the id in text. Everyone who has it can join, so it travels
// as a password would.
//
// Errors: MSCCLGO_INVALID when it does not fit.
MSCCLGO_API mscclgo_status mscclgo_rendezvous_id(mscclgo_rendezvous rendezvous, char* text, size_t bytes);

// mscclgo_rendezvous_destroy closes the rendezvous. A group that is complete stays.
MSCCLGO_API mscclgo_status mscclgo_rendezvous_destroy(mscclgo_rendezvous rendezvous);

// ---- After a failure ----

// The ranks that survive a failure go on in the same processes, as another group. A rank's handle stays, and
// stands for its new group, whose rank and size may differ. So do the device and all that was made of it:
// buffers with what is in them, streams, modules, graphs. What was made of the group itself
//
//   is carried to the new one by collective calls, one for each object, which newcomers match with the call
//   that makes such an object: mscclgo_memory_channels_reform, mscclgo_port_channels_reform,
//   mscclgo_peer_memory_reform and, after their memory, mscclgo_prepared_reform. Until then it must not be
//   used;
//   or is destroyed: proxies, pipes and parts. Make these again.
//
// The first collective carries what the group has for collectives and messages, on all ranks, or
// mscclgo_group_reform_collectives does, and mscclgo_group_get_handle is collective once more. Graphs may be
// launched where what they use is carried and the function that carries it says so, or the handle that they
// were captured with is the same as before. A graph that holds collectives or messages and is not right is
// MSCCLGO_INVALID: capture it again.
//
// What is queued on streams of the device, wrapped ones too, ends first: where the group has failed its waits
// end as aborted, and where it works as they would. Streams of which the library has no handle must have no
// work of the group. Memory of the caller's is not written. But a rank that was left out while its kernels
// run still reaches what it has mapped: see docs/RELIABILITY.md.
//
// Who goes on is the program's choice. All ranks of the new group, and no others, call mscclgo_group_reform
// with the id of a rendezvous and numbers that the program gave them, while newcomers call
// mscclgo_group_connect. Or an elastic server decides.

// mscclgo_group_reform makes this rank's part in a group one in the next: rank of size, at the rendezvous of
// an id. The old group has failed, or works and all its ranks go to other groups or leave. Its options and
// config are the new one's. timeout_ms bounds the wait for the other ranks, and for the work of streams.
// Collective, for the ranks of the new group.
//
// After an error it may be called again, with another rendezvous, or the group destroyed. If the ranks did
// not come together, all is as before the call. Otherwise this rank has left the old group: the group's other
// calls are MSCCLGO_INVALID until it is re-formed, or return why it had failed.
//
// Errors: MSCCLGO_INVALID for a part, for a handler that calls it, and when another thread re-forms the group
// or is in a call that uses what is destroyed; MSCCLGO_TIMEOUT; the errors of mscclgo_group_connect, and of
// mscclgo_proxy_destroy where a handler does not return. What ends a call on one rank ends it on the
// others.
MSCCLGO_API mscclgo_status mscclgo_group_reform(mscclgo_group group, const char* id, int rank, int size,
                                                int64_t timeout_ms);

// mscclgo_group_reform_collectives carries what the group had for collectives and messages to the group that
// it was re-formed to: kernels, memory and what was prepared for calls. captured, if it is not NULL, tells
// whether graphs that were captured before with collectives and messages are right, but for graphs with
// prepared calls. They are if this rank, the ranks of each host and the addresses of all memory are as
// before. Collective: all ranks call it, or make their first collective instead, as newcomers may. Calls
// after the first tell the same.
//
// Errors: as the first collective. Re-form the group again then.
MSCCLGO_API mscclgo_status mscclgo_group_reform_collectives(mscclgo_group group, int* captured);

// mscclgo_elastic_options are options of an elastic server. All zero is right for many uses.
typedef struct {
  // least and most are the fewest and the most ranks of a group. 0 means 1, and as many as there may be. A
  // least above half of the usual number keeps ranks that lost the others from going on as a second group.
  int least, most;
  // settle_ms is for how long the server waits for more ranks after the last that came: longer than ranks
  // take to notice a failure one after the other. 0 means 1 second.
  int64_t settle_ms;
  // id is the id of a server that has ended and that this one replaces, or NULL.
  const char* id;
} mscclgo_elastic_options;

// mscclgo_elastic_create opens an elastic server, at an address as for mscclgo_rendezvous_create: processes
// meet there as one group after the other, each a generation. A generation forms of the processes that came
// when settle_ms have passed since the last came, or at once when they are most and none of the generation
// before is missing. Processes that do not come, since they ended or are stopped, are left out, and their old
// group fails. Survivors keep their rank where possible, and their order; newcomers take the ranks between.
// options may be NULL. The process of the server need not be a rank, and should outlive the ranks.
//
// Errors: MSCCLGO_INVALID for options that are wrong, MSCCLGO_SYSTEM when it cannot listen.
MSCCLGO_API mscclgo_status mscclgo_elastic_create(const char* address, const mscclgo_elastic_options* options,
                                                  mscclgo_elastic* server);

// mscclgo_elastic_id is mscclgo_rendezvous_id for an elastic server.
MSCCLGO_API mscclgo_status mscclgo_elastic_id(mscclgo_elastic server, char* text, size_t bytes);

// mscclgo_elastic_destroy closes the server. Groups stay. Members that wait for a generation go on waiting
// for a server.
MSCCLGO_API mscclgo_status mscclgo_elastic_destroy(mscclgo_elastic server);

// mscclgo_member_create makes what comes to the elastic server of an id, for groups with these options and
// config, which may be NULL. A process has one for each rank, for as long as it is one.
//
// Errors: as mscclgo_group_connect_configured for the options and the config.
MSCCLGO_API mscclgo_status mscclgo_member_create(const char* id, const mscclgo_group_options* options,
                                                 const mscclgo_group_config* config, mscclgo_member* member);

// mscclgo_member_connect waits for a generation with this process, and makes its first group, on a device
// that it opens. timeout_ms bounds the wait for the server and the generation. After an error it may be
// called again. Collective.
//
// Errors: MSCCLGO_TIMEOUT when no generation has formed; MSCCLGO_ABORTED for mscclgo_member_leave; as
// mscclgo_group_connect, such as when a rank ends before all are connected.
MSCCLGO_API mscclgo_status mscclgo_member_connect(mscclgo_member member, int64_t timeout_ms,
                                                  mscclgo_group* group);

// mscclgo_member_reform waits for the next generation with this process, and re-forms its group as
// mscclgo_group_reform does. While it waits, the old group is as before. Collective.
//
// Errors: as mscclgo_group_reform and mscclgo_member_connect.
MSCCLGO_API mscclgo_status mscclgo_member_reform(mscclgo_member member, mscclgo_group group,
                                                 int64_t timeout_ms);

// mscclgo_member_generation stores the number of the last generation that this process was in, from 1, or 0.
MSCCLGO_API mscclgo_status mscclgo_member_generation(mscclgo_member member, uint64_t* generation);

// mscclgo_member_newcomers stores 1 if processes wait to be taken in by the generation of this one, and else
// 0. It asks nobody, and may differ among ranks: they agree, as by mscclgo_group_all_gather, to re-form the
// group.
MSCCLGO_API mscclgo_status mscclgo_member_newcomers(mscclgo_member member, int* waiting);

// mscclgo_member_leave has this process leave the server until the next call that waits for a generation. A
// call of another thread that waits for one ends, and is MSCCLGO_ABORTED. One that opens the device before it
// waits, or has met the other ranks, goes on. Groups stay.
MSCCLGO_API mscclgo_status mscclgo_member_leave(mscclgo_member member);

// mscclgo_member_destroy leaves the server. Groups stay.
MSCCLGO_API mscclgo_status mscclgo_member_destroy(mscclgo_member member);

// ---- Processes ----

// mscclgo_run starts processes on this machine as the ranks of a new group, as the command mscclgo run
// does, and returns when all have ended. command is a program, a path or a name that is looked up in
// PATH, and its arguments; NULL is behind the last. The ranks have the variables of this process, the
// variables by which mscclgo_group_join finds the group, and an empty input. What they write goes to this
// process's standard output and error, in whole lines. When one fails, that is, ends by a signal or with a
// status other than 0, the others get SIGTERM, and SIGKILL after 5 seconds. If this process ends first,
// however it does, they are killed. The process needs some open files for each rank.
//
// The ranks have process groups of their own, which Ctrl-C does not reach. signals is -1, or the reading
// end of a pipe: the function reads the numbers of signals for all ranks from it, a byte each, and handlers
// of the program write them. The function installs no handler. Meanwhile the process must not ignore SIGCHLD,
// and no other thread of it may wait for any child, as waitpid(-1, ...) does.
//
// code, which is stored with an error too, is the status to exit with: 0 if all ranks ended with 0; the
// status of the rank that failed first, 128 and the number of the signal if one ended it; 126 or 127 if the
// program cannot be run or found; 2 if there is no group of so many ranks; otherwise 1.
//
// Errors: MSCCLGO_REMOTE when a rank failed: the text tells how all ended, and mscclgo_error_rank which rank
// is to blame; MSCCLGO_INVALID also where the program cannot be run or found.
MSCCLGO_API mscclgo_status mscclgo_run(int ranks, const char* const* command, int signals, int* code);

// ---- Devices and memory ----

// mscclgo_device_info describes a device.
typedef struct {
  char name[32];    // what mscclgo_device_open takes: "cuda:0" or "emu:0"
  char model[128];  // such as "NVIDIA H200"
  char arch[32];    // "sm_90" and the like, or "emu"
  unsigned char uuid[16];
  int multiprocessors;
  int max_threads_per_block;
  int max_shared_per_block;  // bytes
  int warp_size;
  uint64_t total_memory;  // bytes
} mscclgo_device_info;

// mscclgo_device_open opens a device: "cuda:N" for NVIDIA GPU N in the driver's order, "emu:N"
// for an emulated one, "auto" for the first there is. A device may be opened several times.
MSCCLGO_API mscclgo_status mscclgo_device_open(const char* name, mscclgo_device* device);

// mscclgo_device_destroy releases a device and all that was made of it.
MSCCLGO_API mscclgo_status mscclgo_device_destroy(mscclgo_device device);

// mscclgo_device_get_info stores a description of a device.
MSCCLGO_API mscclgo_status mscclgo_device_get_info(mscclgo_device device, mscclgo_device_info* info);

// mscclgo_buffer_create allocates device memory, which peers may access. Its content is
// undefined.
MSCCLGO_API mscclgo_status mscclgo_buffer_create(mscclgo_device device, uint64_t bytes,
                                                 mscclgo_buffer* buffer);

// mscclgo_buffer_create_host allocates pinned memory of the host, zeroed, which kernels reach
// too.
MSCCLGO_API mscclgo_status mscclgo_buffer_create_host(mscclgo_device device, uint64_t bytes,
                                                      mscclgo_buffer* buffer);

// mscclgo_buffer_wrap makes a buffer of device memory that other code allocated (cudaMalloc, a
// framework's tensor) and still owns. pointer is its address for kernels.
//
// Errors: MSCCLGO_INVALID if the range is not part of one allocation of the device.
MSCCLGO_API mscclgo_status mscclgo_buffer_wrap(mscclgo_device device, const void* pointer, uint64_t bytes,
                                               mscclgo_buffer* buffer);

// mscclgo_buffer_wrap_host makes a buffer of memory of the host that other code allocated and
// still owns: it is pinned until the buffer is destroyed, and kernels reach it. The collectives
// take its mscclgo_buffer_pointer while the buffer is there. To pin takes long, about a second
// for some gigabytes.
//
// Errors: MSCCLGO_INVALID if the memory is not mapped, MSCCLGO_SYSTEM if it cannot be pinned.
MSCCLGO_API mscclgo_status mscclgo_buffer_wrap_host(mscclgo_device device, void* pointer, uint64_t bytes,
                                                    mscclgo_buffer* buffer);

// mscclgo_buffer_slice makes a view of part of a buffer, which is destroyed with it.
MSCCLGO_API mscclgo_status mscclgo_buffer_slice(mscclgo_buffer buffer, uint64_t offset, uint64_t bytes,
                                                mscclgo_buffer* slice);

// mscclgo_buffer_destroy frees a buffer, unless it is wrapped or a slice. Kernels and copies
// that use it, peers' too, must have ended.
MSCCLGO_API mscclgo_status mscclgo_buffer_destroy(mscclgo_buffer buffer);

// mscclgo_buffer_size stores the size.
MSCCLGO_API mscclgo_status mscclgo_buffer_size(mscclgo_buffer buffer, uint64_t* bytes);

// mscclgo_buffer_pointer stores the address for kernels, which is what the collectives take.
// The host must not use it.
MSCCLGO_API mscclgo_status mscclgo_buffer_pointer(mscclgo_buffer buffer, void** pointer);

// mscclgo_buffer_host_pointer stores the address at which the host reaches the memory.
//
// Errors: MSCCLGO_UNSUPPORTED if it cannot, as device memory of a GPU.
MSCCLGO_API mscclgo_status mscclgo_buffer_host_pointer(mscclgo_buffer buffer, void** pointer);

// mscclgo_copy_in copies from memory of the host to a buffer, from offset on, and
// mscclgo_copy_out copies from a buffer to memory of the host. They return when the copy is
// done, and are not ordered with the work of streams: synchronize these first.
MSCCLGO_API mscclgo_status mscclgo_copy_in(mscclgo_buffer to, uint64_t offset, const void* from,
                                           uint64_t bytes);
MSCCLGO_API mscclgo_status mscclgo_copy_out(void* to, mscclgo_buffer from, uint64_t offset, uint64_t bytes);

// ---- Streams, events and graphs ----

// mscclgo_stream_create makes a stream, which runs its work in order.
MSCCLGO_API mscclgo_status mscclgo_stream_create(mscclgo_device device, mscclgo_stream* stream);

// mscclgo_stream_wrap makes a stream of the handle of one that other code of this process made
// and still owns: a cudaStream_t or CUstream, such as a framework's current stream, and on an
// emulated device what mscclgo_stream_handle stored. Its owner must not destroy it before
// this stream is. While its owner captures it, what it is given becomes part of that graph.
//
// Errors: MSCCLGO_INVALID if it is of another device, or not of its primary context.
MSCCLGO_API mscclgo_status mscclgo_stream_wrap(mscclgo_device device, void* handle, mscclgo_stream* stream);

// mscclgo_stream_destroy releases a stream. Work that was queued still runs. A wrapped stream
// stays open to its owner.
MSCCLGO_API mscclgo_status mscclgo_stream_destroy(mscclgo_stream stream);

// mscclgo_stream_handle stores a handle of a stream for other code of this process: what
// mscclgo_stream_wrap takes, on a GPU a CUstream of the device's primary context. It is valid until
// the stream is destroyed.
MSCCLGO_API mscclgo_status mscclgo_stream_handle(mscclgo_stream stream, void** handle);

// mscclgo_stream_synchronize waits until the stream's work is done. It knows no group: see
// mscclgo_group_synchronize.
MSCCLGO_API mscclgo_status mscclgo_stream_synchronize(mscclgo_stream stream, int64_t timeout_ms);

// mscclgo_stream_query stores 1 if the stream's work is done, and else 0.
MSCCLGO_API mscclgo_status mscclgo_stream_query(mscclgo_stream stream, int* done);

// mscclgo_stream_copy queues a copy between buffers of the stream's device.
MSCCLGO_API mscclgo_status mscclgo_stream_copy(mscclgo_stream stream, mscclgo_buffer to, uint64_t to_offset,
                                               mscclgo_buffer from, uint64_t from_offset, uint64_t bytes);

// mscclgo_stream_fill queues setting bytes to a value of 0 to 255.
MSCCLGO_API mscclgo_status mscclgo_stream_fill(mscclgo_stream stream, mscclgo_buffer to, uint64_t offset,
                                               int value, uint64_t bytes);

// mscclgo_stream_begin_capture has the stream collect work into a graph in place of running
// it, until mscclgo_stream_end_capture, which makes the graph.
MSCCLGO_API mscclgo_status mscclgo_stream_begin_capture(mscclgo_stream stream);
MSCCLGO_API mscclgo_status mscclgo_stream_end_capture(mscclgo_stream stream, mscclgo_graph* graph);

// mscclgo_graph_launch queues the graph's work on a stream. What the work uses must not have
// been destroyed.
MSCCLGO_API mscclgo_status mscclgo_graph_launch(mscclgo_graph graph, mscclgo_stream stream);

// mscclgo_graph_destroy releases a graph. Its work must have ended.
MSCCLGO_API mscclgo_status mscclgo_graph_destroy(mscclgo_graph graph);

// mscclgo_event_create makes an event, which counts as reached until it is first recorded.
MSCCLGO_API mscclgo_status mscclgo_event_create(mscclgo_device device, mscclgo_event* event);

// mscclgo_event_wrap makes an event of the handle of one that other code of this process made
// and still owns: a cudaEvent_t or CUevent, and on an emulated device what mscclgo_event_handle
// stored. Its owner must not destroy it before this event is.
MSCCLGO_API mscclgo_status mscclgo_event_wrap(mscclgo_device device, void* handle, mscclgo_event* event);

// mscclgo_event_handle stores a handle of an event for other code of this process.
MSCCLGO_API mscclgo_status mscclgo_event_handle(mscclgo_event event, void** handle);

// mscclgo_event_destroy releases an event.
MSCCLGO_API mscclgo_status mscclgo_event_destroy(mscclgo_event event);

// mscclgo_event_record makes the event mark the work that the stream has been given, and
// mscclgo_event_wait makes what the stream is given from now on wait for what it marks.
MSCCLGO_API mscclgo_status mscclgo_event_record(mscclgo_event event, mscclgo_stream stream);
MSCCLGO_API mscclgo_status mscclgo_event_wait(mscclgo_event event, mscclgo_stream stream);

// mscclgo_event_synchronize waits until the event is reached, and mscclgo_event_query stores
// whether it is: 1 or 0.
MSCCLGO_API mscclgo_status mscclgo_event_synchronize(mscclgo_event event, int64_t timeout_ms);
MSCCLGO_API mscclgo_status mscclgo_event_query(mscclgo_event event, int* reached);

// mscclgo_event_elapsed stores the milliseconds from start to end, as the device measured them.
//
// Errors: MSCCLGO_INVALID unless both were recorded and have been reached.
MSCCLGO_API mscclgo_status mscclgo_event_elapsed(mscclgo_event start, mscclgo_event end, double* ms);

// ---- Kernels ----

// mscclgo_compile_options are options of the compiler. All zero is right for most uses. The
// arrays end with NULL; a NULL array is empty.
typedef struct {
  const char* const* defines;       // macros, "NAME" or "NAME=value"
  const char* const* include_dirs;  // searched for #include before the library's headers
  const char* const* flags;         // further flags of the compiler of the architecture
  int check;  // not 0: kernels check what they do with the library, as they do on emulated devices
} mscclgo_compile_options;

// mscclgo_module_compile compiles a CUDA source for a device and loads it. The source may
// include the headers of the library, such as <mscclgo/memory_channel.cuh>, and declares its
// kernels extern "C" __global__. name is its name in messages. What was compiled before, in
// any process of this user, comes from a cache. options may be NULL.
//
// Errors: MSCCLGO_INVALID with the compiler's messages if the source is wrong,
// MSCCLGO_UNSUPPORTED if there is no compiler for the device.
MSCCLGO_API mscclgo_status mscclgo_module_compile(mscclgo_device device, const char* name, const char* source,
                                                  const mscclgo_compile_options* options,
                                                  mscclgo_module* module);

// mscclgo_module_load loads an image: PTX, a cubin or a fatbin on a GPU, an image that
// this library compiled on an emulated device.
MSCCLGO_API mscclgo_status mscclgo_module_load(mscclgo_device device, const void* image, size_t bytes,
                                               mscclgo_module* module);

// mscclgo_module_load_bundle loads the image for a device from a file that `mscclgo compile` has
// made. No compiler is needed. What is in it runs with the rights of this process, on emulated
// devices on the host: load no bundles of strangers.
//
// Errors: MSCCLGO_SYSTEM if the file cannot be read, MSCCLGO_INVALID if it is no bundle, or altered,
// MSCCLGO_UNSUPPORTED if it has no image for the device.
MSCCLGO_API mscclgo_status mscclgo_module_load_bundle(mscclgo_device device, const char* file,
                                                      mscclgo_module* module);

// mscclgo_precompile_options are what the kernels of collectives are compiled for: names with commas between.
// All NULL and 0 is right for groups of up to 8 ranks on one host, with such GPUs as are here, that reduce by
// sums.
typedef struct {
  const char* architectures;  // "sm_90", "emu" and the like; NULL: the architectures of the GPUs here
  const char* collectives;    // "all-reduce" and the like; NULL: all. Messages come with "send-receive"
  const char* types;          // of reductions, "f32" and the like; NULL: f32, f16 and bf16
  const char* operations;     // likewise, "sum" and the like; NULL: sum
  const char* ranks;  // sizes of groups; NULL: 4,8. Up to 4, 5 to 72, and more ranks have kernels each
  int several_hosts;  // not 0: also what groups on several hosts need
} mscclgo_precompile_options;

// mscclgo_precompile compiles the kernels of collectives into the cache, the folder that MSCCLGO_CACHE names
// or the user's, where first calls then find them: these do not wait for the compiler, and need none. It
// needs no GPU and no group, and takes minutes. options may be NULL.
//
// Errors: MSCCLGO_INVALID for a name that there is not, and without a GPU if no architecture is named;
// MSCCLGO_UNSUPPORTED if there is no compiler; MSCCLGO_SYSTEM if the cache cannot be written, unless all is
// there.
MSCCLGO_API mscclgo_status mscclgo_precompile(const mscclgo_precompile_options* options);

// mscclgo_module_destroy unloads a module. Its kernels must have ended.
MSCCLGO_API mscclgo_status mscclgo_module_destroy(mscclgo_module module);

// mscclgo_module_kernel stores the kernel of a name, the same handle each time. It is the
// module's, and stale once that is destroyed.
//
// Errors: MSCCLGO_INVALID if there is none.
MSCCLGO_API mscclgo_status mscclgo_module_kernel(mscclgo_module module, const char* name,
                                                 mscclgo_kernel* kernel);

// mscclgo_parameter is the place of a parameter in the parameter block of a kernel.
typedef struct {
  uint32_t offset, bytes;
} mscclgo_parameter;

// mscclgo_kernel_parameters stores the number of parameters in count, and the places of the
// first room of them in parameters, which may be NULL if room is 0.
MSCCLGO_API mscclgo_status mscclgo_kernel_parameters(mscclgo_kernel kernel, mscclgo_parameter* parameters,
                                                     size_t room, size_t* count);

// mscclgo_kind is what a value of a type is. Values that are not listed may be added.
typedef enum {
  MSCCLGO_KIND_UNKNOWN = 0,  // known by its size alone
  MSCCLGO_KIND_BOOL = 1,
  MSCCLGO_KIND_INT = 2,  // signed
  MSCCLGO_KIND_UINT = 3,
  MSCCLGO_KIND_ENUM = 4,  // an integer; the compiler does not tell whether it is signed
  MSCCLGO_KIND_FLOAT = 5,
  MSCCLGO_KIND_POINTER = 6,
  MSCCLGO_KIND_STRUCT = 7  // a struct, class or union
} mscclgo_kind;

// mscclgo_parameter_type is what a kernel's parameter is in its source.
typedef struct {
  const char* name;  // "" if it has none
  const char* type;  // such as "uint32_t" or "const float*"
  mscclgo_kind kind;
  uint32_t bytes;
  // pointee is the kind of what a pointer points to: a number, also by a name that the program gave to
  // its type, or a pointer. It is unknown, of 0 bytes, for void, enums and structs.
  mscclgo_kind pointee;
  uint32_t pointee_bytes;
} mscclgo_parameter_type;

// mscclgo_kernel_parameter_type stores what parameter i is, counted from 0. Modules that
// mscclgo_module_compile made tell. Of a parameter of another, the texts are "", and the kinds
// unknown. The texts are the kernel's, and valid until its module is destroyed.
//
// Errors: MSCCLGO_INVALID if there are not so many parameters.
MSCCLGO_API mscclgo_status mscclgo_kernel_parameter_type(mscclgo_kernel kernel, size_t i,
                                                         mscclgo_parameter_type* type);

// mscclgo_kernel_parameter_pointee stores the name of what parameter i points to, if it is a pointer: "float"
// for "const scalar*" where scalar is a typedef of float, and "__half" for "half*". const and volatile are
// left out, and typedefs resolved, but not <cstdint>'s and CUDA's. It is "" where it is not known. The text
// is the kernel's, as the texts of mscclgo_kernel_parameter_type are.
//
// Errors: MSCCLGO_INVALID if there are not so many parameters.
MSCCLGO_API mscclgo_status mscclgo_kernel_parameter_pointee(mscclgo_kernel kernel, size_t i,
                                                            const char** name);

// mscclgo_launch_config is the configuration of a launch. Three zeros in grid or block count as
// 1, as do zeros behind the first number. A first number of 0 is an error otherwise.
typedef struct {
  uint32_t grid[3];               // blocks
  uint32_t block[3];              // threads of each block
  uint32_t dynamic_shared_bytes;  // of each block: up to max_shared_per_block less the kernel's own
  int cooperative;                // not 0: fail unless all blocks fit on the device at once
} mscclgo_launch_config;

// mscclgo_kernel_launch queues a kernel on a stream of its device. parameters is the parameter
// block: a struct whose members are the kernel's parameters, in their order. With the types of
// C it is laid out as the compiler lays out the parameters. Handles of groups and
// peers' memory are members, and pointers are addresses for kernels. bytes is the size of the
// block, from the first parameter to the end of the last, with or without padding behind it.
// A kernel without parameters takes NULL and 0.
//
// Errors: MSCCLGO_INVALID if the block has another size or the device cannot run such a grid.
// Faults of the kernel are errors of mscclgo_stream_synchronize.
MSCCLGO_API mscclgo_status mscclgo_kernel_launch(mscclgo_kernel kernel, mscclgo_stream stream,
                                                 const mscclgo_launch_config* config, const void* parameters,
                                                 size_t bytes);

// ---- Channels ----

// mscclgo_channel_options are options of channels, alike on all ranks. All zero is right for
// most uses.
typedef struct {
  int per_peer;          // channels to each rank, so that each block can have its own; 0 means 1
  mscclgo_buffer inbox;  // what peers write, if it is not the local buffer; or NULL
  const char* name;      // in errors, of which 32 bytes are shown; or NULL
} mscclgo_channel_options;

// mscclgo_memory_channels_create makes channels between all ranks, this one included, by which
// kernels copy straight into the peer's memory. Peers write the local buffer, or the inbox.
// The buffers must outlive the channels. options may be NULL. Collective.
//
// Errors: MSCCLGO_UNSUPPORTED when the memory of a rank is not mapped here.
MSCCLGO_API mscclgo_status mscclgo_memory_channels_create(mscclgo_group group, mscclgo_buffer local,
                                                          const mscclgo_channel_options* options,
                                                          mscclgo_memory_channels* channels);

// mscclgo_memory_channels_handles stores the address, for kernels, of the handles: an array of
// mscclgo::MemoryChannelHandle of <mscclgo/memory_channel.cuh>, in which channel i to a rank
// has the index i * size + rank.
MSCCLGO_API mscclgo_status mscclgo_memory_channels_handles(mscclgo_memory_channels channels, void** handles);

// mscclgo_memory_channels_handle stores the address of the handle of channel i to a rank.
//
// Errors: MSCCLGO_INVALID if there is no such channel.
MSCCLGO_API mscclgo_status mscclgo_memory_channels_handle(mscclgo_memory_channels channels, int i, int rank,
                                                          void** handle);

// mscclgo_channel_set is what a kernel takes by value as mscclgo::MemoryChannelSet of
// <mscclgo/memory_channel.cuh> or mscclgo::PortChannelSet of <mscclgo/port_channel.cuh>: set.to(rank, i)
// is channel i to a rank. Kernels that are compiled with checks look whether there is one.
typedef struct {
  uint64_t words[6];
} mscclgo_channel_set;

// mscclgo_memory_channels_get_set stores the channels for kernels.
MSCCLGO_API mscclgo_status mscclgo_memory_channels_get_set(mscclgo_memory_channels channels,
                                                           mscclgo_channel_set* set);

// mscclgo_memory_channels_destroy frees the channels. No kernel of any rank may use them any
// longer.
MSCCLGO_API mscclgo_status mscclgo_memory_channels_destroy(mscclgo_memory_channels channels);

// mscclgo_memory_channels_reform carries the channels to the group that theirs was re-formed to, with the
// buffers and options that they were made with. Their semaphores begin anew. The handles stay at their
// address if there are as many as before. captured, which may be NULL, tells whether graphs that use the
// channels are right, 1 or 0: the handles are where they were, and this rank and the number of ranks as
// before. After an error it may be called again once the group was re-formed again. Collective, matched by
// mscclgo_memory_channels_create.
//
// Errors: the same; MSCCLGO_INVALID when another thread uses the channels, or the group was not
// re-formed.
MSCCLGO_API mscclgo_status mscclgo_memory_channels_reform(mscclgo_memory_channels channels, int* captured);

// mscclgo_proxy_create starts a proxy, a thread that moves data for this rank's port channels.
MSCCLGO_API mscclgo_status mscclgo_proxy_create(mscclgo_group group, mscclgo_proxy* proxy);

// mscclgo_trigger is what a kernel asks of the program: mscclgo::Trigger::user of <mscclgo/fifo.cuh>.
typedef struct {
  uint64_t a, b, c;
  uint64_t detail;  // 52 bits
  uint32_t kind;    // 128 to 255
} mscclgo_trigger;

// MSCCLGO_WHY_BYTES is the room for the reason that a handler gives.
#define MSCCLGO_WHY_BYTES 256

// mscclgo_handler serves a trigger, which is valid during the call. It returns 0, or stores in why, a
// text of less than MSCCLGO_WHY_BYTES, why the group is to fail. A thread of the library calls it
// for one trigger after the other, in the order of the pushes, and serves nothing else of the
// proxy meanwhile; one that may wait for something calls mscclgo_trigger_ends. It may call the library,
// but neither destroy the proxy or its group nor wait for kernels that wait for the proxy. To destroy
// either there is MSCCLGO_INVALID, and destroys nothing.
typedef int (*mscclgo_handler)(void* user, const mscclgo_trigger* trigger, char* why);

// mscclgo_trigger_ends waits until the handler that serves a trigger is to return, at most timeout_ms,
// and stores in ends whether it is to. It is when the group has failed, and when a call that destroys the
// proxy or its group waits no longer for what is in the ring. 0 only looks. A handler that waits for
// something calls it now and then, or in place of a sleep, and returns with a reason. Otherwise an error
// says that it has not returned. trigger is what the handler was called with, not a copy. Any thread may
// call it until the handler returns.
//
// Errors: MSCCLGO_INVALID if no handler serves the trigger.
MSCCLGO_API mscclgo_status mscclgo_trigger_ends(const mscclgo_trigger* trigger, int64_t timeout_ms,
                                                int* ends);

// mscclgo_proxy_create_with_handler starts a proxy that also serves triggers of the program's own, which
// without a handler are a failure. The handler is not called any longer when the proxy is destroyed.
// user must live until then; where destroying the proxy or the group reports that the handler has not
// returned, until it does.
MSCCLGO_API mscclgo_status mscclgo_proxy_create_with_handler(mscclgo_group group, mscclgo_handler handler,
                                                             void* user, mscclgo_proxy* proxy);

// mscclgo_fifo_handle is what a kernel takes by value as mscclgo::FifoHandle of <mscclgo/fifo.cuh>.
typedef struct {
  uint64_t words[9];
} mscclgo_fifo_handle;

// mscclgo_proxy_get_fifo stores the proxy's ring, into which kernels push triggers.
MSCCLGO_API mscclgo_status mscclgo_proxy_get_fifo(mscclgo_proxy proxy, mscclgo_fifo_handle* fifo);

// mscclgo_proxy_destroy serves what kernels have asked for, and ends the proxy, its channels
// and its pipes. The kernels must have ended.
MSCCLGO_API mscclgo_status mscclgo_proxy_destroy(mscclgo_proxy proxy);

// mscclgo_port_channels_create makes channels between all ranks, this one included, over any
// transport: kernels ask the proxy to move data. Peers write the local buffer, or the inbox.
// The buffers must outlive the channels, which are destroyed with the proxy. options may be
// NULL. Collective.
MSCCLGO_API mscclgo_status mscclgo_port_channels_create(mscclgo_group group, mscclgo_proxy proxy,
                                                        mscclgo_buffer local,
                                                        const mscclgo_channel_options* options,
                                                        mscclgo_port_channels* channels);

// mscclgo_port_channels_reform is mscclgo_memory_channels_reform for port channels, which a proxy of the new
// group serves from then on. Collective, matched by the function that makes them.
//
// Errors: also MSCCLGO_INVALID for the proxy of another group.
MSCCLGO_API mscclgo_status mscclgo_port_channels_reform(mscclgo_port_channels channels, mscclgo_proxy proxy,
                                                        int* captured);

// mscclgo_port_channels_handles stores the address, for kernels, of the handles: an array of
// mscclgo::PortChannelHandle of <mscclgo/port_channel.cuh>, in which channel i to a rank has
// the index i * size + rank.
MSCCLGO_API mscclgo_status mscclgo_port_channels_handles(mscclgo_port_channels channels, void** handles);

// mscclgo_port_channels_handle stores the address of the handle of channel i to a rank.
//
// Errors: MSCCLGO_INVALID if there is no such channel.
MSCCLGO_API mscclgo_status mscclgo_port_channels_handle(mscclgo_port_channels channels, int i, int rank,
                                                        void** handle);

// mscclgo_port_channels_get_set stores the channels for kernels.
MSCCLGO_API mscclgo_status mscclgo_port_channels_get_set(mscclgo_port_channels channels,
                                                         mscclgo_channel_set* set);

// mscclgo_port_channels_create_for_streams is mscclgo_port_channels_create for channels that take operations
// on streams too, by the functions below, for which the program needs no kernel. The library compiles its
// kernels for these, or finds them in its cache, when the channels are made. Collective: all ranks call
// this function for the same channels.
//
// Errors: MSCCLGO_UNSUPPORTED if there is no compiler for the device.
MSCCLGO_API mscclgo_status mscclgo_port_channels_create_for_streams(mscclgo_group group, mscclgo_proxy proxy,
                                                                    mscclgo_buffer local,
                                                                    const mscclgo_channel_options* options,
                                                                    mscclgo_port_channels* channels);

// The operations of port channels on streams are the methods of mscclgo::PortChannelHandle of
// <mscclgo/port_channel.cuh>, and do what is said there. They are of channel i to a rank, on a
// stream of the group's device, also a wrapped one. Remote offsets are in the peer's memory, which
// is its local buffer or its inbox, and local offsets in this rank's local buffer.
//
// Each operation takes its place in the stream: it begins when the work before it is done, and finds
// the memory as that work has left it. mscclgo_port_wait, mscclgo_port_flush and the functions whose
// names end in _and_flush hold the stream until they are done. The others end once the proxy has been
// asked. So before a flush a put's source must not change, and the bytes of a get must not be used.
// Kernels of the program may use the channel too, on this stream or another. One channel's operations
// are done in the order in which they were asked for.
//
// The functions return once the operation is queued. Waits of one channel must be on one stream, or
// be ordered by events. While the stream captures, operations become part of the graph, with the
// values and offsets that they were given: each launch of the graph makes them again, and waits for
// one more signal for each wait.
//
// A wait or flush that fails, by the group's timeout or because the group fails, ends, and fails
// the group: mscclgo_group_synchronize returns the error. Operations that come behind it, on any
// stream, do nothing. Copies and other kernels run regardless.
//
// An operation is a kernel of one thread, which begins once a multiprocessor has room for it:
// kernels that fill the device must not wait for what it does. What was queued must have run before the
// channels, their proxy or the group are destroyed: synchronize the stream, or abort the group first.
//
// Errors: MSCCLGO_INVALID for a stream of another device, for channels that were not made for streams,
// for a channel or rank that does not exist, for bytes outside the memories, for words that are not
// aligned to 8 bytes, and for a copy or exchange with a destroyed buffer of this rank; the
// error of the group, if it has failed. Nothing is queued then.

// mscclgo_port_put queues a copy of bytes from this rank's memory to the peer's;
// mscclgo_port_put_with_signal is that and mscclgo_port_signal in one.
MSCCLGO_API mscclgo_status mscclgo_port_put(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                            int rank, uint64_t remote_offset, uint64_t local_offset,
                                            uint64_t bytes);
MSCCLGO_API mscclgo_status mscclgo_port_put_with_signal(mscclgo_port_channels channels, mscclgo_stream stream,
                                                        int i, int rank, uint64_t remote_offset,
                                                        uint64_t local_offset, uint64_t bytes);
MSCCLGO_API mscclgo_status mscclgo_port_put_with_signal_and_flush(mscclgo_port_channels channels,
                                                                  mscclgo_stream stream, int i, int rank,
                                                                  uint64_t remote_offset,
                                                                  uint64_t local_offset, uint64_t bytes);

// mscclgo_port_get queues a copy of bytes from the peer's memory to this rank's, where they are after
// a flush.
MSCCLGO_API mscclgo_status mscclgo_port_get(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                            int rank, uint64_t remote_offset, uint64_t local_offset,
                                            uint64_t bytes);
MSCCLGO_API mscclgo_status mscclgo_port_get_and_flush(mscclgo_port_channels channels, mscclgo_stream stream,
                                                      int i, int rank, uint64_t remote_offset,
                                                      uint64_t local_offset, uint64_t bytes);

// mscclgo_port_store queues the store of a value to a word of 8 bytes of the peer's memory.
MSCCLGO_API mscclgo_status mscclgo_port_store(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                              int rank, uint64_t remote_offset, uint64_t value);
MSCCLGO_API mscclgo_status mscclgo_port_store_and_flush(mscclgo_port_channels channels, mscclgo_stream stream,
                                                        int i, int rank, uint64_t remote_offset,
                                                        uint64_t value);

// mscclgo_port_add queues the addition of a value to a word of 8 bytes of the peer's memory. The
// comment of PortChannelHandle::add says with respect to what it is atomic.
MSCCLGO_API mscclgo_status mscclgo_port_add(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                            int rank, uint64_t remote_offset, uint64_t value);
MSCCLGO_API mscclgo_status mscclgo_port_add_and_flush(mscclgo_port_channels channels, mscclgo_stream stream,
                                                      int i, int rank, uint64_t remote_offset,
                                                      uint64_t value);

// mscclgo_port_exchange queues the replacement of a word of 8 bytes of the peer's memory by a value.
// What it was is in such a word of this rank's memory after a flush. It is atomic as
// mscclgo_port_add is.
MSCCLGO_API mscclgo_status mscclgo_port_exchange(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                                 int rank, uint64_t remote_offset, uint64_t value,
                                                 uint64_t local_offset);
MSCCLGO_API mscclgo_status mscclgo_port_exchange_and_flush(mscclgo_port_channels channels,
                                                           mscclgo_stream stream, int i, int rank,
                                                           uint64_t remote_offset, uint64_t value,
                                                           uint64_t local_offset);

// mscclgo_port_signal queues a signal, which ends a wait of the peer's, after all that the channel was
// asked for before.
MSCCLGO_API mscclgo_status mscclgo_port_signal(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                               int rank);

// mscclgo_port_flush holds the stream until all that the channel was asked for before is done at the
// peer, and what was got or exchanged is here.
MSCCLGO_API mscclgo_status mscclgo_port_flush(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                              int rank);

// mscclgo_port_wait holds the stream until one more signal of the peer's has come, and consumes it.
// Later work of the stream sees what the peer asked for before.
MSCCLGO_API mscclgo_status mscclgo_port_wait(mscclgo_port_channels channels, mscclgo_stream stream, int i,
                                             int rank);

// mscclgo_pipe_options say which pipes a rank has. per_peer, the sizes of slots, ports, shared and lazy are
// alike at both ends of a pipe. All zero behind the ranks is right for most uses.
typedef struct {
  // to are the ranks to send to, and from the ranks to receive from, in the order by
  // which kernels count them. Each rank of to names this one in its from, and the other way round.
  const int *to, *from;
  int to_count, from_count;
  int per_peer;           // pipes to and from each, so that each block can have its own; 0 means 1
  int slots;              // of a pipe's ring, a power of two up to 4096; 0 means 8
  uint64_t slot_bytes;    // a multiple of 128; 0 means 128 KiB, or among more than 8 ranks a half, a quarter
                          // and so on, so that no rank's pipes take more than 64 MiB of device memory
  mscclgo_buffer buffer;  // what is received into it is written there at once, without slots; or NULL
  mscclgo_proxy proxy;    // moves the messages where memory is not mapped; or NULL, if there is no such peer
  int ports;              // not 0: the proxy moves all messages
  int shared;             // not 0: slots of all such pipes of a group are in one memory of a rank, of 64 MiB
                          // or pipe_pool_bytes of the group's config: 2 of each pipe, not 8, and others
                          // that longer messages borrow
  int lazy;               // not 0: shared pipes; each costs no more than a handle for kernels until
                          // mscclgo_pipes_open connects it
  const char* name;       // in errors, of which 32 bytes are shown; or NULL
} mscclgo_pipe_options;

// mscclgo_pipes_create makes pipes, one-way streams of messages from rank to rank, with which kernels
// send and receive: see <mscclgo/pipe.cuh>. With a buffer, those who send to this rank wait for
// the call that receives; it must outlive the pipes. Collective: ranks without pipes call it too.
//
// Errors: MSCCLGO_INVALID for ranks outside the group or named twice, a wrong size, a proxy that
// is lacking, and when the ends of a pipe differ, naming both ranks; MSCCLGO_REMOTE where what
// another rank asks for is wrong.
MSCCLGO_API mscclgo_status mscclgo_pipes_create(mscclgo_group group, const mscclgo_pipe_options* options,
                                                mscclgo_pipes* pipes);

// mscclgo_pipes_open connects lazy pipes to and from ranks, for kernels that are launched afterwards; in
// graphs too. Each of these ranks names this one in such a call of its own, for which this one waits, at most
// for the group's timeout; no other rank takes part. What is connected costs nothing.
//
// Errors: MSCCLGO_TIMEOUT, naming the rank, where it makes no such call in time; MSCCLGO_INVALID for a rank
// without pipes, and where the memory for shared pipes has no room; MSCCLGO_REMOTE where the rank's part
// failed. Pipes to others of the ranks may be connected then; these may be opened again if both ranks failed.
MSCCLGO_API mscclgo_status mscclgo_pipes_open(mscclgo_pipes pipes, const int* ranks, int count);

// mscclgo_pipe_set is what a kernel takes by value as mscclgo::PipeSet of <mscclgo/pipe.cuh>.
typedef struct {
  uint64_t words[7];
} mscclgo_pipe_set;

// mscclgo_pipes_get_set stores the pipes for kernels.
MSCCLGO_API mscclgo_status mscclgo_pipes_get_set(mscclgo_pipes pipes, mscclgo_pipe_set* set);

// mscclgo_pipes_destroy frees the pipes. No kernel of any rank may use them any longer. Pipes with a proxy
// are the proxy's, and destroyed with it. Collective in either case: it waits for the other ranks,
// for at most 5 seconds. Destroying the group destroys them too, where all ranks do that.
MSCCLGO_API mscclgo_status mscclgo_pipes_destroy(mscclgo_pipes pipes);

// mscclgo_pipe_pool is how the memory of a rank's shared pipes is used. All is 0 before its first use.
typedef struct {
  uint64_t bytes;     // of the memory
  uint64_t for_ends;  // bytes of it for the control words and own slots of pipes
  uint64_t taken;     // bytes of these that pipes take
  uint64_t lots;      // pieces that long messages borrow
  uint64_t lent;      // lots that messages under way have
  uint64_t asked;     // how often a message was to borrow a lot
  uint64_t refused;   // how often it got none, so that it went through its pipe's own slots
} mscclgo_pipe_pool;

// mscclgo_group_get_pipe_pool stores how the memory of this rank's shared pipes is used. Kernels may be
// under way.
MSCCLGO_API mscclgo_status mscclgo_group_get_pipe_pool(mscclgo_group group, mscclgo_pipe_pool* pool);

// mscclgo_peer_memory_handle is what a kernel takes by value as mscclgo::PeerMemory of
// <mscclgo/group.cuh>.
typedef struct {
  uint64_t words[80];
} mscclgo_peer_memory_handle;

// mscclgo_peer_memory_create gives all ranks access to a buffer of each rank; sizes may differ.
// Each buffer stays its owner's, and must outlive the peers' use. Collective.
MSCCLGO_API mscclgo_status mscclgo_peer_memory_create(mscclgo_group group, mscclgo_buffer buffer,
                                                      mscclgo_peer_memory* memory);

// mscclgo_peer_memory_get_handle stores the handle for kernels. Of more than 72 ranks it holds the
// first 72 addresses, and the memory the others: it is right until that is destroyed.
//
// Errors: MSCCLGO_UNSUPPORTED when a peer's memory is not mapped here, or the ranks are more than
// 256.
MSCCLGO_API mscclgo_status mscclgo_peer_memory_get_handle(mscclgo_peer_memory memory,
                                                          mscclgo_peer_memory_handle* handle);

// mscclgo_peer_memory_reform is mscclgo_memory_channels_reform for peers' memory: each survivor's buffer is
// the one that it shared, untouched. captured tells whether the handle, and this rank and the number of
// ranks, are as before. Collective, matched by mscclgo_peer_memory_create.
MSCCLGO_API mscclgo_status mscclgo_peer_memory_reform(mscclgo_peer_memory memory, int* captured);

// mscclgo_peer_memory_destroy unmaps the peers' buffers. Kernels that use them must have ended. It
// is collective if a call was prepared on the memory, and the group still there: then it waits
// for the other ranks, for at most 5 seconds.
MSCCLGO_API mscclgo_status mscclgo_peer_memory_destroy(mscclgo_peer_memory memory);

// ---- Collectives ----

// mscclgo_type is the type of elements.
typedef enum {
  MSCCLGO_F32 = 0,
  MSCCLGO_F16 = 1,
  MSCCLGO_BF16 = 2,
  MSCCLGO_F64 = 3,
  MSCCLGO_I32 = 4,
  MSCCLGO_I64 = 5,
  MSCCLGO_U8 = 6,
  MSCCLGO_F8E4M3 = 7,
  MSCCLGO_F8E5M2 = 8
} mscclgo_type;

// MSCCLGO_VOUCHED may be added to the type of a collective or message: the caller vouches that its
// addresses are of memory of the group's device that has so many elements. The library does not ask the
// driver then, which takes a good part of a call's time, and a wrong address is a fault of a kernel. On
// emulated devices it asks all the same.
#define MSCCLGO_VOUCHED 0x10000

// mscclgo_operation is the operation of a reduction. Floats of 8 and 16 bits are reduced in
// float32 and rounded; integers wrap around.
typedef enum {
  MSCCLGO_SUM = 0,
  MSCCLGO_PROD = 1,
  MSCCLGO_MAX = 2,
  MSCCLGO_MIN = 3,
  MSCCLGO_AVG = 4  // the sum, which may be out of range, divided by the number of ranks
} mscclgo_operation;

// mscclgo_collective is one of the collectives.
typedef enum {
  MSCCLGO_ALL_REDUCE = 0,
  MSCCLGO_ALL_GATHER = 1,
  MSCCLGO_REDUCE_SCATTER = 2,
  MSCCLGO_ALL_TO_ALL = 3,
  MSCCLGO_SEND_RECEIVE = 4,
  MSCCLGO_BROADCAST = 5,
  MSCCLGO_REDUCE = 6,
  MSCCLGO_GATHER = 7,
  MSCCLGO_SCATTER = 8
} mscclgo_collective;

// The collectives queue work on a stream of the group's device and return. out and in are
// addresses for kernels: of device memory of any kind, at any alignment, which stays the
// caller's and must live until the work has ended. All ranks make the same calls in the same
// order, and the calls of a group are done in that order, whatever streams they are made on. A
// call of 0 elements does nothing. The first call of a kind, type, operation and algorithm waits
// for the other ranks while it prepares, unless all have called mscclgo_collective_load for it.
// The count decides on the algorithm. Later calls only queue. They may be captured.
//
// Errors: MSCCLGO_INVALID for memory or a stream of another device, for memory that is too short or
// freed, for types, operations and roots that do not exist, and if another rank's call is a
// different one, which fails the group; MSCCLGO_UNSUPPORTED for elements that the operation does not
// reduce. Nothing is queued then.

// mscclgo_all_reduce reduces count elements of in of all ranks into every rank's out, which
// may be in.
MSCCLGO_API mscclgo_status mscclgo_all_reduce(mscclgo_group group, mscclgo_stream stream, void* out,
                                              const void* in, uint64_t count, mscclgo_type type,
                                              mscclgo_operation operation);

// mscclgo_all_gather concatenates the count elements of in of all ranks in every rank's out. in
// may be this rank's part of out.
MSCCLGO_API mscclgo_status mscclgo_all_gather(mscclgo_group group, mscclgo_stream stream, void* out,
                                              const void* in, uint64_t count, mscclgo_type type);

// mscclgo_reduce_scatter reduces in of all ranks, of count elements for each rank, and leaves
// part r of the result in the out of rank r, which may be this rank's part of in.
MSCCLGO_API mscclgo_status mscclgo_reduce_scatter(mscclgo_group group, mscclgo_stream stream, void* out,
                                                  const void* in, uint64_t count, mscclgo_type type,
                                                  mscclgo_operation operation);

// mscclgo_all_to_all makes part p of in, of count elements, this rank's part of out of rank p.
MSCCLGO_API mscclgo_status mscclgo_all_to_all(mscclgo_group group, mscclgo_stream stream, void* out,
                                              const void* in, uint64_t count, mscclgo_type type);

// mscclgo_all_to_all_v sends send_counts[p] elements of in to each rank p, and receives
// receive_counts[p] from it into out. Both lie in the order of the ranks, without gaps. A rank
// receives as much as the other sends. A buffer of which nothing is used may be NULL.
MSCCLGO_API mscclgo_status mscclgo_all_to_all_v(mscclgo_group group, mscclgo_stream stream, void* out,
                                                const void* in, const uint64_t* send_counts,
                                                const uint64_t* receive_counts, mscclgo_type type);

// mscclgo_broadcast copies count elements of the root's in into every rank's out, which may be
// in. On other ranks in is not used and may be NULL.
MSCCLGO_API mscclgo_status mscclgo_broadcast(mscclgo_group group, mscclgo_stream stream, void* out,
                                             const void* in, uint64_t count, mscclgo_type type, int root);

// mscclgo_reduce reduces count elements of in of all ranks into the root's out, which may be
// in. On other ranks out is not used and may be NULL.
MSCCLGO_API mscclgo_status mscclgo_reduce(mscclgo_group group, mscclgo_stream stream, void* out,
                                          const void* in, uint64_t count, mscclgo_type type,
                                          mscclgo_operation operation, int root);

// mscclgo_gather concatenates the count elements of in of all ranks in the root's out. On other
// ranks out is not used and may be NULL.
MSCCLGO_API mscclgo_status mscclgo_gather(mscclgo_group group, mscclgo_stream stream, void* out,
                                          const void* in, uint64_t count, mscclgo_type type, int root);

// mscclgo_scatter copies part r of the root's in, of count elements, into out of rank r. On
// other ranks in is not used and may be NULL.
MSCCLGO_API mscclgo_status mscclgo_scatter(mscclgo_group group, mscclgo_stream stream, void* out,
                                           const void* in, uint64_t count, mscclgo_type type, int root);

// mscclgo_send_receive copies count elements of in into out of the next rank, around the ring
// of all ranks.
MSCCLGO_API mscclgo_status mscclgo_send_receive(mscclgo_group group, mscclgo_stream stream, void* out,
                                                const void* in, uint64_t count, mscclgo_type type);

// mscclgo_collective_load prepares what the first such call on any memory needs. Then that call only queues,
// and a capture of other code may hold it. operation is not used if the collective does not reduce, nor root
// if it has none. It prepares nothing for mscclgo_all_to_all_v. Collective.
//
// Errors: as the call.
MSCCLGO_API mscclgo_status mscclgo_collective_load(mscclgo_group group, mscclgo_collective collective,
                                                   uint64_t count, mscclgo_type type,
                                                   mscclgo_operation operation, int root);

// ---- Sends and receives ----

// mscclgo_direction says whether this rank sends or receives a message.
typedef enum { MSCCLGO_SEND = 0, MSCCLGO_RECV = 1 } mscclgo_direction;

// mscclgo_message is a send or a receive.
typedef struct {
  mscclgo_stream stream;
  void* buffer;  // of count elements, an address for kernels; it may be NULL if count is 0
  uint64_t count;
  mscclgo_type type;
  int peer;  // the rank at the other end, which may be this one
  mscclgo_direction direction;
} mscclgo_message;

// mscclgo_messages_launch queues sends and receives, of any number, peers, sizes and types, as one
// kernel, and returns once they are queued. All of them progress together, so it does not matter in
// what order they are; two ranks that send to each other do it in one call each.
//
// The messages from a rank to another are received in the order in which they were sent, in one
// call or several. A receive must have the count and the type of its send. Otherwise the group of
// ranks fails with an error that names both, and nothing is written. If a peer never makes the
// matching send or receive, the wait ends by the group's timeout. What a rank sends to itself it
// receives in the same call. Received elements must not overlap anything else of the call.
//
// Messages may be on several streams: the kernel runs on the first one's when the work
// that was queued on all of them is done, and all go on when it has ended. It may be captured, all its
// streams in one capture. Memory is as for the collectives, and messages keep their place among
// this rank's collectives: ranks make both in the same order.
//
// Only ranks that have messages call it. But the first call of a group is made by all ranks, if
// need be with a count of 0, for which messages may be NULL, unless all have called
// mscclgo_messages_load. A call of 0 messages does nothing else. That first call compiles kernels and
// waits for the other ranks, which a capture refuses; where it is invalid on one rank, the others
// wait for that rank until the group's timeout. So call mscclgo_messages_load before.
//
// Errors: MSCCLGO_INVALID, which names the message, for ranks, types, directions, streams and
// memory that are wrong, and for a message of this rank to itself without its match in the same call;
// MSCCLGO_TIMEOUT where a rank does not make the first call; the error of the group, if it has
// failed. Nothing is queued then.
MSCCLGO_API mscclgo_status mscclgo_messages_launch(mscclgo_group group, const mscclgo_message* messages,
                                                   size_t count);

// mscclgo_messages_load prepares what messages need, so that the first call of
// mscclgo_messages_launch only queues and concerns only ranks that have some. Collective.
MSCCLGO_API mscclgo_status mscclgo_messages_load(mscclgo_group group);

// mscclgo_send and mscclgo_recv are mscclgo_messages_launch of one message.
MSCCLGO_API mscclgo_status mscclgo_send(mscclgo_group group, mscclgo_stream stream, const void* in,
                                        uint64_t count, mscclgo_type type, int peer);
MSCCLGO_API mscclgo_status mscclgo_recv(mscclgo_group group, mscclgo_stream stream, void* out, uint64_t count,
                                        mscclgo_type type, int peer);

// ---- Prepared collectives ----

// Prepared collectives run on memory that the peers reach, at once, where the calls above go
// through the group's scratch. They are the fastest, and what "mscclgo bench" measures.

// mscclgo_call is a collective to prepare.
typedef struct {
  mscclgo_collective collective;
  mscclgo_type type;
  mscclgo_operation operation;  // of one that reduces
  int root;                     // of one that has it
  uint64_t count;               // as for the function of the collective's name
  // in and out are the data, from these offsets on, which are the same on all ranks. in is NULL in
  // place. Then out holds both: an all-gather finds this rank's part in its place of the result, and a
  // reduce-scatter leaves the result in the place of this rank's part.
  mscclgo_peer_memory in, out;
  uint64_t in_offset, out_offset;
  int overlap;  // not 0: it may begin while the kernel before it in the stream ends
} mscclgo_call;

// mscclgo_prepare makes a collective ready to run: the ranks compare the call, load its kernel
// and agree on its blocks. A call of 0 elements needs no memory. Collective.
//
// Errors: MSCCLGO_INVALID for a call that is wrong, memory that is too short, and where another
// rank's call is a different one; MSCCLGO_REMOTE where the call of another rank is wrong.
MSCCLGO_API mscclgo_status mscclgo_prepare(mscclgo_group group, const mscclgo_call* call,
                                           mscclgo_prepared* prepared);

// mscclgo_prepared_launch queues the collective on a stream and returns, as the functions of
// the collectives do. All ranks launch the same, in the same order. It may be captured.
MSCCLGO_API mscclgo_status mscclgo_prepared_launch(mscclgo_prepared prepared, mscclgo_stream stream);

// mscclgo_prepared_reform carries a prepared collective to the group that its own was re-formed to, once
// mscclgo_peer_memory_reform has carried its memory. It stays the same call, by an algorithm that is chosen
// anew. captured, if it is not NULL, tells whether graphs that hold it are right. They are if this rank, the
// ranks of each host and the addresses of all memory are as before. Until it is called, the call can only
// be destroyed. Collective, matched by mscclgo_prepare.
//
// Errors: as mscclgo_prepare, such as MSCCLGO_INVALID where the call does not suit the number of
// ranks any more, on all ranks: destroy it then; MSCCLGO_INVALID where its memory was not carried, and for a
// call of the group that it is of.
MSCCLGO_API mscclgo_status mscclgo_prepared_reform(mscclgo_prepared prepared, int* captured);

// mscclgo_prepared_destroy ends its use. It concerns this rank alone; what was launched goes on.
MSCCLGO_API mscclgo_status mscclgo_prepared_destroy(mscclgo_prepared prepared);

#ifdef __cplusplus
}
#endif

#endif  // MSCCLGO_H
