/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include "diag/log.h"
#include "os/os.h"

#include <stdio.h>
#include <string.h>

/* The communicator whose call this thread is in. */
static _Thread_local hki_seen *inside;

/* The caller holds seen->lock. */
static void tell(hki_seen *s, const hk_tool_event *e)
{
    if (s->trace) hki_trace_put(s->trace, e);
}

static hki_trace *open_trace(hk_comm *comm, const char *folder, uint64_t now_ns)
{
    hk_tool_trace head = {.uid = comm->shape.uid,
                          .rank = comm->shape.rank,
                          .ranks = comm->shape.ranks,
                          .from_ns = now_ns,
                          .clock = hki_machine_key(),
                          .owner = hki_process_key()};
    const hki_world *w = comm->engine->world;
    if (w) head.owner = hki_mix(head.owner, (uint64_t)(comm->engine->segment - w->segments) + 1); /* ranks that are threads */
    head.pid = comm->peers[comm->shape.rank]->pid;
    snprintf(head.host, sizeof head.host, "%.47s", comm->peers[comm->shape.rank]->host);
    return hki_trace_open(folder, &head);
}

void hki_seen_open(hk_comm *comm)
{
    const char *folder = hki_env("HOCKET_TRACE");
    if (!folder && !comm->settings.stats) return;
    hki_seen *s = hki_alloc(sizeof *s);
    const uint64_t now = hki_now_ns();
    if (s && folder) s->trace = open_trace(comm, folder, now);
    if (!s || (folder && !s->trace))
        HKI_LOG(WARN, INIT, comm->shape.rank, "no memory for statistics and traces: this communicator goes without");
    if (!s) return;
    s->table = comm->settings.stats;
    if (s->table) s->interfaces = hki_interfaces(s->before, HKI_SEEN_INTERFACES);
    s->from_ns = now;
    comm->seen = s;
    comm->engine->seen++;
}

/* ---- Operations -------------------------------------------------------------------------------------------------------- */

void hki_seen_issued(hk_request *t)
{
    t->issued_ns = hki_now_ns();
    t->started_ns = 0;
    t->thread = hki_thread_id();
}

void hki_seen_publish(const hk_request *t)
{
    uint64_t body[HKI_SEEN_ENTRY + 1];
    _Static_assert(sizeof *t->desc == 8 * HKI_SEEN_ENTRY, "the entry follows the description");
    memcpy(body, t->desc, sizeof *t->desc);
    body[HKI_SEEN_ENTRY] = t->issued_ns;
    hki_area_enter(&t->comm->area, t->seq, t->fingerprint, body, HKI_COUNT(body));
}

/* When the last rank entered. Known where all others are seen in memory, write the time down too, and are not far ahead yet. */
static bool last_entry(hk_comm *comm, const hk_request *t, uint64_t *last)
{
    *last = t->issued_ns;
    for (uint32_t r = 0; r < comm->shape.ranks; r++) {
        hki_record theirs;
        uint64_t entry;
        if (r == comm->shape.rank) continue;
        if (!hki_comm_local(comm, r) || !hki_area_entered(&comm->area, r, t->seq, &theirs)) return false;
        memcpy(&entry, theirs.body + 8 * HKI_SEEN_ENTRY, sizeof entry);
        if (!entry) return false;
        *last = entry > *last ? entry : *last;
    }
    return true;
}

static void count(hki_tally *a, const hk_request *t, uint64_t now, bool timed, uint64_t last)
{
    a->bytes += hki_max(t->in_bytes, t->out_bytes);
    a->ns += now - t->issued_ns;
    hki_histogram_add(&a->durations, now - t->issued_ns);
    if (!timed) return;
    const uint64_t late = last < now ? last - t->issued_ns : 0; /* done before the last came: it did not wait for that one */
    a->late_ns += late;
    a->transfer_ns += now - t->issued_ns - late;
    hki_histogram_add(&a->late, late);
    hki_histogram_add(&a->transfers, now - t->issued_ns - late);
}

