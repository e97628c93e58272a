/* SPDX-License-Identifier: Apache-2.0
 * The life of a task: made, submitted (its sequence is fixed), started when its channel and its memory are free, run until done,
 * finished, recycled. */
#include "comm/comm.h"

#include "os/os.h"

#include <string.h>

hk_request *hki_task_new(hk_comm *comm, hki_task_kind kind)
{
    hk_request *t = comm->free_tasks;
    if (t) comm->free_tasks = t->next;
    else if (!(t = hki_alloc(sizeof *t))) return NULL;
    t->comm = comm;
    t->next = t->prev = t->queue = t->group = NULL;
    t->pending = 0;
    t->kind = (uint8_t)kind;
    t->channel = 0;
    t->started = t->finished = t->held = t->calling = false;
    t->after = NULL;
    t->after_count = 0;
    t->event = NULL;
    t->done = NULL;
    t->source = NULL;
    t->status = HK_OK;
    t->entry = NULL;
    t->desc = NULL;
    t->in_bytes = t->out_bytes = 0;
    t->in = NULL;
    t->out = NULL;
    t->issued_us = t->next_stall_us = 0;
    t->stalls = 0;
    t->p2p = HKI_P2P_NEW;
    t->moved = 0;
    return t;
}

void hki_task_recycle(hk_request *t)
{
    hk_comm *comm = t->comm;
    t->next = comm->free_tasks;
    comm->free_tasks = t;
}

static void publish(hk_comm *comm, const hk_request *t)
{
    hki_now *now = comm->now;
    if (HKI_UNLIKELY(comm->seen != NULL)) hki_seen_publish(t);
    else hki_area_enter(&comm->area, t->seq, t->fingerprint, (const uint64_t *)(const void *)t->desc, sizeof *t->desc / 8);
    atomic_store_explicit(&now->op, t->desc->op, memory_order_relaxed);
    atomic_store_explicit(&now->dtype, t->desc->dtype, memory_order_relaxed);
    atomic_store_explicit(&now->count, t->desc->count, memory_order_relaxed);
    atomic_store_explicit(&now->seq, t->seq, memory_order_relaxed);
    atomic_store_explicit(&now->state, 1, memory_order_relaxed);
    if (!comm->tcp) return;
    hki_record r = {.seq = t->seq, .fingerprint = t->fingerprint};
    memcpy(r.body, t->desc, sizeof *t->desc);
    comm->engine->remote->enter(comm->tcp, &r);
}

/* The sequence of a collective, and with it its channel, is fixed here. Fingerprints are chained: one call that differed makes every later
 * message differ, so it cannot pass unnoticed for long. They are well mixed, so a polynomial of them will do: it differs wherever one of
 * them does, and, as CHAIN - 1 is twice an odd number, where two have changed places. */
#define CHAIN 0xd1342543de82ef97u
static inline void number(hk_comm *comm, hk_request *t, const hki_entry *e)
{
    t->seq = ++comm->seq;
    t->channel = (uint8_t)(t->seq % HKI_CHANNELS);
    t->fingerprint = comm->chain = (comm->chain + e->fingerprint) * CHAIN;
}

/* Into the queues. */
static void enlist(hk_comm *comm, hk_request *t)
{
    if (t->kind == HKI_TASK_COLLECTIVE) {
        hki_channel *ch = &comm->channels[t->channel];
        if (ch->tail) ch->tail->queue = t;
        else ch->head = t;
        ch->tail = t;
    }
    t->prev = comm->last;
    if (comm->last) comm->last->next = t;
    else comm->tasks = t;
    comm->last = t;
    comm->unfinished++;
    comm->engine->unfinished++;
}

void hki_task_submit(hk_comm *comm, hk_request *t)
{
    if (HKI_UNLIKELY(comm->seen != NULL)) hki_seen_issued(t);
    if (t->kind == HKI_TASK_COLLECTIVE) {
        number(comm, t, t->entry);
        publish(comm, t);
    } else if (t->kind != HKI_TASK_GROUP) {
        t->channel = HKI_P2P;
        t->id = ++comm->next_id;
        comm->p2p_open++;
    }
    enlist(comm, t);
}

static bool touch(const uint8_t *a, size_t an, const uint8_t *b, size_t bn)
{
    return an && bn && (uintptr_t)a < (uintptr_t)b + bn && (uintptr_t)b < (uintptr_t)a + an;
}

bool hki_tasks_use(const hk_comm *comm, const void *memory, size_t bytes)
{
    for (const hk_request *t = comm->tasks; t; t = t->next)
        if (!t->finished && (touch(t->in, t->in_bytes, memory, bytes) || touch(t->out, t->out_bytes, memory, bytes))) return true;
    return false;
}

/* Read and read may go on together; anything with a write may not. Members of a group are one operation: no order among them. */
static bool conflict(const hk_request *a, const hk_request *b)
{
    return touch(a->out, a->out_bytes, b->out, b->out_bytes) || touch(a->out, a->out_bytes, b->in, b->in_bytes) ||
           touch(a->in, a->in_bytes, b->out, b->out_bytes);
}

