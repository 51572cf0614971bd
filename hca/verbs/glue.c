//go:build linux && cgo && verbs

#include "glue.h"

#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The queue key of every datagram queue pair made here. It guards against
// strays, not against malice.
static const uint32_t qkey = 0x484f4c44;

// libibverbs answers some failures through errno alone.
static int failed(void) { return errno > 0 ? -errno : -EIO; }

// Others come back as a positive errno, or as -1 with errno set.
static int outcome(int r) {
	if (r == 0)
		return 0;
	return r > 0 ? -r : failed();
}

static int unblock(int fd) {
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? failed() : 0;
}

int hf_list(struct ibv_device ***list) {
	int n = 0;
	errno = 0;
	*list = ibv_get_device_list(&n);
	return *list ? n : failed();
}

int hf_open(struct ibv_device *dev, struct ibv_context **ctx) {
	errno = 0;
	*ctx = ibv_open_device(dev);
	if (!*ctx)
		return failed();
	int err = unblock((*ctx)->async_fd);
	if (err)
		ibv_close_device(*ctx);
	return err;
}

int hf_close(struct ibv_context *ctx) { return outcome(ibv_close_device(ctx)); }

int hf_async_fd(struct ibv_context *ctx) { return ctx->async_fd; }

int hf_query(struct ibv_context *ctx, struct hf_caps *caps) {
	struct ibv_device_attr_ex ex;
	memset(&ex, 0, sizeof ex);
	int err = outcome(ibv_query_device_ex(ctx, NULL, &ex));
	if (err)
		return err;
	const struct ibv_device_attr *a = &ex.orig_attr;
	memset(caps, 0, sizeof *caps);
	strncpy(caps->fw, a->fw_ver, HF_NAME - 1);
	caps->max_mr_size = a->max_mr_size;
	caps->odp_general = ex.odp_caps.general_caps;
	caps->odp_rc = ex.odp_caps.per_transport_caps.rc_odp_caps;
	caps->odp_ud = ex.odp_caps.per_transport_caps.ud_odp_caps;
	caps->odp_uc = ex.odp_caps.per_transport_caps.uc_odp_caps;
	caps->odp_xrc = ex.xrc_odp_caps;
	caps->vendor_id = a->vendor_id;
	caps->vendor_part = a->vendor_part_id;
	caps->max_qp = a->max_qp;
	caps->max_qp_wr = a->max_qp_wr;
	caps->max_sge = a->max_sge;
	caps->max_cq = a->max_cq;
	caps->max_cqe = a->max_cqe;
	caps->max_mr = a->max_mr;
	caps->max_rd_atomic = a->max_qp_rd_atom;
	caps->max_init_rd_atomic = a->max_qp_init_rd_atom;
	caps->atomic = a->atomic_cap != IBV_ATOMIC_NONE;
	caps->ports = a->phys_port_cnt;
	return 0;
}

int hf_query_port(struct ibv_context *ctx, int port, struct hf_port *out) {
	struct ibv_port_attr a;
	memset(&a, 0, sizeof a);
	int err = outcome(ibv_query_port(ctx, port, &a));
	if (err)
		return err;
	out->state = a.state;
	out->mtu = a.active_mtu;
	out->ethernet = a.link_layer == IBV_LINK_LAYER_ETHERNET;
	out->gids = a.gid_tbl_len;
	out->lid = a.lid;
	out->max_msg = a.max_msg_sz;
	return 0;
}

int hf_query_gid(struct ibv_context *ctx, int port, int index, struct hf_gid *out) {
	struct ibv_gid_entry e;
	int err = outcome(ibv_query_gid_ex(ctx, port, index, &e, 0));
	if (err)
		return err;
	memcpy(out->raw, e.gid.raw, sizeof out->raw);
	out->type = e.gid_type;
	return 0;
}

// hf_event takes one asynchronous event and acknowledges it at once: to
// destroy an object waits for the acknowledgement of its events.
int hf_event(struct ibv_context *ctx, struct hf_event *out) {
	struct ibv_async_event e;
	errno = 0;
	if (ibv_get_async_event(ctx, &e))
		return failed();
	out->type = e.event_type;
	out->id = 0;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->id = (uintptr_t)e.element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->id = (uintptr_t)e.element.qp->qp_context;
		break;
	default:
		break;
	}
	ibv_ack_async_event(&e);
	return 0;
}

int hf_alloc_pd(struct ibv_context *ctx, struct ibv_pd **pd) {
	errno = 0;
	*pd = ibv_alloc_pd(ctx);
	return *pd ? 0 : failed();
}

int hf_dealloc_pd(struct ibv_pd *pd) { return outcome(ibv_dealloc_pd(pd)); }

