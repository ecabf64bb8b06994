/* Grant, abort, ack, generation and fence of one decode node and RANKS prefill
 * ranks.  README.md says what is modelled and what is not.
 *
 * The network is the worst there is: a message that was sent once may arrive
 * at any time, any number of times, in any order, or never.  So it is a set
 * that only grows, and no process waits for it.  A rank that is gone for good
 * still has its writes under way.
 *
 * Bounds: USES incarnations of one room number, on PAGES pages, WRITES writes
 * a rank and incarnation, RESTARTS restarts and DEATHS deaths in all.
 *
 * A mutant is a -D name (MUTANTS in model_test.go): the model has to fail.
 * With -DTRACE the visible actions follow a trace of the real core (trace.h).
 */
#ifndef USES
#define USES 2
#endif
#ifndef PAGES
#define PAGES 1
#endif
#ifndef WRITES
#define WRITES 1
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define RANKS 2
#define C(u, r) ((u) * RANKS + (r))
#define CELLS ((USES + 1) * RANKS)

/* the visible actions, as the core's log names them (trace_test.go) */
#define A_OPEN 1      /* RoomOpened */
#define A_GRANT 2     /* PublishStarted */
#define A_ABORT 3     /* AbortArmed */
#define A_ACKED 4     /* AckReceived, counted */
#define A_FENCED 5    /* Fenced */
#define A_SUCCESS 6   /* RoomSucceeded */
#define A_RELEASE 7   /* Released */
#define A_META 8      /* MetadataReceived */
#define A_POST 9      /* ChunkPosted */
#define A_STOP 10     /* AbortReceived */
#define A_ACK 11      /* AckSent, with a proof */
#define A_OK 12       /* StatusSent, success */
#define A_RESTART 13  /* NodeStarted on the prefill side, not after a clean stop */

#ifdef TRACE
c_decl { \#include "trace.h" }
short pos = 0;
byte wk = 0, wu = 0, wr = 0;    /* the action that the trace has next */
#define ACT(k, u, r) (wk == (k) && wu == (u) && wr == (r))
#define STEP c_code { now.pos++; now.wk = step_kind(now.pos); now.wu = step_use(now.pos); now.wr = step_rank(now.pos); }
#define SUBSET
#else
#define ACT(k, u, r) true
#define STEP skip
#endif

/* ---- the decode node: all of it is on its log, so a restart changes nothing */
#define NONE 0
#define OPEN 1
#define GOOD 2     /* succeeded */
#define ABORTED 3  /* failed and armed */
#define FREE 4
byte ust[USES + 1];
byte where[USES + 1];
byte owner[PAGES];            /* use that the page belongs to, 0 = free */
byte last = 0;                /* newest use */
byte gen = 0;                 /* newest generation */
byte ugen[USES + 1];          /* generation that the use was armed with */
byte need[USES + 1];          /* ranks that serve it, a bit each; times 4: those that owe it bytes, a dummy does not */
bool granted[CELLS], evid[CELLS], fencing[CELLS], fenced[CELLS];

/* ---- the prefill ranks */
#define LIVE 1     /* has the metadata */
#define ENDED 2    /* posts nothing more; or was never seen, and is refused */
#define OLD 3      /* of an earlier life that may still write */
byte pst[CELLS];
bool durable[CELLS];          /* MetadataReceived is on disk */
bool drained[CELLS];          /* Drained or success is on disk */
byte posted[CELLS];
byte open[CELLS];             /* tokens that the rank knows to be open */
byte mark[RANKS];             /* watermark: what ended uses were dropped */
bool gone[RANKS];

/* ---- the wire: what was ever sent */
bool mGrant[CELLS], mOk[CELLS], mAbort[USES + 1];
bool mAck[CELLS];             /* by generation and rank */

/* ---- the NIC's truth */
byte inflight[CELLS];
byte restarts = 0, deaths = 0;
bool revived = false, rebooted = false;

#define GRANTEDTO(u, r) granted[C(u, r)]
#ifdef ONE_RANK
#define EVIDENCE(u) (evid[C(u, 0)] || evid[C(u, 1)])
#else
#ifdef COUNTED
#define EVIDENCE(u) (count[u] >= granted[C(u, 0)] + granted[C(u, 1)])
byte count[USES + 1];
#else
#define EVIDENCE(u) ((!granted[C(u, 0)] || evid[C(u, 0)]) && (!granted[C(u, 1)] || evid[C(u, 1)]))
#endif
#endif

/* a room number is opened again once its earlier use has ended; an ended use
 * may still hold its page */
#define OPENUSE(u, p, n) :: atomic { last == u - 1 && ust[u - 1] != OPEN && owner[p] == 0 && ACT(A_OPEN, u, n) -> \
	last = u; ust[u] = OPEN; where[u] = p; owner[p] = u; need[u] = n; STEP }

