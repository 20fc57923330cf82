// Prints sizes, offsets and constants of the ABI: of the installed headers, or
// with -DOURS of this package's.
#ifdef OURS
#include "abi.h"
#else
#include <infiniband/verbs.h>
#endif
#include <stdio.h>

#define SIZE(type) printf("size of " #type ": %zu\n", sizeof(type))
#define FIELD(type, field) \
  printf(#type "." #field ": %zu+%zu\n", offsetof(type, field), sizeof(((type*)0)->field))
#define VALUE(name) printf(#name ": %d\n", (int)(name))

int main(void) {
  FIELD(struct ibv_context_ops, poll_cq);
  FIELD(struct ibv_context_ops, req_notify_cq);
  FIELD(struct ibv_context_ops, post_send);
  FIELD(struct ibv_context_ops, post_recv);
  SIZE(struct ibv_context_ops);
  FIELD(struct ibv_context, ops);
  FIELD(struct ibv_context, async_fd);
  FIELD(struct ibv_comp_channel, fd);
  FIELD(struct ibv_cq, context);
  FIELD(struct ibv_qp, context);
  FIELD(struct ibv_qp, qp_num);
  FIELD(struct ibv_mr, lkey);
  FIELD(struct ibv_mr, rkey);
  SIZE(struct ibv_device_attr);
  FIELD(struct ibv_device_attr, max_qp);
  FIELD(struct ibv_device_attr, max_qp_wr);
  FIELD(struct ibv_device_attr, max_cqe);
  FIELD(struct ibv_device_attr, max_qp_rd_atom);
  FIELD(struct ibv_device_attr, max_qp_init_rd_atom);
  FIELD(struct ibv_device_attr, atomic_cap);
  FIELD(struct ibv_device_attr, phys_port_cnt);
  SIZE(struct ibv_port_attr);
  FIELD(struct ibv_port_attr, state);
  FIELD(struct ibv_port_attr, active_mtu);
  FIELD(struct ibv_port_attr, max_msg_sz);
  FIELD(struct ibv_port_attr, lid);
  FIELD(struct ibv_port_attr, link_layer);
  SIZE(union ibv_gid);
  SIZE(struct ibv_global_route);
  FIELD(struct ibv_global_route, sgid_index);
  FIELD(struct ibv_global_route, hop_limit);
  FIELD(struct ibv_global_route, traffic_class);
  SIZE(struct ibv_ah_attr);
  FIELD(struct ibv_ah_attr, dlid);
  FIELD(struct ibv_ah_attr, sl);
  FIELD(struct ibv_ah_attr, is_global);
  FIELD(struct ibv_ah_attr, port_num);
  SIZE(struct ibv_qp_init_attr);
  FIELD(struct ibv_qp_init_attr, send_cq);
  FIELD(struct ibv_qp_init_attr, recv_cq);
  FIELD(struct ibv_qp_init_attr, cap);
  FIELD(struct ibv_qp_init_attr, qp_type);
  FIELD(struct ibv_qp_cap, max_inline_data);
  SIZE(struct ibv_qp_attr);
  FIELD(struct ibv_qp_attr, path_mtu);
  FIELD(struct ibv_qp_attr, rq_psn);
  FIELD(struct ibv_qp_attr, sq_psn);
  FIELD(struct ibv_qp_attr, dest_qp_num);
  FIELD(struct ibv_qp_attr, qp_access_flags);
  FIELD(struct ibv_qp_attr, ah_attr);
  FIELD(struct ibv_qp_attr, pkey_index);
  FIELD(struct ibv_qp_attr, max_rd_atomic);
  FIELD(struct ibv_qp_attr, max_dest_rd_atomic);
  FIELD(struct ibv_qp_attr, min_rnr_timer);
  FIELD(struct ibv_qp_attr, port_num);
  FIELD(struct ibv_qp_attr, timeout);
  FIELD(struct ibv_qp_attr, retry_cnt);
  FIELD(struct ibv_qp_attr, rnr_retry);
  SIZE(struct ibv_sge);
  FIELD(struct ibv_sge, length);
  FIELD(struct ibv_sge, lkey);
  SIZE(struct ibv_send_wr);
  FIELD(struct ibv_send_wr, next);
  FIELD(struct ibv_send_wr, sg_list);
  FIELD(struct ibv_send_wr, num_sge);
  FIELD(struct ibv_send_wr, opcode);
  FIELD(struct ibv_send_wr, send_flags);
  FIELD(struct ibv_send_wr, wr.rdma.remote_addr);
  FIELD(struct ibv_send_wr, wr.rdma.rkey);
  FIELD(struct ibv_send_wr, wr.atomic.remote_addr);
  FIELD(struct ibv_send_wr, wr.atomic.compare_add);
  FIELD(struct ibv_send_wr, wr.atomic.rkey);
  SIZE(struct ibv_recv_wr);
  FIELD(struct ibv_recv_wr, num_sge);
  SIZE(struct ibv_wc);
  FIELD(struct ibv_wc, status);
  FIELD(struct ibv_wc, opcode);
  FIELD(struct ibv_wc, vendor_err);
  FIELD(struct ibv_wc, byte_len);
  FIELD(struct ibv_wc, qp_num);
  SIZE(struct ibv_async_event);
  FIELD(struct ibv_async_event, event_type);

  VALUE(IBV_ATOMIC_NONE);
  VALUE(IBV_PORT_DOWN);
  VALUE(IBV_PORT_ACTIVE);
  VALUE(IBV_LINK_LAYER_INFINIBAND);
  VALUE(IBV_LINK_LAYER_ETHERNET);
  VALUE(IBV_QPT_RC);
  VALUE(IBV_QPS_RESET);
  VALUE(IBV_QPS_INIT);
  VALUE(IBV_QPS_RTR);
  VALUE(IBV_QPS_RTS);
  VALUE(IBV_QPS_ERR);
  VALUE(IBV_WR_RDMA_WRITE);
  VALUE(IBV_WR_RDMA_WRITE_WITH_IMM);
  VALUE(IBV_WR_RDMA_READ);
  VALUE(IBV_WR_ATOMIC_FETCH_AND_ADD);
  VALUE(IBV_WR_ATOMIC_CMP_AND_SWP);
  VALUE(IBV_SEND_SIGNALED);
  VALUE(IBV_SEND_INLINE);
  VALUE(IBV_ACCESS_LOCAL_WRITE);
  VALUE(IBV_ACCESS_REMOTE_WRITE);
  VALUE(IBV_ACCESS_REMOTE_READ);
  VALUE(IBV_ACCESS_REMOTE_ATOMIC);
  VALUE(IBV_QP_STATE);
  VALUE(IBV_QP_ACCESS_FLAGS);
  VALUE(IBV_QP_PKEY_INDEX);
  VALUE(IBV_QP_PORT);
  VALUE(IBV_QP_AV);
  VALUE(IBV_QP_PATH_MTU);
  VALUE(IBV_QP_TIMEOUT);
  VALUE(IBV_QP_RETRY_CNT);
  VALUE(IBV_QP_RNR_RETRY);
  VALUE(IBV_QP_RQ_PSN);
  VALUE(IBV_QP_MAX_QP_RD_ATOMIC);
  VALUE(IBV_QP_MIN_RNR_TIMER);
  VALUE(IBV_QP_SQ_PSN);
  VALUE(IBV_QP_MAX_DEST_RD_ATOMIC);
  VALUE(IBV_QP_DEST_QPN);
  VALUE(IBV_EVENT_QP_FATAL);
  VALUE(IBV_EVENT_QP_REQ_ERR);
  VALUE(IBV_EVENT_QP_ACCESS_ERR);
  VALUE(IBV_EVENT_COMM_EST);
  VALUE(IBV_EVENT_SQ_DRAINED);
  VALUE(IBV_EVENT_PATH_MIG);
  VALUE(IBV_EVENT_PATH_MIG_ERR);
  VALUE(IBV_EVENT_DEVICE_FATAL);
  VALUE(IBV_EVENT_PORT_ACTIVE);
  VALUE(IBV_EVENT_PORT_ERR);
  VALUE(IBV_EVENT_QP_LAST_WQE_REACHED);
  return 0;
}
