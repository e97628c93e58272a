/* SPDX-License-Identifier: Apache-2.0
 * The public collectives: arguments checked, a call made of them, an algorithm chosen, a task issued. Until the task is submitted
 * nothing has been sent, so every error here leaves the communicator and its peers as they were. */
#include "comm/comm.h"
#include "comm/redop.h"

#include "kern/kern.h"
#include "os/os.h"

#include <stdio.h>
#include <string.h>

/* What an uneven form is given besides. */
typedef struct uneven { const size_t *in_counts, *in_displs, *out_counts, *out_displs; } uneven;

/* Everything a public call may give. */
typedef struct given {
    hki_op op;
    const void *send;
    void *recv;
    size_t count;
    hk_dtype dtype;
    hk_redop redop;
    int root;
    const uneven *v;    /* uneven forms only */
} given;

static hk_status options_of(hk_comm *comm, hki_op op, const hk_options *given_options, hk_options *o)
{
    *o = (hk_options)HK_OPTIONS_INIT;
    if (!given_options) return HK_OK;
    if (given_options->size < offsetof(hk_options, tag) || given_options->size > 4096)
        return hki_error(comm, HK_INVALID, "%s: options.size is %zu: start from HK_OPTIONS_INIT", hki_op_name(op), given_options->size);
    memcpy(o, given_options, hki_min(sizeof *o, given_options->size));
    if (o->wire) return hki_error(comm, HK_UNSUPPORTED, "%s: options.wire: this build sends full precision only", hki_op_name(op));
    return HK_OK;
}

/* Elements from the first to past the last of a buffer's blocks; SIZE_MAX if that overflows. */
static size_t extent(uint32_t blocks, const size_t *counts, const size_t *displs, size_t count, size_t elem)
{
    size_t end = 0, packed = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        const size_t len = counts ? counts[b] : count, off = displs ? displs[b] : packed;
        size_t stop;
        if (__builtin_add_overflow(off, len, &stop) || __builtin_add_overflow(packed, len, &packed)) return SIZE_MAX;
        if (len) end = hki_max(end, stop);
    }
    size_t bytes;
    return __builtin_mul_overflow(end, elem, &bytes) || bytes > SIZE_MAX / 2 ? SIZE_MAX : bytes;
}

/* Which sides this rank has, and where its own block stands for in place. */
static void sides(const given *g, uint32_t P, uint32_t rank, size_t *in, size_t *out, size_t *own)
{
    const size_t elem = hk_dtype_size(g->dtype), n = g->count;
    const bool root = (int)rank == g->root;
    *own = 0;
    switch (g->op) {
    case HKI_ALL_REDUCE: *in = *out = extent(1, NULL, NULL, n, elem); break;
    case HKI_BROADCAST: *in = root ? extent(1, NULL, NULL, n, elem) : 0, *out = extent(1, NULL, NULL, n, elem); break;
    case HKI_REDUCE: *in = extent(1, NULL, NULL, n, elem), *out = root ? *in : 0; break;
    case HKI_ALL_GATHER: *in = extent(1, NULL, NULL, n, elem), *out = extent(P, NULL, NULL, n, elem), *own = rank * n * elem; break;
    case HKI_GATHER: *in = extent(1, NULL, NULL, n, elem), *out = root ? extent(P, NULL, NULL, n, elem) : 0, *own = rank * n * elem; break;
    case HKI_REDUCE_SCATTER: *in = extent(P, NULL, NULL, n, elem), *out = extent(1, NULL, NULL, n, elem), *own = rank * n * elem; break;
    case HKI_SCATTER: *in = root ? extent(P, NULL, NULL, n, elem) : 0, *out = extent(1, NULL, NULL, n, elem), *own = rank * n * elem; break;
    case HKI_ALL_TO_ALL: *in = *out = extent(P, NULL, NULL, n, elem); break;
    case HKI_ALL_GATHER_V: *in = extent(1, g->v->out_counts + rank, NULL, 0, elem), *out = extent(P, g->v->out_counts, g->v->out_displs, 0, elem); break;
    case HKI_REDUCE_SCATTER_V: *in = extent(P, g->v->in_counts, g->v->in_displs, 0, elem), *out = extent(1, g->v->in_counts + rank, NULL, 0, elem); break;
    case HKI_ALL_TO_ALL_V:
        *in = extent(P, g->v->in_counts, g->v->in_displs, 0, elem), *out = extent(P, g->v->out_counts, g->v->out_displs, 0, elem);
        break;
    default: *in = *out = 0; break;
    }
    if (!g->v) return;
    const size_t *counts = g->op == HKI_ALL_GATHER_V ? g->v->out_counts : g->op == HKI_REDUCE_SCATTER_V ? g->v->in_counts : NULL;
    const size_t *displs = g->op == HKI_ALL_GATHER_V ? g->v->out_displs : g->v->in_displs;
    if (counts && displs) *own = displs[rank] * elem;
    else if (counts) *own = extent(rank, counts, NULL, 0, elem);
}

