// What Go asks of libibverbs, flattened: every function answers 0 or a count,
// or an errno as a negative number; addresses come as numbers; nothing keeps a
// pointer that it was given.
#ifndef HOLDFAST_VERBS_GLUE_H
#define HOLDFAST_VERBS_GLUE_H

#include <infiniband/verbs.h>
#include <stdint.h>

enum { HF_MAX_SGE = 16, HF_NAME = 64 };

struct hf_caps {
	char     fw[HF_NAME];
	uint64_t max_mr_size, odp_general;
	uint32_t odp_rc, odp_ud, odp_uc, odp_xrc;
	uint32_t vendor_id, vendor_part;
	int      max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr;
	int      max_rd_atomic, max_init_rd_atomic, atomic;
	int      ports;
};

struct hf_port {
	int      state, mtu, ethernet, gids;
	uint16_t lid;
	uint32_t max_msg;
};

struct hf_gid {
	uint8_t raw[16];
	int     type;
};

struct hf_qp_want {
	struct ibv_cq *send_cq, *recv_cq;
	uint64_t id;
	int      type;
	int      max_send, max_recv, max_send_sge, max_recv_sge;
};

struct hf_peer {
	uint8_t  gid[16];
	uint32_t qpn, psn;
	uint16_t lid;
	int      mtu;
};

struct hf_own {
	uint32_t psn;
	int      port, gid_index, ethernet;
	int      rd_atomic, init_rd_atomic;
	int      rnr_timer, rnr_retry, timeout, retry;
};

struct hf_send {
	uint64_t       id, remote_addr, compare_add, swap;
	struct ibv_ah *ah;
	uint32_t       rkey, imm, opcode, flags, remote_qpn, num_sge;
	struct ibv_sge sge[HF_MAX_SGE];
};

struct hf_recv {
	uint64_t       id;
	uint32_t       num_sge;
	struct ibv_sge sge[HF_MAX_SGE];
};

struct hf_rereg {
	uint64_t addr, len;
	int      flags, access;
	int      reached; // out: the adapter or its driver was asked
};

struct hf_advise {
	uint32_t       advice, num_sge;
	struct ibv_sge sge[HF_MAX_SGE];
};

struct hf_event {
	int      type;
	uint64_t id; // of the queue pair or completion queue
};

int hf_list(struct ibv_device ***list);
int hf_open(struct ibv_device *dev, struct ibv_context **ctx);
int hf_close(struct ibv_context *ctx);
int hf_query(struct ibv_context *ctx, struct hf_caps *caps);
int hf_query_port(struct ibv_context *ctx, int port, struct hf_port *out);
int hf_query_gid(struct ibv_context *ctx, int port, int index, struct hf_gid *out);
int hf_event(struct ibv_context *ctx, struct hf_event *out);
int hf_async_fd(struct ibv_context *ctx);

int hf_alloc_pd(struct ibv_context *ctx, struct ibv_pd **pd);
int hf_dealloc_pd(struct ibv_pd *pd);
int hf_reg(struct ibv_pd *pd, uint64_t addr, uint64_t len, int access, struct ibv_mr **mr);
int hf_dereg(struct ibv_mr *mr);
int hf_rereg(struct ibv_pd *pd, struct ibv_mr *mr, struct hf_rereg *want, int by_kernel);
int hf_advise(struct ibv_pd *pd, struct hf_advise *a);

int hf_create_cq(struct ibv_context *ctx, int entries, uint64_t id, struct ibv_comp_channel **ch, struct ibv_cq **cq);
int hf_destroy_cq(struct ibv_cq *cq, struct ibv_comp_channel *ch);
int hf_arm(struct ibv_cq *cq);
int hf_cq_event(struct ibv_comp_channel *ch);
int hf_poll(struct ibv_cq *cq, struct ibv_wc *wc, int n);
int hf_nothing(struct ibv_cq *cq);

int hf_create_qp(struct ibv_pd *pd, struct hf_qp_want *want, struct ibv_qp **qp);
int hf_destroy_qp(struct ibv_qp *qp);
int hf_try_qp(struct ibv_context *ctx, struct ibv_pd *pd, int type);
int hf_qp_init(struct ibv_qp *qp, int port, int access);
int hf_qp_ready(struct ibv_qp *qp, struct hf_own *own, struct hf_peer *peer, struct ibv_ah **ah);
int hf_qp_error(struct ibv_qp *qp);
int hf_qp_state(struct ibv_qp *qp);
int hf_destroy_ah(struct ibv_ah *ah);
int hf_post_send(struct ibv_qp *qp, struct hf_send *s);
int hf_post_recv(struct ibv_qp *qp, struct hf_recv *r);

#endif