#define GRANT(u, r) :: atomic { ust[u] == OPEN && !granted[C(u, r)] && (need[u] & (1 << r)) && ACT(A_GRANT, u, r) -> \
	granted[C(u, r)] = true; mGrant[C(u, r)] = true; STEP }

#define ABORT(u) :: atomic { ust[u] == OPEN && (granted[C(u, 0)] || granted[C(u, 1)]) && ACT(A_ABORT, u, 0) -> \
	ust[u] = ABORTED; gen++; ugen[u] = gen; mAbort[u] = true; STEP }

/* nothing was published: released at once (release rule 3) */
#define UNPUBLISHED(u) :: atomic { ust[u] == OPEN && !granted[C(u, 0)] && !granted[C(u, 1)] && ACT(A_RELEASE, u, 0) -> \
	ust[u] = FREE; owner[where[u]] = 0; STEP }

#define SUCCESS(u) :: atomic { ust[u] == OPEN && ACT(A_SUCCESS, u, 0) && \
	(!(need[u] & 4) || mOk[C(u, 0)]) && (!(need[u] & 8) || mOk[C(u, 1)]) -> ust[u] = GOOD; STEP }

#ifdef NO_GEN
#if USES > 2
#define ACKIN(u, r) (mAck[C(1, r)] || mAck[C(2, r)] || mAck[C(3, r)])
#else
#define ACKIN(u, r) (mAck[C(1, r)] || mAck[C(2, r)])
#endif
#else
#define ACKIN(u, r) mAck[C(ugen[u], r)]
#endif
#ifdef COUNTED   /* duplicates are counted like answers of others */
#define ACKED(u, r) :: atomic { ust[u] == ABORTED && granted[C(u, r)] && count[u] < 2 && ACKIN(u, r) -> count[u]++ }
#else
#define ACKED(u, r) :: atomic { ust[u] == ABORTED && granted[C(u, r)] && !evid[C(u, r)] && ACKIN(u, r) && ACT(A_ACKED, u, r) -> \
	evid[C(u, r)] = true; STEP }
#endif

#define RELEASE(u) :: atomic { (ust[u] == GOOD || ust[u] == ABORTED && EVIDENCE(u)) && ACT(A_RELEASE, u, 0) -> \
	ust[u] = FREE; owner[where[u]] = 0; STEP }

/* the lease's timer peeks at nothing: it may be over at any time */
#ifdef NO_TIMER
#define FENCE(u, r)
#else
#define FENCE(u, r) \
:: atomic { ust[u] == ABORTED && granted[C(u, r)] && !evid[C(u, r)] && ACT(A_FENCED, u, r) -> FENCESTART(u, r) } \
FENCEDLATE(u, r)
#endif
#ifdef NO_FENCE
#define FENCEDLATE(u, r)
#define FENCESTART(u, r) evid[C(u, r)] = true
#else
#ifdef EARLY_FENCE   /* taken as done before it is proven */
#define FENCEDLATE(u, r) :: atomic { fencing[C(u, r)] && !fenced[C(u, r)] -> fenced[C(u, r)] = true }
#define FENCESTART(u, r) fencing[C(u, r)] = true; evid[C(u, r)] = true
#else
#define FENCEDLATE(u, r)
#define FENCESTART(u, r) fenced[C(u, r)] = true; evid[C(u, r)] = true; STEP
#endif
#endif

#if USES > 2
#define USES_OF(X) X(1) X(2) X(3)
#define CELLS_OF(X) X(1, 0) X(1, 1) X(2, 0) X(2, 1) X(3, 0) X(3, 1)
#define RANK_OF(X, r) X(1, r) X(2, r) X(3, r)
#else
#define USES_OF(X) X(1) X(2)
#define CELLS_OF(X) X(1, 0) X(1, 1) X(2, 0) X(2, 1)
#define RANK_OF(X, r) X(1, r) X(2, r)
#endif
#ifdef SUBSET
#define MASKS(u, p) OPENUSE(u, p, 5) OPENUSE(u, p, 10) OPENUSE(u, p, 15) OPENUSE(u, p, 7) OPENUSE(u, p, 11)
#else
#define MASKS(u, p) OPENUSE(u, p, 15)
#endif
#if PAGES > 1
#define OPENED(u) MASKS(u, 0) MASKS(u, 1)
#else
#define OPENED(u) MASKS(u, 0)
#endif

