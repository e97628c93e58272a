/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator breaks, and how its ranks come to tell the same story. Whoever finds a cause first writes it where the others
 * look (its area, its sockets); whoever waits looks at the others each 50 ms and adopts what it finds, so one cause reaches all. */
#include "comm/comm.h"

#include "diag/log.h"
#include "os/os.h"

#include <stdio.h>
#include <string.h>

void hki_comm_break(hk_comm *comm, const hki_notice *n)
{
    if (comm->broken) return;
    comm->broken = true;
    comm->notice = *n;
    char text[HKI_TEXT];
    hki_notice_text(n, comm->peers, comm->shape.ranks, comm->shape.rank, text);
    snprintf(comm->error, sizeof comm->error, "rank %u: %.*s", comm->shape.rank, HKI_TEXT - 24, text);
    HKI_LOG(WARN, COLL, comm->shape.rank, "%s", text);
    if (comm->area.base) hki_area_fail(&comm->area, n);
    if (comm->tcp) comm->engine->remote->fail(comm->tcp, n);
    for (hk_request *t = comm->tasks, *next; t; t = next) {
        next = hki_task_next(t);
        if (t->kind != HKI_TASK_GROUP) hki_task_finish(t, (hk_status)n->status); /* groups end with their members */
    }
    for (uint32_t c = 0; c <= HKI_CHANNELS; c++) comm->channels[c].head = comm->channels[c].tail = NULL;
    comm->engine->progress++;
    hki_engine_wake(comm->engine);
}

static bool entered(hk_comm *comm, uint32_t rank, uint64_t seq, hki_record *r)
{
    if (hki_comm_local(comm, rank)) return hki_area_entered(&comm->area, rank, seq, r);
    return comm->tcp && comm->engine->remote->entered(comm->tcp, rank, seq, r);
}

/* The latest call of rank that both it and this rank are known to have entered. */
static bool latest_common(hk_comm *comm, uint32_t rank, hki_record *r)
{
    const uint64_t oldest = comm->seq > HKI_KNOWN ? comm->seq - HKI_KNOWN : 0;
    for (uint64_t seq = comm->seq; seq > oldest; seq--)
        if (entered(comm, rank, seq, r)) return true;
    return false;
}

/* Fingerprints are chained, so the calls that differ first are those before which all agree: found by walking back through what is
 * remembered of both ranks. */
static void first_difference(hk_comm *comm, uint32_t culprit, uint64_t seq, hki_cause *c)
{
    hki_record mine, theirs;
    /* A rank may send a moment before it tells what: worth a moment's wait. */
    for (int tries = 0; tries < 1000 && !entered(comm, culprit, seq, &theirs); tries++) hki_yield();
    for (; seq; seq--) {
        const bool know_mine = hki_area_entered(&comm->area, comm->shape.rank, seq, &mine), know_theirs = entered(comm, culprit, seq, &theirs);
        if (know_mine && know_theirs && mine.fingerprint == theirs.fingerprint) return;
        if (know_mine) {
            c->seq = seq;
            memcpy(&c->mine, mine.body, sizeof c->mine);
            c->their_seq = 0;
        }
        if (know_theirs) {
            c->their_seq = seq;
            memcpy(&c->theirs, theirs.body, sizeof c->theirs);
        }
        if (!know_mine || !know_theirs) return;
    }
}

void hki_comm_fail(hk_comm *comm, hk_status status, uint32_t culprit, const hk_request *t, uint64_t now_us)
{
    hki_notice n = {.status = status, .culprit = culprit};
    hki_cause c = {.reporter = comm->shape.rank};
    if (t && t->desc) {
        c.seq = t->seq;
        c.mine = *t->desc;
        if (t->started && t->entry) {
            c.step = t->run.steps_done;
            c.steps = t->entry->program.windows * t->entry->plan.nsteps;
        }
        if (t->issued_us && now_us > t->issued_us) c.waited_ms = (uint32_t)((now_us - t->issued_us) / 1000);
        if (status == HK_MISMATCH && t->kind == HKI_TASK_COLLECTIVE) first_difference(comm, culprit, t->seq, &c);
    }
    memcpy(n.body, &c, sizeof c);
    hki_comm_break(comm, &n);
}

/* ---- Looking after the others ------------------------------------------------------------------------------------------ */

