// The loaded library, and what takes more than one of its calls, or one that is
// no symbol, in a single crossing from Go.
#ifndef MSCCLGO_VERBS_API_H
#define MSCCLGO_VERBS_API_H

#include "post.h"

typedef struct {
#define X(result, name, parameters, needed) result(*name) parameters;
#include "functions.h"
#undef X
} verbs_api;

// verbs_load opens the library and looks up every function. On failure it
// returns NULL with the reason in error, and sets absent if there is no such library, or an
// older one. The library stays open: its drivers do not survive being unloaded.
verbs_api* verbs_load(const char* library, char* error, size_t error_size, int* absent);

// What follows returns an errno value, or 0; what returns a pointer, NULL with
// errno set.

struct ibv_device** verbs_list(const verbs_api* api, int* n);
void verbs_free_list(const verbs_api* api, struct ibv_device** list);
const char* verbs_name(const verbs_api* api, struct ibv_device* device);
struct ibv_context* verbs_open(const verbs_api* api, const char* name);

int verbs_close(const verbs_api* api, struct ibv_context* context);
int verbs_query_device(const verbs_api* api, struct ibv_context* context, struct ibv_device_attr* attr);
int verbs_query_port(const verbs_api* api, struct ibv_context* context, int port, struct ibv_port_attr* attr);
int verbs_query_gid(const verbs_api* api, struct ibv_context* context, int port, int index, uint8_t* gid);

struct ibv_pd* verbs_alloc_pd(const verbs_api* api, struct ibv_context* context);
int verbs_dealloc_pd(const verbs_api* api, struct ibv_pd* pd);
int verbs_deregister(const verbs_api* api, struct ibv_mr* mr);
struct ibv_comp_channel* verbs_create_channel(const verbs_api* api, struct ibv_context* context);
int verbs_destroy_channel(const verbs_api* api, struct ibv_comp_channel* channel);
struct ibv_cq* verbs_create_cq(const verbs_api* api, struct ibv_context* context, int entries,
                               struct ibv_comp_channel* channel);
int verbs_destroy_cq(const verbs_api* api, struct ibv_cq* cq);
int verbs_destroy_qp(const verbs_api* api, struct ibv_qp* qp);
const char* verbs_event_text(const verbs_api* api, int type);

struct ibv_mr* verbs_register(const verbs_api* api, struct ibv_pd* pd, uint64_t address, size_t size,
                              uint64_t iova, int access);
struct ibv_mr* verbs_register_dmabuf(const verbs_api* api, struct ibv_pd* pd, int fd, uint64_t offset,
                                     size_t size, uint64_t iova, int access);

struct ibv_qp* verbs_create_qp(const verbs_api* api, struct ibv_pd* pd, struct ibv_cq* send,
                               struct ibv_cq* receive, uint32_t sends, uint32_t receives);
int verbs_qp_init(const verbs_api* api, struct ibv_qp* qp, int port, int access);

// verbs_path describes its peer to a queue pair. Go has the same struct.
typedef struct {
  uint8_t gid[16];
  uint32_t peer_qp;
  uint32_t psn;       // of this side
  uint32_t peer_psn;  // of the peer's
  uint16_t lid;
  uint8_t mtu;
  uint8_t port;
  uint8_t global;
  uint8_t gid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
  uint8_t service_level;
  uint8_t reads;       // RDMA reads and atomics that may be under way
  uint8_t peer_reads;  // and of the peer's
  uint8_t timeout;
  uint8_t retries;
  uint8_t rnr_retries;
  uint8_t rnr_timer;
  uint8_t unused[1];
} verbs_path;

// verbs_qp_connect takes a queue pair to RTR and RTS. step is the one that failed.
int verbs_qp_connect(const verbs_api* api, struct ibv_qp* qp, const verbs_path* path, int* step);
int verbs_qp_fail(const verbs_api* api, struct ibv_qp* qp);

// verbs_post_receives posts n requests without memory.
int verbs_post_receives(struct ibv_qp* qp, int n);

// verbs_arm asks for an event for the next completion.
int verbs_arm(struct ibv_cq* cq);

// verbs_cq_event takes an event from a channel, if there is one, and
// acknowledges it; EAGAIN if there is none.
int verbs_cq_event(const verbs_api* api, struct ibv_comp_channel* channel);
// verbs_async_event does that with a device's events. qp and port are what the
// event is about, or 0.
int verbs_async_event(const verbs_api* api, struct ibv_context* context, int* type, uint32_t* qp, int* port);

#endif