proctype Decode()
{
end:	do
	USES_OF(OPENED)
	CELLS_OF(GRANT)
	USES_OF(ABORT)
	USES_OF(UNPUBLISHED)
	USES_OF(SUCCESS)
	CELLS_OF(ACKED)
	USES_OF(RELEASE)
	CELLS_OF(FENCE)
#ifdef GEN_RESTARTS
	:: atomic { !rebooted && gen > 0 -> rebooted = true; gen = 0 }
#endif
	od
}

/* metadata: taken once; refused for what has ended here */
#ifdef NO_TOMB
#define META(u, r) :: atomic { !gone[r] && mGrant[C(u, r)] && (pst[C(u, r)] == NONE || pst[C(u, r)] == ENDED && posted[C(u, r)] == 0 && !revived) -> \
	if :: pst[C(u, r)] == ENDED -> revived = true; drained[C(u, r)] = false :: else fi; pst[C(u, r)] = LIVE; durable[C(u, r)] = true }
#else
#define META(u, r) :: atomic { !gone[r] && mGrant[C(u, r)] && pst[C(u, r)] == NONE && u > mark[r] && ACT(A_META, u, r) -> \
	pst[C(u, r)] = LIVE; SYNCED(u, r); STEP }
#endif
#ifdef POST_EARLY
#define SYNCED(u, r) skip
#else   /* metadata that a crash takes before it is on disk is as good as lost on the way */
#define SYNCED(u, r) durable[C(u, r)] = true
#endif
#define SYNC(u, r) :: atomic { !gone[r] && pst[C(u, r)] == LIVE && !durable[C(u, r)] -> durable[C(u, r)] = true }

/* MetadataReceived is durable before the first write */
#ifdef POST_EARLY
#define MAYPOST(u, r) true
#else
#define MAYPOST(u, r) durable[C(u, r)]
#endif
#define POST(u, r) :: atomic { !gone[r] && pst[C(u, r)] == LIVE && MAYPOST(u, r) && posted[C(u, r)] < WRITES && ACT(A_POST, u, r) -> \
	posted[C(u, r)]++; inflight[C(u, r)]++; open[C(u, r)]++; STEP }

#ifdef TRACE   /* how many writes a rank owes is not in the model */
#define WHOLE(u, r) true
#else
#define WHOLE(u, r) posted[C(u, r)] == WRITES
#endif
#define OK(u, r) :: atomic { !gone[r] && pst[C(u, r)] == LIVE && durable[C(u, r)] && WHOLE(u, r) && open[C(u, r)] == 0 && ACT(A_OK, u, r) -> \
	pst[C(u, r)] = ENDED; drained[C(u, r)] = true; mOk[C(u, r)] = true; STEP }

/* its own end of the room: an error, its engine's abort, a sibling's ABORT */
#define FAIL(u, r) :: atomic { !gone[r] && pst[C(u, r)] == LIVE -> pst[C(u, r)] = ENDED }

/* ABORT: the room ends first; never seen leaves a receipt */
#define STOP(u, r) :: atomic { !gone[r] && mAbort[u] && (pst[C(u, r)] == LIVE || pst[C(u, r)] == NONE && u > mark[r]) -> \
	pst[C(u, r)] = ENDED }
#define REPEAT(u, r) :: atomic { !gone[r] && mAbort[u] && (pst[C(u, r)] == ENDED || pst[C(u, r)] == OLD || u <= mark[r]) && ACT(A_STOP, u, r) -> STEP }

#ifdef EARLY_ACK
#define MAYACK(u, r) (pst[C(u, r)] == ENDED || pst[C(u, r)] == NONE && u <= mark[r])
#else
#ifdef VOUCH
#define MAYACK(u, r) (pst[C(u, r)] == ENDED && open[C(u, r)] == 0 || pst[C(u, r)] == OLD || pst[C(u, r)] == NONE && u <= mark[r])
#else
#define MAYACK(u, r) (pst[C(u, r)] == ENDED && (drained[C(u, r)] || open[C(u, r)] == 0) || pst[C(u, r)] == NONE && u <= mark[r])
#endif
#endif
#define ACK(u, r) :: atomic { !gone[r] && mAbort[u] && MAYACK(u, r) && (!mAck[C(ugen[u], r)] || AGAIN) && ACT(A_ACK, u, r) -> \
	if :: pst[C(u, r)] == ENDED -> drained[C(u, r)] = true :: else fi; mAck[C(ugen[u], r)] = true; STEP }