/* Is this call in place? An overlap that is not exactly in place is an error. */
static hk_status placement(hk_comm *comm, const given *g, size_t in, size_t out, size_t own, bool *in_place)
{
    const uint8_t *s = g->send, *r = g->recv;
    const char *name = hki_op_name(g->op);
    *in_place = false;
    if (in == SIZE_MAX || out == SIZE_MAX) return hki_error(comm, HK_INVALID, "%s: counts and displacements exceed the address space", name);
    if (in && !s) return hki_error(comm, HK_INVALID, "%s: send is NULL but %zu bytes are to be read", name, in);
    if (out && !r) return hki_error(comm, HK_INVALID, "%s: recv is NULL but %zu bytes are to be written", name, out);
    const size_t elem = hk_dtype_size(g->dtype);
    if ((in && (uintptr_t)s % elem) || (out && (uintptr_t)r % elem))
        return hki_error(comm, HK_INVALID, "%s: %s is not aligned to its %zu-byte elements", name, in && (uintptr_t)s % elem ? "send" : "recv", elem);
    if (!in || !out || (uintptr_t)s >= (uintptr_t)r + out || (uintptr_t)r >= (uintptr_t)s + in) return HK_OK;
    const bool never = g->op == HKI_ALL_TO_ALL || g->op == HKI_ALL_TO_ALL_V;
    const uint8_t *whole = in < out ? r : s, *part = in < out ? s : r; /* equal sizes: own is 0 */
    const bool alone = never && comm->shape.ranks == 1 && s == r && g->op == HKI_ALL_TO_ALL;
    if (alone || (!never && part == whole + own)) return *in_place = true, HK_OK;
    return hki_error(comm, HK_INVALID, "%s: send and recv overlap without being in place%s", name,
                     never ? "; this operation has no in-place form" : " (see hocket.h for where recv must be)");
}

static hk_status check(hk_comm *comm, const given *g, hki_call *c, size_t *in, size_t *out)
{
    const char *name = hki_op_name(g->op);
    if (hk_dtype_size(g->dtype) == 0) return hki_error(comm, HK_INVALID, "%s: dtype %d is none of HK_I8 ... HK_F64", name, (int)g->dtype);
    if (hki_op_rooted(g->op) && (g->root < 0 || g->root >= (int)comm->shape.ranks))
        return hki_error(comm, HK_INVALID, "%s: root %d is no rank of this communicator (0 to %u)", name, g->root, comm->shape.ranks - 1);
    if (g->op == HKI_ALL_GATHER_V && !g->v->out_counts) return hki_error(comm, HK_INVALID, "%s: counts is NULL", name);
    if (g->op == HKI_REDUCE_SCATTER_V && !g->v->in_counts) return hki_error(comm, HK_INVALID, "%s: counts is NULL", name);
    if (g->op == HKI_ALL_TO_ALL_V && (!g->v->in_counts || !g->v->out_counts))
        return hki_error(comm, HK_INVALID, "%s: %s is NULL", name, g->v->in_counts ? "recvcounts" : "sendcounts");
    *c = hki_comm_call(comm);
    c->op = g->op, c->root = (uint32_t)g->root, c->dtype = g->dtype, c->redop = g->redop, c->count = g->count;
    if (g->v) c->in_counts = g->v->in_counts, c->in_displs = g->v->in_displs, c->out_counts = g->v->out_counts, c->out_displs = g->v->out_displs;
    c->red.commutes = true;
    if (hki_op_reduces(g->op)) {
        if (!hki_redop_resolve(g->redop, c->ranks, &c->red)) return hki_error(comm, HK_INVALID, "%s: op is no reduction", name);
        if (!hki_fold_supported(g->dtype, &c->red))
            return hki_error(comm, HK_UNSUPPORTED, "%s: %s is not defined for %s", name, hki_redop_name(g->redop), hk_dtype_name(g->dtype));
    }
    size_t own;
    sides(g, c->ranks, c->rank, in, out, &own);
    return placement(comm, g, *in, *out, own, &c->in_place);
}