bool hki_task_clear(hk_request *t)
{
    if (HKI_UNLIKELY(t->after != NULL) && !hki_after_come(t)) return false;
    for (const hk_request *e = t->prev; e; e = e->prev)
        if (!e->finished && (conflict(e, t) || (e->after && hki_after_waits(e)))) return false;
    return true;
}

static size_t temp_bytes(const hki_program *g) { return (g->windows < HKI_DEPTH ? 1 : HKI_DEPTH) * g->temp_bytes; }

static bool provide(const hki_store *have, hki_store *next, size_t want)
{
    if (want <= have->bytes || want <= next->bytes) return true;
    void *fresh = hki_alloc(want);
    if (!fresh) return false;
    hki_free(next->at);
    *next = (hki_store){fresh, want};
    return true;
}

bool hki_task_prepare(hk_comm *comm, hki_entry *e)
{
    const hki_program *g = &e->program;
    if (HKI_LIKELY(e->prepared)) return true;
    for (uint32_t c = 0; c < HKI_CHANNELS; c++) {
        hki_channel *ch = &comm->channels[c];
        if (!provide(&ch->temp, &ch->next_temp, temp_bytes(g)) || !provide(&ch->done, &ch->next_done, hki_program_done_bytes(g))) return false;
    }
    return e->prepared = true; /* stores only grow */
}

/* The channel is free: the larger store, if this task needs it, can take the place of the old one. */
static void *take(hki_store *have, hki_store *next, size_t want)
{
    if (want > have->bytes) {
        HKI_ASSERT(want <= next->bytes);
        hki_free(have->at);
        *have = *next;
        *next = (hki_store){NULL, 0};
    }
    return have->at;
}

static void lend(hk_comm *comm, hk_request *t)
{
    if (!(comm->engine->shares_memory || comm->tcp) || hki_max(t->in_bytes, t->out_bytes) < HKI_LEND) return;
    hki_run_lend(&t->run, t->in_bytes, t->out_bytes);
}

static void start(hk_comm *comm, hk_request *t)
{
    hki_channel *ch = &comm->channels[t->channel];
    const hki_program *g = &t->entry->program;
    void *temp = take(&ch->temp, &ch->next_temp, temp_bytes(g));
    void *done = take(&ch->done, &ch->next_done, hki_program_done_bytes(g));
    hki_run_start(&t->run, g, comm->ports[t->channel], t->in, t->out, temp, done, t->fingerprint);
    t->run.sources = ch->sources;
    t->run.places = ch->places;
    t->run.marks = ch->marks;
    t->started = true;
    if (HKI_UNLIKELY(comm->seen != NULL)) t->started_ns = hki_now_ns();
    lend(comm, t);
    t->run.far = !g->plan->call.in_place && (t->in_bytes + t->out_bytes) * comm->near_ranks > comm->engine->cache_bytes;
    if (t->run.far) t->run.flat = false;
    if (comm->settings.executor == HKI_EVENT) hki_run_hand_over(&t->run);
}

static void show_finished(hk_comm *comm, const hk_request *t)
{
    hki_now *now = comm->now;
    atomic_store_explicit(&now->finished, t->seq, memory_order_relaxed);
    atomic_store_explicit(&now->state, comm->unfinished ? 1 : 0, memory_order_relaxed);
    atomic_store_explicit(&now->waiting_for, UINT32_MAX, memory_order_relaxed);
}

static void count(hk_comm *comm, const hk_request *t)
{
    comm->operations++;
    comm->operation_bytes += hki_max(t->in_bytes, t->out_bytes);
}

void hki_task_settle(hk_request *t)
{
    if (t->calling) t->comm->calls--;
    t->calling = false;
    hki_event_of_task(t);
    hk_request *g = t->group;
    if (g || !t->held) hki_task_recycle(t);
    if (g && --g->pending == 0) hki_task_finish(g, g->status);
}

/* Its callback is due: whoever drives runs it, which is not here, under the lock. */
static void call_back(hk_request *t)
{
    hki_engine *e = t->comm->engine;
    t->calling = true;
    t->comm->calls++;
    t->next_called = NULL;
    *e->called_end = t;
    e->called_end = &t->next_called;
    hki_progress_need(e);
}

void hki_task_finish(hk_request *t, hk_status status)
{
    hk_comm *comm = t->comm;
    if (t->finished) return;
    t->finished = true;
    t->status = status;
    if (HKI_UNLIKELY(comm->seen != NULL)) hki_seen_finished(t, status);
    if (t->prev) t->prev->next = t->next;
    else comm->tasks = t->next;
    if (t->next) t->next->prev = t->prev;
    else comm->last = t->prev;
    comm->unfinished--;
    comm->engine->unfinished--;
    if (t->after) hki_after_forget(t);
    if (comm->engine->sleepers) hki_engine_wake(comm->engine);
    if (t->kind == HKI_TASK_COLLECTIVE) {
        hki_cache_unpin(t->entry);
        show_finished(comm, t);
    }
    if (t->kind == HKI_TASK_SEND || t->kind == HKI_TASK_RECV) comm->p2p_open--;
    if (t->kind != HKI_TASK_GROUP && !status) count(comm, t);
    if (t->group && status && !t->group->status) t->group->status = status;
    if (t->done) call_back(t);
    else hki_task_settle(t);
}