#ifdef TRACE
#define AGAIN true
#else
#define AGAIN false
#endif

/* a receipt is dropped: the watermark rises */
#ifdef TOMB_BACK
#define DROP(u, r) :: atomic { !gone[r] && pst[C(u, r)] == ENDED && drained[C(u, r)] -> pst[C(u, r)] = NONE; drained[C(u, r)] = false; durable[C(u, r)] = false; mark[r] = u }
#else
#define DROP(u, r) :: atomic { !gone[r] && pst[C(u, r)] == ENDED && drained[C(u, r)] -> \
	pst[C(u, r)] = NONE; drained[C(u, r)] = false; durable[C(u, r)] = false; mark[r] = (mark[r] > u -> mark[r] : u) }
#endif

/* a crash and a restart on the rank's log */
#ifdef RESTART_PROOF
#define PROOF(u, r) if :: ust[u] == ABORTED && granted[C(u, r)] -> evid[C(u, r)] = true :: else fi;
#else
#define PROOF(u, r)
#endif
#ifdef FORGET
#define KEPT(u, r) pst[C(u, r)] = NONE; durable[C(u, r)] = false; drained[C(u, r)] = false
#else
#define KEPT(u, r) skip
#endif
#define LOST(u, r) \
	if :: pst[C(u, r)] == ENDED && drained[C(u, r)] -> KEPT(u, r) \
	:: (pst[C(u, r)] == LIVE || pst[C(u, r)] == ENDED && !drained[C(u, r)]) && durable[C(u, r)] -> pst[C(u, r)] = OLD \
	:: (pst[C(u, r)] == LIVE || pst[C(u, r)] == ENDED && !drained[C(u, r)]) && !durable[C(u, r)] -> pst[C(u, r)] = NONE \
	:: else fi; open[C(u, r)] = 0; PROOF(u, r)
#define RESTART(r) :: atomic { !gone[r] && restarts < RESTARTS && ACT(A_RESTART, 0, r) -> restarts++; RANK_OF(LOST, r) STEP }
#define DIE(r) :: atomic { !gone[r] && deaths < DEATHS -> gone[r] = true; deaths++ }

/* what a run leaves out, so that it stays small */
#ifdef POST_EARLY
#define SYNCS(u, r) SYNC(u, r)
#else
#define SYNCS(u, r)
#endif
#if defined(DROPPING) || defined(TRACE)
#define DROPS(u, r) DROP(u, r)
#else
#define DROPS(u, r)
#endif
#if defined(FAILING) || defined(TRACE)
#define FAILS(u, r) FAIL(u, r)
#else
#define FAILS(u, r)
#endif
#ifdef TRACE
#define REPEATS(u, r) REPEAT(u, r)
#else
#define REPEATS(u, r)
#endif

#define RANK(r) \
	RANK_OF(META, r) \
	RANK_OF(SYNCS, r) \
	RANK_OF(POST, r) \
	RANK_OF(OK, r) \
	RANK_OF(FAILS, r) \
	RANK_OF(STOP, r) \
	RANK_OF(REPEATS, r) \
	RANK_OF(ACK, r) \
	RANK_OF(DROPS, r) \
	RESTART(r) \
	DIE(r)
proctype Prefill0()
{
end:	do
	RANK(0)
	od
}

proctype Prefill1()
{
end:	do
	RANK(1)
	od
}

/* THE invariant (I1): a write lands only while its page belongs to its use,
 * unless it bounces off a revoked key */
#define LAND(u, r) :: atomic { inflight[C(u, r)] > 0 -> \
	assert(fenced[C(u, r)] || owner[where[u]] == u); \
	inflight[C(u, r)]--; if :: open[C(u, r)] > 0 -> open[C(u, r)]-- :: else fi }

proctype Nic()
{
end:	do
	CELLS_OF(LAND)
	od
}

#ifdef TRACE
proctype Watch() { wk == 255 -> assert(false) }   /* the model has done all that the core did */
init { atomic { c_code { now.wk = step_kind(0); now.wu = step_use(0); now.wr = step_rank(0); }; run Watch(); run Decode(); run Prefill0(); run Prefill1(); run Nic() } }
#else
init { atomic { run Decode(); run Prefill0(); run Prefill1(); run Nic() } }
/* every aborted use gives its page back (I2) */
#ifdef LIVENESS
ltl released { ([] (ust[1] == ABORTED -> <> (ust[1] == FREE))) && ([] (ust[USES] == ABORTED -> <> (ust[USES] == FREE))) }
#endif
#endif
