#ifndef PDLOG_VERBS_SHIM_H
#define PDLOG_VERBS_SHIM_H

#include <infiniband/verbs.h>
#include <stdint.h>

/* One work request, as Go fills it in: numbers only. */
struct pd_send {
	uint64_t id;
	uint64_t local;
	uint64_t remote;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t length;
	uint32_t op; /* PD_WRITE, PD_READ */
};

enum { PD_WRITE = 1, PD_READ = 2 };

/* One completion. */
struct pd_done {
	uint64_t id;
	uint32_t status;
	uint32_t vendor;
};

struct pd_addr {
	uint8_t gid[16];
	uint32_t qpn;
	uint32_t psn;
	uint16_t lid;
	uint16_t pad;
};

int pd_best_gid(struct ibv_context *ctx, struct pd_addr *addr, int *index, int *mtu);
struct ibv_qp *pd_new_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t depth);
int pd_connect(struct ibv_qp *qp, const struct pd_addr *local, const struct pd_addr *remote, int gid_index, int mtu,
	       int timeout, int retry);
int pd_post(struct ibv_qp *qp, const struct pd_send *list, int n, int *posted);
int pd_bind(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mr *mr, uint64_t at, uint64_t len, uint64_t id, uint32_t *rkey);
int pd_invalidate(struct ibv_qp *qp, uint32_t rkey, uint64_t id);
int pd_poll(struct ibv_cq *cq, struct pd_done *out, int max);
int pd_event(struct ibv_comp_channel *ch);
int pd_notify(struct ibv_cq *cq);
int pd_fail(struct ibv_qp *qp);
int pd_access_off(struct ibv_qp *qp);

#endif