static bool adopt(hk_comm *comm, uint64_t now_us)
{
    hki_notice n;
    for (uint32_t r = 0; comm->area.base && r < comm->shape.ranks; r++) {
        if (r == comm->shape.rank || !hki_comm_local(comm, r)) continue;
        hki_area_head *h = hki_area_of(&comm->area, r);
        if (!h || atomic_load(&h->uid) != comm->shape.uid || atomic_load(&h->state) != HKI_AREA_FAILED) continue;
        n = h->notice;
        if (n.status > HK_TIMEOUT || n.status < HK_CORRUPT || n.culprit >= comm->shape.ranks) continue;
        hki_comm_break(comm, &n);
        return true;
    }
    if (comm->tcp && comm->engine->remote->notice(comm->tcp, &n, now_us) && n.culprit < comm->shape.ranks) {
        if (n.status == HK_PEER_LOST || n.status == HK_PEER_LEFT) { /* made here: say in which operation */
            hki_cause c;
            memcpy(&c, n.body, sizeof c);
            if (c.mine.op == 0 && c.seq == 0) hki_comm_fail(comm, (hk_status)n.status, n.culprit, comm->tasks, now_us);
        }
        if (!comm->broken) hki_comm_break(comm, &n);
        return true;
    }
    return false;
}

/* Gone for good, by shared memory's signs: its area withdrawn, or its process ended. */
static hk_status fate(hk_comm *comm, uint32_t rank)
{
    const hki_view *v = comm->peers[rank]->view;
    if (hki_area_left(&comm->area, rank)) return HK_PEER_LEFT;
    if (v && v->fd >= 0 && !hki_life_held(v->fd)) return HK_PEER_LOST;
    return HK_OK;
}

static uint32_t waited_for(const hk_request *t)
{
    if (t->kind == HKI_TASK_SEND || t->kind == HKI_TASK_RECV) return hki_p2p_waiting_for(t);
    return t->started ? t->run.waiting_for : UINT32_MAX;
}

/* Has any rank's history left ours? Chained fingerprints make one comparison a rank enough. false: the communicator broke. */
static bool compare_histories(hk_comm *comm, uint64_t now_us)
{
    hki_record mine, theirs;
    for (uint32_t r = 0; r < comm->shape.ranks; r++) {
        if (r == comm->shape.rank || !latest_common(comm, r, &theirs)) continue;
        if (!hki_area_entered(&comm->area, comm->shape.rank, theirs.seq, &mine) || mine.fingerprint == theirs.fingerprint) continue;
        const hk_request at = {.comm = comm, .kind = HKI_TASK_COLLECTIVE, .seq = theirs.seq, .desc = (const hki_desc *)(const void *)mine.body};
        hki_comm_fail(comm, HK_MISMATCH, r, &at, now_us);
        return false;
    }
    return true;
}

/* One look at the rank a task waits for: is it there? */
static bool look_after(hk_comm *comm, const hk_request *t, uint32_t rank, uint64_t now_us)
{
    if (rank >= comm->shape.ranks || rank == comm->shape.rank) return true;
    if (hki_comm_local(comm, rank)) {
        const hk_status status = fate(comm, rank);
        if (status) {
            if (!adopt(comm, now_us)) hki_comm_fail(comm, status, rank, t, now_us);
            return false;
        }
    } else if (comm->tcp) {
        if (comm->engine->remote->left(comm->tcp, rank)) {
            if (!adopt(comm, now_us)) hki_comm_fail(comm, HK_PEER_LEFT, rank, t, now_us);
            return false;
        }
        comm->engine->remote->probe(comm->tcp, rank, now_us);
    }
    return true;
}

/* Does rank wait itself, and was it seen to within the last moments? Then for whom. */
static bool waits_itself(hk_comm *comm, uint32_t rank, uint64_t now_us, uint32_t *waiting_for)
{
    if (!hki_comm_local(comm, rank)) return comm->tcp && comm->engine->remote->waits(comm->tcp, rank, now_us, waiting_for);
    const hki_area_head *h = hki_area_of(&comm->area, rank);
    if (!h || hki_area_left(&comm->area, rank)) return false;
    *waiting_for = atomic_load(&h->now.waiting_for);
    return atomic_load(&h->now.state) == 2 && atomic_load(&h->now.seen_us) + 250000 >= now_us;
}

/* Who is to blame for a wait: a rank that itself waits is not; who it waits for may be. */
static uint32_t root_of(hk_comm *comm, uint32_t rank, uint64_t now_us)
{
    uint32_t at = rank, next;
    for (uint32_t k = 0; k < comm->shape.ranks && waits_itself(comm, at, now_us, &next); k++) {
        if (next >= comm->shape.ranks || next == comm->shape.rank) return at;
        at = next;
    }
    return at;
}

static void stall_line(hk_comm *comm, hk_request *t, uint32_t rank, uint64_t now_us)
{
    char what[112], who[160];
    hki_desc_text(t->desc, t->seq, what, sizeof what);
    hki_rank_text(comm->peers, comm->shape.ranks, rank, who, sizeof who);
    const uint32_t steps = t->entry ? t->entry->program.windows * t->entry->plan.nsteps : 1;
    HKI_LOG(WARN, COLL, comm->shape.rank, "rank %u: %s has waited %.0f s for %s, %u of %u steps done", comm->shape.rank, what,
            (double)(now_us - t->issued_us) / 1e6, who, t->started ? t->run.steps_done : 0, steps);
    t->stalls++;
    t->next_stall_us = t->stalls < 3 ? t->issued_us + (comm->settings.stall_us << t->stalls) : UINT64_MAX;
}