int hf_reg(struct ibv_pd *pd, uint64_t addr, uint64_t len, int access, struct ibv_mr **mr) {
	errno = 0;
	*mr = ibv_reg_mr(pd, (void *)(uintptr_t)addr, len, access);
	return *mr ? 0 : failed();
}

int hf_dereg(struct ibv_mr *mr) { return outcome(ibv_dereg_mr(mr)); }

// rereg_by_kernel gives the kernel the command that ibv_rereg_mr gives it, for
// adapters whose part of libibverbs does not pass the call on and whose command
// has no data of their own.
static int rereg_by_kernel(struct ibv_pd *pd, struct ibv_mr *mr, const struct hf_rereg *want) {
	struct ib_uverbs_rereg_mr_resp resp = {};
	struct {
		struct ib_uverbs_cmd_hdr  hdr;
		struct ib_uverbs_rereg_mr body;
	} cmd = {
		.hdr = {.command = IB_USER_VERBS_CMD_REREG_MR, .in_words = sizeof cmd / 4, .out_words = sizeof resp / 4},
		.body = {
			.response = (uintptr_t)&resp, .mr_handle = mr->handle, .flags = want->flags,
			.start = want->addr, .length = want->len, .hca_va = want->addr,
			.pd_handle = pd->handle, .access_flags = want->access,
		},
	};
	if (write(pd->context->cmd_fd, &cmd, sizeof cmd) != sizeof cmd)
		return failed();
	mr->lkey = resp.lkey;
	mr->rkey = resp.rkey;
	return 0;
}

int hf_rereg(struct ibv_pd *pd, struct ibv_mr *mr, struct hf_rereg *want, int by_kernel) {
	errno = 0;
	want->reached = 0;
	int r = ibv_rereg_mr(mr, want->flags, pd, (void *)(uintptr_t)want->addr, want->len, want->access);
	if (r == 0)
		return 0;
	int err = failed();
	if (err == -EOPNOTSUPP && by_kernel) {
		errno = 0;
		err = rereg_by_kernel(pd, mr, want);
		r = IBV_REREG_MR_ERR_CMD;
	}
	// The new memory is not forked and the old is: that is all that is wrong then.
	if (r == IBV_REREG_MR_ERR_DO_FORK_OLD)
		return 0;
	want->reached = err != -EOPNOTSUPP && (r == IBV_REREG_MR_ERR_CMD || r == IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW);
	return err;
}

int hf_advise(struct ibv_pd *pd, struct hf_advise *a) {
	return outcome(ibv_advise_mr(pd, a->advice, IBV_ADVISE_MR_FLAG_FLUSH, a->sge, a->num_sge));
}

int hf_create_cq(struct ibv_context *ctx, int entries, uint64_t id, struct ibv_comp_channel **ch, struct ibv_cq **cq) {
	errno = 0;
	*ch = ibv_create_comp_channel(ctx);
	if (!*ch)
		return failed();
	int err = unblock((*ch)->fd);
	if (!err) {
		errno = 0;
		*cq = ibv_create_cq(ctx, entries, (void *)(uintptr_t)id, *ch, 0);
		if (*cq)
			return 0;
		err = failed();
	}
	ibv_destroy_comp_channel(*ch);
	return err;
}

int hf_destroy_cq(struct ibv_cq *cq, struct ibv_comp_channel *ch) {
	int err = outcome(ibv_destroy_cq(cq));
	return err ? err : outcome(ibv_destroy_comp_channel(ch));
}

int hf_arm(struct ibv_cq *cq) { return outcome(ibv_req_notify_cq(cq, 0)); }

int hf_cq_event(struct ibv_comp_channel *ch) {
	struct ibv_cq *cq;
	void *context;
	errno = 0;
	if (ibv_get_cq_event(ch, &cq, &context))
		return failed();
	ibv_ack_cq_events(cq, 1);
	return 0;
}

int hf_poll(struct ibv_cq *cq, struct ibv_wc *wc, int n) {
	errno = 0;
	int got = ibv_poll_cq(cq, n, wc);
	return got >= 0 ? got : failed();
}

// hf_nothing is a call into C that does nothing, to measure what a call costs.
int hf_nothing(struct ibv_cq *cq) { return cq == NULL; }

int hf_create_qp(struct ibv_pd *pd, struct hf_qp_want *want, struct ibv_qp **qp) {
	struct ibv_qp_init_attr a = {
		.qp_context = (void *)(uintptr_t)want->id,
		.send_cq = want->send_cq,
		.recv_cq = want->recv_cq,
		.qp_type = want->type,
		.cap = {
			.max_send_wr = want->max_send,
			.max_recv_wr = want->max_recv,
			.max_send_sge = want->max_send_sge,
			.max_recv_sge = want->max_recv_sge,
		},
	};
	errno = 0;
	*qp = ibv_create_qp(pd, &a);
	return *qp ? 0 : failed();
}