void hki_seen_finished(hk_request *t, hk_status status)
{
    hk_comm *comm = t->comm;
    hki_seen *s = comm->seen;
    if (!t->desc || !t->issued_ns) return; /* a group: its members speak for themselves */
    const uint64_t now = hki_now_ns();
    uint64_t last;
    const bool timed = !status && t->kind == HKI_TASK_COLLECTIVE && last_entry(comm, t, &last);
    hk_tool_event e = {.kind = HK_EVENT_OPERATION,
                       .thread = t->thread,
                       .begin_ns = t->issued_ns,
                       .end_ns = now,
                       .seq = t->seq,
                       .started_ns = t->started_ns ? t->started_ns : t->issued_ns,
                       .bytes = hki_max(t->in_bytes, t->out_bytes),
                       .op = t->desc->op,
                       .dtype = t->desc->dtype,
                       .root = t->desc->root,
                       .status = status};
    if (t->entry) snprintf(e.name, sizeof e.name, "%s", t->entry->plan.algorithm);
    hki_lock_take(&s->lock);
    if (!status) count(&s->tally[t->desc->op], t, now, timed, timed ? last : 0);
    tell(s, &e);
    hki_lock_give(&s->lock);
}

/* ---- Calls and waits --------------------------------------------------------------------------------------------------- */

uint64_t hki_seen_entered(hki_seen *s)
{
    inside = s;
    return hki_now_ns();
}

void hki_seen_left(hki_seen *s, uint64_t since_ns, const char *what, uint64_t seq, bool blocks)
{
    const uint64_t now = hki_now_ns();
    hk_tool_event e = {.kind = blocks ? HK_EVENT_CALL : HK_EVENT_ISSUE,
                       .thread = hki_thread_id(),
                       .begin_ns = since_ns,
                       .started_ns = since_ns,
                       .end_ns = now,
                       .seq = seq};
    inside = NULL;
    if (s->trace) snprintf(e.name, sizeof e.name, "%s", what);
    hki_lock_take(&s->lock);
    s->calls++;
    s->inside_ns += now - since_ns;
    tell(s, &e);
    hki_lock_give(&s->lock);
}

hki_seen_wait hki_seen_wait_begin(void)
{
    if (!inside) return (hki_seen_wait){0, 0};
    return (hki_seen_wait){hki_now_ns(), hki_thread_cpu_ns()};
}

void hki_seen_wait_end(hki_seen_wait w)
{
    hki_seen *s = inside;
    if (!s || !w.since_ns) return;
    const uint64_t now = hki_now_ns(), cpu = hki_thread_cpu_ns() - w.cpu_ns;
    const hk_tool_event e = {.kind = HK_EVENT_WAIT,
                             .thread = hki_thread_id(),
                             .begin_ns = w.since_ns,
                             .started_ns = w.since_ns,
                             .end_ns = now};
    hki_lock_take(&s->lock);
    s->waited_ns += now - w.since_ns;
    s->wait_cpu_ns += cpu;
    tell(s, &e);
    hki_lock_give(&s->lock);
}

/* ---- Spans ------------------------------------------------------------------------------------------------------------- */

/* The innermost open one of that thread, or NULL. */
static hki_open_span *innermost(hki_seen *s, uint32_t thread)
{
    for (uint32_t i = s->open; i > 0; i--)
        if (s->spans[i - 1].thread == thread) return &s->spans[i - 1];
    return NULL;
}

HK_API hk_status hk_span_begin(hk_comm *comm, const char *name)
{
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    if (!name) return hki_error(comm, HK_INVALID, "hk_span_begin: name is NULL");
    hki_seen *s = comm->seen;
    if (!s) return HK_OK;
    hki_lock_take(&s->lock);
    if (s->open == HKI_SEEN_OPEN) {
        s->no_room++;
        status = hki_error(comm, HK_NO_MEMORY, "hk_span_begin: %d spans are open already: end them", HKI_SEEN_OPEN);
    } else {
        hki_open_span *o = &s->spans[s->open++];
        *o = (hki_open_span){.thread = hki_thread_id(), .since_ns = hki_now_ns()};
        memcpy(o->name, name, strnlen(name, sizeof o->name - 1));
    }
    hki_lock_give(&s->lock);
    return status;
}