hk_status hki_outside_group(hk_comm *comm, const char *call)
{
    hki_lock_take(&comm->engine->lock);
    const bool inside = *hki_group_at(comm) != NULL;
    hki_lock_give(&comm->engine->lock);
    return inside ? hki_error(comm, HK_INVALID, "%s between hk_group_start and hk_group_end: end the group first", call) : HK_OK;
}

hk_status hki_refuse(hk_request *t, hk_status status)
{
    if (t->entry) hki_cache_unpin(t->entry);
    if (t->after) hki_after_forget(t);
    hki_task_recycle(t);
    return status;
}

hk_status hki_issue_with(hk_request *t, const hk_options *options)
{
    hk_options o = HK_OPTIONS_INIT;
    if (!options) return HK_OK;
    memcpy(&o, options, hki_min(sizeof o, options->size));
    t->done = o.done;
    t->done_arg = o.done_arg;
    t->source = o.source;
    const hk_status status = hki_after_set(t->comm, t, o.after, o.after_count);
    return status ? hki_refuse(t, status) : HK_OK;
}

static bool has_room(void *arg)
{
    const hk_comm *comm = arg;
    return comm->broken || comm->unfinished < HKI_POOL;
}

/* May this call go on as it wants to: on its own, or with its caller waiting? */
static hk_status admit(hk_comm *comm, hk_request *t, bool on_its_own)
{
    if (!on_its_own && hki_in_callback())
        return hki_refuse(t, hki_error(comm, HK_INVALID, "a call without a request in a callback would hold up what it waits for: give it one"));
    if (!on_its_own) return HK_OK;
    if (!hki_progress_start(comm->engine)) return hki_refuse(t, hki_error(comm, HK_SYSTEM, "the system gives no thread for progress (see `ulimit -u`)"));
    if (!has_room(comm) && !hki_in_callback()) hki_wait_until(comm->engine, has_room, comm, UINT64_MAX);
    return comm->broken ? hki_refuse(t, (hk_status)comm->notice.status) : HK_OK;
}

hk_status hki_issue(hk_comm *comm, hk_request *t, hk_request **request)
{
    hki_group *g = comm->groups ? *hki_group_at(comm) : NULL;
    if (g) {
        if (g->last) g->last->queue = t;
        else g->first = t;
        g->last = t;
        return HK_OK;
    }
    const hk_status status = admit(comm, t, request != NULL);
    if (status) return status;
    if (request) t->issued_us = hki_now_us(), t->next_stall_us = t->issued_us + comm->settings.stall_us;
    t->held = true;
    hki_task_submit(comm, t);
    if (t->kind == HKI_TASK_COLLECTIVE) hki_task_run_channel(comm, t->channel);
    else hki_p2p_pump(comm);
    if (request) {
        *request = t;
        hki_progress_need(comm->engine);
        return HK_OK;
    }
    return hki_request_wait(&t, UINT64_MAX);
}

