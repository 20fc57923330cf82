#include "api.h"

#include <stdlib.h>

#include "native/library.h"

verbs_api* verbs_load(const char* library, char* error, size_t error_size, int* absent) {
  void* handle = native_open_library(library, error, error_size, absent);
  if (!handle) return NULL;
  verbs_api* api = calloc(1, sizeof *api);
  if (!api) {
    snprintf(error, error_size, "out of memory");
    return NULL;
  }
#define X(result, name, parameters, needed)                           \
  api->name = (result(*) parameters)dlsym(handle, #name);             \
  if (needed && !api->name) {                                         \
    snprintf(error, error_size, "it lacks " #name " and is too old"); \
    *absent = 1;                                                      \
    free(api);                                                        \
    return NULL;                                                      \
  }
#include "functions.h"
#undef X
  return api;
}

struct ibv_device** verbs_list(const verbs_api* api, int* n) {
  return api->ibv_get_device_list(n);
}

void verbs_free_list(const verbs_api* api, struct ibv_device** list) { api->ibv_free_device_list(list); }

const char* verbs_name(const verbs_api* api, struct ibv_device* device) {
  return api->ibv_get_device_name(device);
}

struct ibv_context* verbs_open(const verbs_api* api, const char* name) {
  int n = 0;
  struct ibv_device** list = api->ibv_get_device_list(&n);
  if (!list) return NULL;
  struct ibv_context* context = NULL;
  errno = ENODEV;
  for (int i = 0; i < n; i++) {
    if (strcmp(api->ibv_get_device_name(list[i]), name) != 0) continue;
    errno = 0;
    context = api->ibv_open_device(list[i]);
    if (!context && errno == 0) errno = EIO;
    break;
  }
  int rc = errno;
  api->ibv_free_device_list(list);
  errno = rc;
  return context;
}

int verbs_close(const verbs_api* api, struct ibv_context* context) { return api->ibv_close_device(context); }

int verbs_query_device(const verbs_api* api, struct ibv_context* context, struct ibv_device_attr* attr) {
  return api->ibv_query_device(context, attr);
}

int verbs_query_port(const verbs_api* api, struct ibv_context* context, int port,
                     struct ibv_port_attr* attr) {
  // The symbol, unlike the headers' inline function, fills an older, shorter
  // struct, which ends behind link_layer.
  memset(attr, 0, sizeof *attr);
  return api->ibv_query_port(context, (uint8_t)port, attr);
}

int verbs_query_gid(const verbs_api* api, struct ibv_context* context, int port, int index, uint8_t* gid) {
  union ibv_gid found;
  int rc = api->ibv_query_gid(context, (uint8_t)port, index, &found);
  memcpy(gid, found.raw, sizeof found.raw);
  return rc ? (errno ? errno : EINVAL) : 0;
}

struct ibv_pd* verbs_alloc_pd(const verbs_api* api, struct ibv_context* context) {
  return api->ibv_alloc_pd(context);
}

int verbs_dealloc_pd(const verbs_api* api, struct ibv_pd* pd) { return api->ibv_dealloc_pd(pd); }

int verbs_deregister(const verbs_api* api, struct ibv_mr* mr) { return api->ibv_dereg_mr(mr); }

struct ibv_comp_channel* verbs_create_channel(const verbs_api* api, struct ibv_context* context) {
  return api->ibv_create_comp_channel(context);
}

int verbs_destroy_channel(const verbs_api* api, struct ibv_comp_channel* channel) {
  return api->ibv_destroy_comp_channel(channel);
}

struct ibv_cq* verbs_create_cq(const verbs_api* api, struct ibv_context* context, int entries,
                               struct ibv_comp_channel* channel) {
  return api->ibv_create_cq(context, entries, NULL, channel, 0);
}

int verbs_destroy_cq(const verbs_api* api, struct ibv_cq* cq) { return api->ibv_destroy_cq(cq); }

int verbs_destroy_qp(const verbs_api* api, struct ibv_qp* qp) { return api->ibv_destroy_qp(qp); }

const char* verbs_event_text(const verbs_api* api, int type) { return api->ibv_event_type_str(type); }

struct ibv_mr* verbs_register(const verbs_api* api, struct ibv_pd* pd, uint64_t address, size_t size,
                              uint64_t iova, int access) {
  return api->ibv_reg_mr_iova(pd, (void*)(uintptr_t)address, size, iova, access);
}

struct ibv_mr* verbs_register_dmabuf(const verbs_api* api, struct ibv_pd* pd, int fd, uint64_t offset,
                                     size_t size, uint64_t iova, int access) {
  if (!api->ibv_reg_dmabuf_mr) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  return api->ibv_reg_dmabuf_mr(pd, offset, size, iova, fd, access);
}

struct ibv_qp* verbs_create_qp(const verbs_api* api, struct ibv_pd* pd, struct ibv_cq* send,
                               struct ibv_cq* receive, uint32_t sends, uint32_t receives) {
  struct ibv_qp_init_attr attr = {0};
  attr.send_cq = send;
  attr.recv_cq = receive;
  attr.cap.max_send_wr = sends;
  attr.cap.max_recv_wr = receives;
  attr.cap.max_send_sge = 1;
  attr.cap.max_recv_sge = 1;
  attr.qp_type = IBV_QPT_RC;
  return api->ibv_create_qp(pd, &attr);
}

int verbs_qp_init(const verbs_api* api, struct ibv_qp* qp, int port, int access) {
  struct ibv_qp_attr attr = {0};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = (uint8_t)port;
  attr.qp_access_flags = (unsigned)access;
  return api->ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int verbs_qp_connect(const verbs_api* api, struct ibv_qp* qp, const verbs_path* path, int* step) {
  struct ibv_qp_attr attr = {0};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = path->mtu;
  attr.dest_qp_num = path->peer_qp;
  attr.rq_psn = path->peer_psn;
  attr.max_dest_rd_atomic = path->peer_reads;
  attr.min_rnr_timer = path->rnr_timer;
  attr.ah_attr.port_num = path->port;
  attr.ah_attr.dlid = path->lid;
  attr.ah_attr.sl = path->service_level;
  attr.ah_attr.is_global = path->global;
  memcpy(attr.ah_attr.grh.dgid.raw, path->gid, sizeof path->gid);
  attr.ah_attr.grh.sgid_index = path->gid_index;
  attr.ah_attr.grh.hop_limit = path->hop_limit;
  attr.ah_attr.grh.traffic_class = path->traffic_class;
  *step = IBV_QPS_RTR;
  int rc = api->ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (rc) return rc;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = path->psn;
  attr.max_rd_atomic = path->reads;
  attr.timeout = path->timeout;
  attr.retry_cnt = path->retries;
  attr.rnr_retry = path->rnr_retries;
  *step = IBV_QPS_RTS;
  return api->ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                                IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
}

int verbs_qp_fail(const verbs_api* api, struct ibv_qp* qp) {
  struct ibv_qp_attr attr = {0};
  attr.qp_state = IBV_QPS_ERR;
  return api->ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

int verbs_post_receives(struct ibv_qp* qp, int n) {
  struct ibv_recv_wr requests[VERBS_BATCH];
  for (; n > 0; n -= VERBS_BATCH) {
    int count = n < VERBS_BATCH ? n : VERBS_BATCH;
    memset(requests, 0, (size_t)count * sizeof *requests);
    for (int i = 0; i + 1 < count; i++) requests[i].next = &requests[i + 1];
    struct ibv_recv_wr* bad;
    int rc = qp->context->ops.post_recv(qp, requests, &bad);
    if (rc) return rc < 0 ? -rc : rc;
  }
  return 0;
}

int verbs_arm(struct ibv_cq* cq) { return cq->context->ops.req_notify_cq(cq, 0); }

int verbs_cq_event(const verbs_api* api, struct ibv_comp_channel* channel) {
  struct ibv_cq* cq;
  void* owner;
  if (api->ibv_get_cq_event(channel, &cq, &owner)) return errno ? errno : EIO;
  api->ibv_ack_cq_events(cq, 1);
  return 0;
}

int verbs_async_event(const verbs_api* api, struct ibv_context* context, int* type, uint32_t* qp, int* port) {
  struct ibv_async_event event;
  if (api->ibv_get_async_event(context, &event)) return errno ? errno : EIO;
  *type = event.event_type;
  *qp = 0;
  *port = 0;
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      *qp = event.element.qp->qp_num;
      break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
      *port = event.element.port_num;
      break;
  }
  api->ibv_ack_async_event(&event);
  return 0;
}