/* A rank that failed took back what it had lent: its reason is the reason. */
static void failed(hk_comm *comm, const hk_request *t)
{
    if (t->run.status == HK_ABORTED) hki_comm_check(comm, hki_now_us());
    if (!comm->broken) hki_comm_fail(comm, t->run.status, t->run.culprit, t, 0);
}

/* Runs the channel's tasks in order as far as they go. */
void hki_task_run_channel(hk_comm *comm, uint32_t channel)
{
    hki_channel *ch = &comm->channels[channel];
    while (ch->head && !comm->broken) {
        hk_request *t = ch->head;
        if (!t->started) {
            if (!hki_task_clear(t)) return;
            start(comm, t);
        }
        const uint32_t before = t->run.steps_done;
        const hki_run_state state = t->run.event ? hki_run_event(&t->run) : hki_run_inline(&t->run);
        if (t->run.steps_done != before) comm->engine->progress++;
        if (state == HKI_RUN_BLOCKED) return;
        if (state == HKI_RUN_FAILED) {
            failed(comm, t);
            return;
        }
        if (HKI_UNLIKELY(atomic_load_explicit(&comm->aborted, memory_order_relaxed))) {
            hki_comm_check(comm, hki_now_us()); /* what was under way when it was aborted does not succeed any more */
            return;
        }
        ch->head = t->queue;
        if (!ch->head) ch->tail = NULL;
        comm->engine->progress++;
        hki_task_finish(t, HK_OK);
    }
}

/* Begins again what last ran on that channel, if it was the same and its working memory is where it was; else anew. */
static inline void begin(hk_comm *comm, hk_request *t, hki_entry *e, const void *in, void *out, size_t in_bytes, size_t out_bytes)
{
    const hki_channel *ch = &comm->channels[t->channel];
    if (HKI_LIKELY(t->built == e->built && t->run.base[HKI_TEMP] == ch->temp.at && t->run.lent[0] == ch->done.at)) {
        t->in = in;
        t->out = out;
        hki_run_restart(&t->run, in, out, t->fingerprint);
        lend(comm, t);
        return;
    }
    t->entry = e;
    t->desc = &e->desc;
    t->in = in;
    t->out = out;
    t->in_bytes = in_bytes;
    t->out_bytes = out_bytes;
    start(comm, t);
    t->built = e->built;
}

bool hki_task_quick(hk_comm *comm, hki_entry *e, const void *in, void *out, size_t in_bytes, size_t out_bytes, hk_request **task)
{
    hk_request *t = &comm->quick[(comm->seq + 1) % HKI_CHANNELS];
    number(comm, t, e);
    if (HKI_UNLIKELY(comm->seen != NULL)) {
        t->desc = &e->desc;
        hki_seen_issued(t);
        publish(comm, t); /* before it runs: a peer that is done with it looks when this rank entered */
    }
    begin(comm, t, e, in, out, in_bytes, out_bytes);
    /* First send what can be sent; while it travels there is time for the rest. */
    hki_run_state state = hki_run_inline(&t->run);
    if (HKI_LIKELY(!comm->seen)) publish(comm, t);
    for (uint32_t spin = comm->engine->spins; state == HKI_RUN_BLOCKED && spin; spin--) {
        state = hki_run_await(&t->run, 8);
        if (state == HKI_RUN_BLOCKED) hki_pause();
    }
    for (uint32_t yields = comm->engine->yields; state == HKI_RUN_BLOCKED && yields; yields--) {
        hki_yield();
        state = hki_run_await(&t->run, 1);
    }
    if (HKI_LIKELY(state == HKI_RUN_DONE)) {
        if (HKI_UNLIKELY(comm->seen != NULL)) hki_seen_finished(t, HK_OK);
        show_finished(comm, t);
        count(comm, t);
        return true;
    }
    e->pins++;
    *task = hki_task_new(comm, HKI_TASK_COLLECTIVE);
    **task = *t;
    enlist(comm, *task);
    if (state == HKI_RUN_FAILED) failed(comm, *task);
    return false;
}

/* Called again and again by whoever waits. A run that stays blocked in line is handed over: from then on any of its steps may go. */
bool hki_comm_pump(hk_comm *comm)
{
    if (!comm->unfinished || comm->broken) return false;
    const uint64_t before = comm->engine->progress;
    for (uint32_t c = 0; c < HKI_CHANNELS; c++) {
        hki_channel *ch = &comm->channels[c];
        if (!ch->head) continue;
        const hk_request *t = ch->head;
        const uint32_t done = t->run.steps_done;
        const bool was_blocked = t->started && !t->run.event;
        hki_task_run_channel(comm, c);
        if (was_blocked && ch->head == t && t->run.steps_done == done && !comm->broken && comm->settings.executor != HKI_INLINE)
            hki_run_hand_over(&ch->head->run), comm->engine->progress++; /* more may go now: no reason to sleep */
    }
    if (comm->p2p_open && !comm->broken) hki_p2p_pump(comm);
    return comm->engine->progress != before;
}