static hk_status forced_algorithm(hk_comm *comm, hki_op op, const hk_options *o, const hki_algo **forced)
{
    *forced = comm->settings.forced.by_op[op];
    if (!o->algorithm || (*forced = hki_algo_find(op, o->algorithm))) return HK_OK;
    return hki_error(comm, HK_INVALID, "%s: no algorithm '%.40s'; `hocket info algos` lists them", hki_op_name(op), o->algorithm);
}

/* Others are looked at every now and then: that costs a load or two a rank. */
static inline hk_status broken_already(hk_comm *comm)
{
    const bool look = comm->seq % 16 == 0 || atomic_load_explicit(&comm->aborted, memory_order_relaxed);
    if (HKI_UNLIKELY(look && !comm->broken && hki_comm_alarmed(comm))) hki_comm_check(comm, hki_now_us());
    return HKI_UNLIKELY(comm->broken) ? (hk_status)comm->notice.status : HK_OK;
}

/* The entry is pinned. */
static hk_status launch(hk_comm *comm, const given *g, hki_entry *e, size_t in, size_t out, const hk_options *o, hk_request **request)
{
    hk_request *t = hki_task_prepare(comm, e) ? hki_task_new(comm, HKI_TASK_COLLECTIVE) : NULL;
    if (!t) {
        hki_cache_unpin(e);
        return hki_error(comm, HK_NO_MEMORY, "out of memory for a request");
    }
    t->entry = e;
    t->desc = &e->desc;
    t->in = g->send;
    t->out = g->recv;
    t->in_bytes = in;
    t->out_bytes = out;
    t->timeout_us = o && o->timeout_us ? hki_min(o->timeout_us, HKI_NO_LIMIT_US) : comm->settings.timeout_us;
    const hk_status status = hki_issue_with(t, o);
    return status ? status : hki_issue(comm, t, request);
}

/* Is this the last call of its operation again, with good pointers? Then that call's entry, not pinned; else NULL: look at everything. */
static hki_entry *repeated(hk_comm *comm, const given *g, hki_memo *m)
{
    hki_entry *e = m->entry;
    if (!e || m->count != g->count || m->dtype != g->dtype || m->redop != g->redop || m->root != g->root || e->built != m->built) return NULL;
    const uintptr_t s = (uintptr_t)g->send, r = (uintptr_t)g->recv, odd = e->program.elem_bytes - 1;
    if (!s || !r || ((s | r) & odd)) return NULL;
    const bool apart = s >= r + m->out_bytes || r >= s + m->in_bytes;
    if (m->in_place ? (m->in_bytes < m->out_bytes ? s != r + m->own : r != s + m->own) : !apart) return NULL;
    e->used = ++comm->cache_clock;
    return e;
}

static hk_status first_time(hk_comm *comm, const given *g, const hk_options *options, hk_request **request)
{
    hk_options o;
    hki_call c;
    size_t in = 0, out = 0;
    char error[160];
    const hki_algo *forced;
    hk_status status = options_of(comm, g->op, options, &o);
    if (!status) status = check(comm, g, &c, &in, &out);
    if (!status) status = broken_already(comm);
    if (!status) status = forced_algorithm(comm, c.op, &o, &forced);
    if (status) return status;
    hki_entry *e = hki_cache_get(comm, &c, forced, o.tag, &status, error);
    if (!e) return hki_error(comm, status, "%s", status == HK_NO_MEMORY ? "out of memory for a plan" : error);
    if (!options && !e->stray && !hki_op_uneven(g->op) && g->redop < HK_REDOPS) {
        size_t unused1, unused2;
        hki_memo *m = &comm->memo[g->op];
        *m = (hki_memo){.entry = e, .built = e->built, .count = g->count, .in_bytes = in, .out_bytes = out, .redop = g->redop, .root = g->root,
                        .dtype = g->dtype, .in_place = c.in_place};
        sides(g, c.ranks, c.rank, &unused1, &unused2, &m->own);
    }
    return launch(comm, g, e, in, out, &o, request);
}