/* Slow enough to tell everything: where the operation is, for whom it waits, and to those who look at the area too. */
static void show(hk_comm *comm, const hk_request *t, uint32_t waiting, uint64_t now_us)
{
    hki_now *now = comm->now, *area = &hki_area_mine(&comm->area)->now;
    atomic_store_explicit(&now->waiting_for, waiting, memory_order_relaxed);
    atomic_store_explicit(&now->state, 2, memory_order_relaxed);
    atomic_store_explicit(&now->since_us, t->issued_us, memory_order_relaxed);
    atomic_store_explicit(&now->seen_us, now_us, memory_order_relaxed);
    atomic_store_explicit(&now->op, t->desc->op, memory_order_relaxed);
    atomic_store_explicit(&now->count, t->desc->count, memory_order_relaxed);
    atomic_store_explicit(&now->bytes, hki_max(t->in_bytes, t->out_bytes), memory_order_relaxed);
    if (t->kind == HKI_TASK_COLLECTIVE) {
        atomic_store_explicit(&now->step, t->run.steps_done, memory_order_relaxed);
        atomic_store_explicit(&now->steps, t->entry->program.windows * t->entry->plan.nsteps, memory_order_relaxed);
    }
    if (now == area) return;
    const _Atomic uint64_t *from = (const _Atomic uint64_t *)now;
    _Atomic uint64_t *to = (_Atomic uint64_t *)area;
    for (size_t i = 0; i < offsetof(hki_now, pad) / 8; i++)
        atomic_store_explicit(&to[i], atomic_load_explicit(&from[i], memory_order_relaxed), memory_order_relaxed);
}

/* false: the communicator broke. */
static bool check_task(hk_comm *comm, hk_request *t, uint64_t now_us)
{
    if (!t->issued_us) {
        t->issued_us = now_us;
        t->next_stall_us = now_us + comm->settings.stall_us;
    }
    const uint32_t rank = waited_for(t);
    const bool active = t->kind == HKI_TASK_SEND || t->kind == HKI_TASK_RECV || t->started;
    if (active) {
        show(comm, t, rank, now_us);
        if (comm->tcp && rank < comm->shape.ranks) comm->engine->remote->tell_wait(comm->tcp, root_of(comm, rank, now_us), now_us);
        if (!look_after(comm, t, rank, now_us)) return false;
        if (now_us >= t->next_stall_us) stall_line(comm, t, rank, now_us);
    }
    if (now_us - t->issued_us < t->timeout_us) return true;
    if (!adopt(comm, now_us)) hki_comm_fail(comm, HK_TIMEOUT, rank < comm->shape.ranks ? root_of(comm, rank, now_us) : comm->shape.rank, t, now_us);
    return false;
}

void hki_comm_check(hk_comm *comm, uint64_t now_us)
{
    if (comm->broken) return;
    if (atomic_load(&comm->aborted)) {
        hki_comm_fail(comm, HK_ABORTED, comm->shape.rank, comm->tasks, now_us);
        return;
    }
    if (adopt(comm, now_us) || !compare_histories(comm, now_us)) return;
    if (comm->leaving && !look_after(comm, comm->tasks, hki_comm_undrained(comm), now_us)) return;
    for (hk_request *t = comm->tasks; t; t = t->next)
        if (t->kind != HKI_TASK_GROUP && !check_task(comm, t, now_us)) return;
}

bool hki_comm_alarmed(hk_comm *comm)
{
    if (atomic_load_explicit(&comm->aborted, memory_order_relaxed)) return true;
    if (comm->tcp) {
        hki_notice n;
        comm->engine->remote->progress(comm->engine->tcp, &comm->engine->paced);
        if (comm->engine->remote->notice(comm->tcp, &n, 0)) return true;
    }
    for (uint32_t r = 0; r < comm->shape.ranks; r++) {
        const hki_area_head *h = (const hki_area_head *)comm->area.there[r];
        if (h && atomic_load_explicit(&h->state, memory_order_relaxed) == HKI_AREA_FAILED) return true;
    }
    return false;
}

HK_API hk_status hk_comm_abort(hk_comm *comm)
{
    const hk_status status = hki_comm_usable(comm); /* a forked child must not end its parent's */
    if (status) return status;
    /* No lock: whoever holds it may be stuck. The waiting threads look at the flag at the end of their slice, or when rung. */
    atomic_store(&comm->aborted, true);
    hki_bell_ring(comm->engine->bell, comm->engine->bell_name);
    if (!hki_lock_try(&comm->engine->lock)) return HK_OK;
    hki_comm_check(comm, hki_now_us());
    hki_lock_give(&comm->engine->lock);
    return HK_OK;
}