int hf_destroy_qp(struct ibv_qp *qp) { return outcome(ibv_destroy_qp(qp)); }

// hf_try_qp makes a small queue pair of a type and destroys it.
int hf_try_qp(struct ibv_context *ctx, struct ibv_pd *pd, int type) {
	errno = 0;
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	if (!cq)
		return failed();
	struct hf_qp_want want = {.send_cq = cq, .recv_cq = cq, .type = type,
		.max_send = 1, .max_recv = 1, .max_send_sge = 1, .max_recv_sge = 1};
	struct ibv_qp *qp;
	int err = hf_create_qp(pd, &want, &qp);
	if (!err)
		err = hf_destroy_qp(qp);
	int again = outcome(ibv_destroy_cq(cq));
	return err ? err : again;
}

int hf_qp_init(struct ibv_qp *qp, int port, int access) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = port};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if (qp->qp_type == IBV_QPT_UD) {
		a.qkey = qkey;
		mask |= IBV_QP_QKEY;
	} else {
		a.qp_access_flags = access;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	return outcome(ibv_modify_qp(qp, &a, mask));
}

// hf_qp_ready brings the queue pair from INIT through RTR to RTS. A datagram
// queue pair gets an address handle of its peer; a connected one none.
int hf_qp_ready(struct ibv_qp *qp, struct hf_own *own, struct hf_peer *peer, struct ibv_ah **ah) {
	int datagram = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR};
	a.ah_attr.dlid = peer->lid;
	a.ah_attr.port_num = own->port;
	if (own->ethernet) {
		a.ah_attr.is_global = 1;
		memcpy(a.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
		a.ah_attr.grh.sgid_index = own->gid_index;
		a.ah_attr.grh.hop_limit = 64;
	}
	int mask = IBV_QP_STATE;
	*ah = NULL;
	if (datagram) {
		errno = 0;
		*ah = ibv_create_ah(qp->pd, &a.ah_attr);
		if (!*ah)
			return failed();
	} else {
		a.path_mtu = peer->mtu;
		a.dest_qp_num = peer->qpn;
		a.rq_psn = peer->psn;
		a.max_dest_rd_atomic = own->rd_atomic;
		a.min_rnr_timer = own->rnr_timer;
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER;
	}
	int err = outcome(ibv_modify_qp(qp, &a, mask));
	if (!err) {
		struct ibv_qp_attr s = {.qp_state = IBV_QPS_RTS, .sq_psn = own->psn};
		mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
		if (!datagram) {
			s.timeout = own->timeout;
			s.retry_cnt = own->retry;
			s.rnr_retry = own->rnr_retry;
			s.max_rd_atomic = own->init_rd_atomic;
			mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
		}
		err = outcome(ibv_modify_qp(qp, &s, mask));
	}
	if (err && *ah) {
		ibv_destroy_ah(*ah);
		*ah = NULL;
	}
	return err;
}

int hf_qp_error(struct ibv_qp *qp) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	return outcome(ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

int hf_qp_state(struct ibv_qp *qp) {
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	int err = outcome(ibv_query_qp(qp, &a, IBV_QP_STATE, &i));
	return err ? err : (int)a.qp_state;
}

int hf_destroy_ah(struct ibv_ah *ah) { return outcome(ibv_destroy_ah(ah)); }

int hf_post_send(struct ibv_qp *qp, struct hf_send *s) {
	struct ibv_send_wr *bad, wr = {
		.wr_id = s->id,
		.sg_list = s->sge,
		.num_sge = s->num_sge,
		.opcode = s->opcode,
		.send_flags = s->flags,
		.imm_data = htobe32(s->imm),
	};
	switch (s->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = s->remote_addr;
		wr.wr.atomic.rkey = s->rkey;
		wr.wr.atomic.compare_add = s->compare_add;
		wr.wr.atomic.swap = s->swap;
		break;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		if (s->ah) {
			wr.wr.ud.ah = s->ah;
			wr.wr.ud.remote_qpn = s->remote_qpn;
			wr.wr.ud.remote_qkey = qkey;
		}
		break;
	default:
		wr.wr.rdma.remote_addr = s->remote_addr;
		wr.wr.rdma.rkey = s->rkey;
	}
	return outcome(ibv_post_send(qp, &wr, &bad));
}

int hf_post_recv(struct ibv_qp *qp, struct hf_recv *r) {
	struct ibv_recv_wr *bad, wr = {.wr_id = r->id, .sg_list = r->sge, .num_sge = r->num_sge};
	return outcome(ibv_post_recv(qp, &wr, &bad));
}