/* Nothing is under way that a call could not overtake. */
static bool quiet(const hk_comm *comm, const hki_entry *e)
{
    return comm->plain && !comm->unfinished && !comm->groups && !comm->engine->calling && comm->free_tasks && e->prepared;
}

static hk_status quick(hk_comm *comm, const given *g, hki_entry *e, const hki_memo *m, hk_request **request)
{
    hk_request *t;
    if (hki_task_quick(comm, e, g->send, g->recv, m->in_bytes, m->out_bytes, &t)) return HK_OK;
    if (!request) return hki_request_wait(&t, UINT64_MAX);
    *request = t;
    hki_progress_need(comm->engine);
    return HK_OK;
}

/* `moment`, for a call with a request: a wait with a limit of 0 comes with it, and HK_WAIT_EXPIRED tells that it is under way. */
static hk_status collective_or_moment(const given *g, hk_comm *comm, const hk_options *options, hk_request **request, bool moment)
{
    if (request) *request = NULL;
    hk_status status = hki_comm_usable(comm);
    if (HKI_UNLIKELY(status)) return status;
    const uint64_t since = HKI_SEEN_ENTER(comm);
    hki_lock_take(&comm->engine->lock);
    hki_memo *m = &comm->memo[g->op];
    hki_entry *e = options || g->v ? NULL : repeated(comm, g, m);
    if (!e) status = first_time(comm, g, options, request);
    else if ((status = broken_already(comm))) { }
    else if (quiet(comm, e) && (!request || (moment && hki_progress_start(comm->engine)))) status = quick(comm, g, e, m, request);
    else e->pins++, status = launch(comm, g, e, m->in_bytes, m->out_bytes, NULL, request);
    if (moment && *request) status = hki_in_callback() ? HK_WAIT_EXPIRED : hki_request_wait(request, hki_now_us());
    HKI_SEEN_LEAVE(comm, since, hki_op_name(g->op), comm->seq, !request || moment);
    hki_lock_give(&comm->engine->lock);
    return status;
}

static hk_status collective(const given *g, hk_comm *comm, const hk_options *options, hk_request **request)
{
    return collective_or_moment(g, comm, options, request, false);
}

/* ---- The public calls -------------------------------------------------------------------------------------------------- */

HK_API hk_status hk_all_reduce(const void *send, void *recv, size_t count, hk_dtype dtype, hk_redop op, hk_comm *comm, const hk_options *options,
                               hk_request **request)
{
    return collective(&(given){.op = HKI_ALL_REDUCE, .send = send, .recv = recv, .count = count, .dtype = dtype, .redop = op}, comm, options, request);
}

HK_API hk_status hk_all_gather(const void *send, void *recv, size_t count, hk_dtype dtype, hk_comm *comm, const hk_options *options,
                               hk_request **request)
{
    return collective(&(given){.op = HKI_ALL_GATHER, .send = send, .recv = recv, .count = count, .dtype = dtype}, comm, options, request);
}

HK_API hk_status hk_reduce_scatter(const void *send, void *recv, size_t count, hk_dtype dtype, hk_redop op, hk_comm *comm,
                                   const hk_options *options, hk_request **request)
{
    return collective(&(given){.op = HKI_REDUCE_SCATTER, .send = send, .recv = recv, .count = count, .dtype = dtype, .redop = op}, comm, options,
                      request);
}

HK_API hk_status hk_broadcast(const void *send, void *recv, size_t count, hk_dtype dtype, int root, hk_comm *comm, const hk_options *options,
                              hk_request **request)
{
    return collective(&(given){.op = HKI_BROADCAST, .send = send, .recv = recv, .count = count, .dtype = dtype, .root = root}, comm, options, request);
}

HK_API hk_status hk_reduce(const void *send, void *recv, size_t count, hk_dtype dtype, hk_redop op, int root, hk_comm *comm,
                           const hk_options *options, hk_request **request)
{
    return collective(&(given){.op = HKI_REDUCE, .send = send, .recv = recv, .count = count, .dtype = dtype, .redop = op, .root = root}, comm,
                      options, request);
}