/* The caller holds seen->lock. */
static void end_span(hki_seen *s, hki_open_span *o, uint64_t now_ns)
{
    hk_tool_event e = {.kind = HK_EVENT_SPAN, .thread = o->thread, .begin_ns = o->since_ns, .started_ns = o->since_ns, .end_ns = now_ns};
    const uint32_t thread = o->thread, at = (uint32_t)(o - s->spans);
    memcpy(e.name, o->name, sizeof o->name);
    memmove(o, o + 1, (--s->open - at) * sizeof *o);
    if (!innermost(s, thread)) s->span_ns += now_ns - e.begin_ns;
    tell(s, &e);
}

HK_API hk_status hk_span_end(hk_comm *comm)
{
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    hki_seen *s = comm->seen;
    if (!s) return HK_OK;
    hki_lock_take(&s->lock);
    hki_open_span *o = innermost(s, hki_thread_id());
    if (o) end_span(s, o, hki_now_ns());
    else status = hki_error(comm, HK_INVALID, "hk_span_end without hk_span_begin in this thread");
    hki_lock_give(&s->lock);
    return status;
}

/* ---- The end ----------------------------------------------------------------------------------------------------------- */

void hki_seen_stats(hk_comm *comm, hk_stats_t *out)
{
    hki_seen *s = comm->seen;
    if (!s) return;
    hki_lock_take(&s->lock);
    out->seen_ns = hki_now_ns() - s->from_ns;
    out->span_ns = s->span_ns;
    out->calls = s->calls;
    out->inside_ns = s->inside_ns;
    out->waited_ns = s->waited_ns;
    out->progress_cpu_ns = hki_progress_cpu_ns(comm->engine);
    out->cpu_ns = s->wait_cpu_ns + (s->inside_ns > s->waited_ns ? s->inside_ns - s->waited_ns : 0); /* a call that does not wait runs */
    for (unsigned op = 0; op < HKI_OPS; op++) {
        const hki_tally *a = &s->tally[op];
        out->operation_ns += a->ns;
        out->timed += a->late.n;
        out->late_ns += a->late_ns;
        out->transfer_ns += a->transfer_ns;
    }
    if (s->trace) out->trace_events = s->trace->written + s->trace->used;
    out->trace_dropped = s->no_room + (s->trace ? s->trace->dropped : 0);
    hki_lock_give(&s->lock);
}

static void tell_links(hki_seen *s, const hk_stats_t *links, uint64_t now_ns)
{
    const struct {
        const char *name;
        const hk_link_stats *link;
    } all[] = {{"self", &links->self}, {"shm", &links->shm}, {"tcp", &links->tcp}};
    for (unsigned i = 0; i < HKI_COUNT(all); i++) {
        hk_tool_event e = {.kind = HK_EVENT_SENT,
                           .begin_ns = now_ns,
                           .started_ns = now_ns,
                           .end_ns = now_ns,
                           .seq = all[i].link->messages_sent,
                           .bytes = all[i].link->bytes_sent};
        snprintf(e.name, sizeof e.name, "%s", all[i].name);
        if (e.seq) tell(s, &e);
    }
}

void hki_seen_close(hk_comm *comm)
{
    hki_seen *s = comm->seen;
    hk_stats_t total = {.size = sizeof total};
    if (!s) return;
    const uint64_t now = hki_now_ns();
    hki_lock_take(&s->lock);
    while (s->open) end_span(s, &s->spans[s->open - 1], now); /* what nobody ended ends here */
    hki_lock_give(&s->lock);
    hki_link_totals(comm, &total);
    if (s->trace) {
        tell_links(s, &total, now);
        s->trace->dropped += s->no_room;
        s->no_room = 0;
        hki_trace_end(s->trace, now);
        if (s->trace->error || s->trace->dropped)
            HKI_LOG(WARN, COLL, comm->shape.rank, "trace %s: %llu events lost%s%s", s->trace->path, (unsigned long long)s->trace->dropped,
                    s->trace->error ? ": " : "", s->trace->error ? strerror(-s->trace->error) : "");
    }
    hki_seen_stats(comm, &total);
    if (s->table) hki_seen_print(comm, &total);
    comm->seen = NULL;
    comm->engine->seen--;
    hki_trace_free(s->trace);
    hki_free(s);
}
