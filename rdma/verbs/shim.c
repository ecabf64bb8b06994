//go:build verbs

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum { PD_PORT = 1, PD_LIST = 64 };

/* pd_best_gid prefers a routable RoCE v2 address, then any that is set. */
int pd_best_gid(struct ibv_context *ctx, struct pd_addr *addr, int *index, int *mtu)
{
	struct ibv_port_attr port;
	int err = ibv_query_port(ctx, PD_PORT, &port);
	if (err)
		return err;
	*mtu = port.active_mtu;
	addr->lid = port.lid;
	*index = -1;
	int best = 0;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry e;
		if (ibv_query_gid_ex(ctx, PD_PORT, i, &e, 0))
			continue;
		static const uint8_t v4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
		int score = 1;
		if (e.gid_type == IBV_GID_TYPE_ROCE_V2)
			score += 1;
		if (memcmp(e.gid.raw, v4, sizeof(v4)) == 0)
			score += 2;
		if (score <= best)
			continue;
		best = score;
		*index = i;
		memcpy(addr->gid, e.gid.raw, sizeof(addr->gid));
	}
	if (*index < 0 && port.link_layer == IBV_LINK_LAYER_ETHERNET)
		return EADDRNOTAVAIL;
	return 0;
}

struct ibv_qp *pd_new_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = {.max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		return NULL;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PD_PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	int err = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (err) {
		ibv_destroy_qp(qp);
		errno = err;
		return NULL;
	}
	return qp;
}

int pd_connect(struct ibv_qp *qp, const struct pd_addr *local, const struct pd_addr *remote, int gid_index, int mtu,
	       int timeout, int retry)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = remote->qpn,
		.rq_psn = remote->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.dlid = remote->lid, .port_num = PD_PORT},
	};
	if (gid_index >= 0) {
		rtr.ah_attr.is_global = 1;
		rtr.ah_attr.grh.sgid_index = gid_index;
		rtr.ah_attr.grh.hop_limit = 64;
		memcpy(rtr.ah_attr.grh.dgid.raw, remote->gid, sizeof(remote->gid));
	}
	int err = ibv_modify_qp(qp, &rtr,
				IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.timeout = timeout,
		.retry_cnt = retry,
		.rnr_retry = 7,
		.sq_psn = local->psn,
		.max_rd_atomic = 1,
	};
	return ibv_modify_qp(qp, &rts,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC);
}

/* pd_post posts in lists of PD_LIST. What was posted is counted by bad_wr: a
 * device may take more than the queue was asked for. */
int pd_post(struct ibv_qp *qp, const struct pd_send *list, int n, int *posted)
{
	*posted = 0;
	while (*posted < n) {
		struct ibv_send_wr wr[PD_LIST];
		struct ibv_sge sge[PD_LIST];
		int k = n - *posted < PD_LIST ? n - *posted : PD_LIST;
		memset(wr, 0, sizeof(wr));
		for (int i = 0; i < k; i++) {
			const struct pd_send *s = &list[*posted + i];
			sge[i] = (struct ibv_sge){.addr = s->local, .length = s->length, .lkey = s->lkey};
			wr[i].wr_id = s->id;
			wr[i].sg_list = &sge[i];
			wr[i].num_sge = 1;
			wr[i].opcode = s->op == PD_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
			wr[i].send_flags = IBV_SEND_SIGNALED;
			wr[i].wr.rdma.remote_addr = s->remote;
			wr[i].wr.rdma.rkey = s->rkey;
			wr[i].next = i + 1 < k ? &wr[i + 1] : NULL;
		}
		struct ibv_send_wr *bad = NULL;
		int err = ibv_post_send(qp, wr, &bad);
		if (err) {
			*posted += bad ? (int)(bad - wr) : 0;
			return err;
		}
		*posted += k;
	}
	return 0;
}

int pd_bind(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mr *mr, uint64_t at, uint64_t len, uint64_t id, uint32_t *rkey)
{
	struct ibv_send_wr *bad = NULL, wr = {
		.wr_id = id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {
			.mw = mw,
			.rkey = ibv_inc_rkey(mw->rkey),
			.bind_info = {.mr = mr, .addr = at, .length = len, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE},
		},
	};
	*rkey = wr.bind_mw.rkey;
	int err = ibv_post_send(qp, &wr, &bad);
	if (!err)
		mw->rkey = *rkey;
	return err;
}

int pd_invalidate(struct ibv_qp *qp, uint32_t rkey, uint64_t id)
{
	struct ibv_send_wr *bad = NULL, wr = {
		.wr_id = id,
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
		.invalidate_rkey = rkey,
	};
	return ibv_post_send(qp, &wr, &bad);
}

int pd_poll(struct ibv_cq *cq, struct pd_done *out, int max)
{
	struct ibv_wc wc[PD_LIST];
	int n = ibv_poll_cq(cq, max < PD_LIST ? max : PD_LIST, wc);
	for (int i = 0; i < n; i++)
		out[i] = (struct pd_done){.id = wc[i].wr_id, .status = wc[i].status, .vendor = wc[i].vendor_err};
	return n;
}

/* pd_event takes one event of a channel that does not block. */
int pd_event(struct ibv_comp_channel *ch)
{
	struct ibv_cq *cq;
	void *context;
	if (ibv_get_cq_event(ch, &cq, &context))
		return errno ? errno : EIO;
	ibv_ack_cq_events(cq, 1);
	return 0;
}

int pd_notify(struct ibv_cq *cq) { return ibv_req_notify_cq(cq, 0); }

int pd_fail(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

int pd_access_off(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .qp_access_flags = 0};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
}