HK_API hk_status hk_gather(const void *send, void *recv, size_t count, hk_dtype dtype, int root, hk_comm *comm, const hk_options *options,
                           hk_request **request)
{
    return collective(&(given){.op = HKI_GATHER, .send = send, .recv = recv, .count = count, .dtype = dtype, .root = root}, comm, options, request);
}

HK_API hk_status hk_scatter(const void *send, void *recv, size_t count, hk_dtype dtype, int root, hk_comm *comm, const hk_options *options,
                            hk_request **request)
{
    return collective(&(given){.op = HKI_SCATTER, .send = send, .recv = recv, .count = count, .dtype = dtype, .root = root}, comm, options, request);
}

HK_API hk_status hk_all_to_all(const void *send, void *recv, size_t count, hk_dtype dtype, hk_comm *comm, const hk_options *options,
                               hk_request **request)
{
    return collective(&(given){.op = HKI_ALL_TO_ALL, .send = send, .recv = recv, .count = count, .dtype = dtype}, comm, options, request);
}

HK_API hk_status hk_all_gather_v(const void *send, void *recv, const size_t *counts, const size_t *displacements, hk_dtype dtype, hk_comm *comm,
                                 const hk_options *options, hk_request **request)
{
    const uneven v = {.out_counts = counts, .out_displs = displacements};
    return collective(&(given){.op = HKI_ALL_GATHER_V, .send = send, .recv = recv, .dtype = dtype, .v = &v}, comm, options, request);
}

HK_API hk_status hk_reduce_scatter_v(const void *send, void *recv, const size_t *counts, const size_t *displacements, hk_dtype dtype, hk_redop op,
                                     hk_comm *comm, const hk_options *options, hk_request **request)
{
    const uneven v = {.in_counts = counts, .in_displs = displacements};
    return collective(&(given){.op = HKI_REDUCE_SCATTER_V, .send = send, .recv = recv, .dtype = dtype, .redop = op, .v = &v}, comm, options, request);
}

HK_API hk_status hk_all_to_all_v(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv, const size_t *recvcounts,
                                 const size_t *recvdispls, hk_dtype dtype, hk_comm *comm, const hk_options *options, hk_request **request)
{
    const uneven v = {sendcounts, senddispls, recvcounts, recvdispls};
    return collective(&(given){.op = HKI_ALL_TO_ALL_V, .send = send, .recv = recv, .dtype = dtype, .v = &v}, comm, options, request);
}

HK_API hk_status hk_barrier(hk_comm *comm, const hk_options *options, hk_request **request)
{
    return collective(&(given){.op = HKI_BARRIER}, comm, options, request);
}

_Static_assert((int)HK_ALL_REDUCE == HKI_ALL_REDUCE && (int)HK_ALL_TO_ALL == HKI_ALL_TO_ALL, "hk_operation begins like hki_op");

/* What the operation does not have is 0, whatever is in the record: it must be alike on all ranks. */
static given of_record(const hk_call *c)
{
    if (c->operation == HK_BARRIER) return (given){.op = HKI_BARRIER};
    const hki_op op = (hki_op)c->operation;
    return (given){.op = op, .send = c->send, .recv = c->recv, .count = c->count, .dtype = c->dtype, .redop = hki_op_reduces(op) ? c->op : 0,
                   .root = hki_op_rooted(op) ? c->root : 0};
}

HK_API hk_status hk_run(hk_call *c)
{
    if (!c || c->size < sizeof *c) return hki_error(NULL, HK_INVALID, "hk_run: %s", c ? "call.size is less than sizeof(hk_call)" : "call is NULL");
    c->request = NULL;
    hk_status status = hki_comm_usable(c->comm);
    if (status) return status;
    if ((unsigned)c->operation >= HK_OPERATIONS) return hki_error(c->comm, HK_INVALID, "hk_run: operation %d is none", (int)c->operation);
    const given g = of_record(c);
    status = collective_or_moment(&g, c->comm, c->options, &c->request, c->moment);
    return !status && c->request ? HK_WAIT_EXPIRED : status;
}
