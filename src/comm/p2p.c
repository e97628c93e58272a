/* SPDX-License-Identifier: Apache-2.0
 *
 * Point to point. Three kinds of message on the channel of its own, all first in, first out per pair:
 *
 *     announce {id, tag, dtype, bytes [, payload if small]}   sender -> receiver, one per send, in the order of the calls
 *     grant    {id}                                           receiver -> sender, when a receive has matched
 *     data     {id} + payload                                 sender -> receiver, in pieces of a slot, after the grant
 *
 * Receivers always take announcements off the lane (into a list bounded by the senders' outstanding sends), so a lane never blocks on
 * an unmatched message. Matching is per (source, tag) in order. A send ends when it is granted and its bytes have left. */
#include "comm/comm.h"

#include "kern/kern.h"
#include "os/os.h"

#include <string.h>

enum { ANNOUNCE = 1, GRANT, DATA };

typedef struct header {
    uint8_t kind, dtype;
    uint16_t unused;
    uint32_t id;
    int32_t tag;
    uint32_t more;
    uint64_t bytes;
} header;
_Static_assert(sizeof(header) == 24, "fixed size");

#define EAGER sizeof(((hki_announcement *)0)->payload)
#define ANY_RANK UINT32_MAX

static uint64_t lane_fingerprint(const hk_comm *comm) { return hki_mix(comm->shape.uid, 0x703270); }

static hki_port *port_of(hk_comm *comm) { return comm->ports[HKI_P2P]; }

/* Puts one message of head + payload on the lane to peer; false: no room now. */
static bool put(hk_comm *comm, uint32_t peer, const header *h, const void *payload, size_t n)
{
    hki_port *p = port_of(comm);
    const hki_outgoing o = {.peers = &peer, .n = 1, .bytes = sizeof *h + n, .fingerprint = lane_fingerprint(comm)};
    void *at[2];
    hki_places places = {.at = at};
    if (p->ops->reserve(p, &o, &places) != HKI_GO) return false;
    memcpy(at[0], h, sizeof *h);
    if (n) hki_copy((uint8_t *)at[0] + sizeof *h, payload, n);
    p->ops->commit(p, &o);
    comm->engine->progress++;
    return true;
}

/* ---- Matching ---------------------------------------------------------------------------------------------------------- */

static bool fits(const hk_request *r, uint32_t from, int32_t tag)
{
    return r->kind == HKI_TASK_RECV && r->p2p == HKI_P2P_NEW && r->tag == tag && (r->peer == ANY_RANK || r->peer == from);
}

/* Both ends know of the match now; differing types or sizes break the communicator, as for any other call. */
static void match(hk_comm *comm, hk_request *r, const hki_announcement *a)
{
    const bool same = a->bytes == r->out_bytes && a->dtype == (uint32_t)r->desc->dtype;
    r->peer = a->from;
    if (!same) {
        hki_notice n = {.status = HK_MISMATCH, .culprit = a->from};
        hki_cause c = {.reporter = comm->shape.rank, .seq = r->id, .their_seq = a->id, .mine = *r->desc};
        c.theirs = (hki_desc){.op = HKI_SEND, .dtype = (uint8_t)a->dtype, .redop = 0xff, .root = (int32_t)comm->shape.rank, .tag = a->tag,
                              .count = a->bytes / hki_max(1, hk_dtype_size((hk_dtype)a->dtype))};
        memcpy(n.body, &c, sizeof c);
        hki_comm_break(comm, &n);
        return;
    }
    if (r->source) *r->source = (int)a->from;
    r->matched_id = a->id;
    r->p2p = HKI_P2P_MATCHED;
    if (a->bytes <= EAGER) {
        memcpy(r->out, a->payload, a->bytes);
        r->moved = a->bytes;
    }
    comm->engine->progress++;
}

/* Never past an announcement of the same source and tag that waits, nor for a later receive than the first that fits. */
static bool try_match_new(hk_comm *comm, const hki_announcement *a)
{
    for (const hki_announcement *w = comm->waiting; w; w = w->next)
        if (w->from == a->from && w->tag == a->tag) return false;
    for (hk_request *t = comm->tasks; t; t = t->next)
        if (fits(t, a->from, a->tag)) return hki_task_clear(t) && (match(comm, t, a), true);
    return false;
}

static void match_waiting(hk_comm *comm, hk_request *r)
{
    for (hki_announcement **at = &comm->waiting; *at; at = &(*at)->next) {
        hki_announcement *a = *at;
        if (!fits(r, a->from, a->tag)) continue;
        *at = a->next;
        if (!a->next) comm->waiting_end = at;
        match(comm, r, a);
        a->next = comm->free_announcements;
        comm->free_announcements = a;
        return;
    }
}

/* ---- Incoming ---------------------------------------------------------------------------------------------------------- */

static void corrupt(hk_comm *comm, uint32_t from) { hki_comm_fail(comm, HK_CORRUPT, from, NULL, 0); }

/* false: no memory to keep it in. It stays on its lane and is looked at again. */
static bool announced(hk_comm *comm, uint32_t from, const header *h, const uint8_t *payload, size_t n)
{
    hki_announcement here = {.from = from, .id = h->id, .tag = h->tag, .dtype = h->dtype, .bytes = h->bytes};
    if (n > EAGER || (h->bytes <= EAGER ? n != h->bytes : n != 0) || h->dtype >= HK_DTYPES) return corrupt(comm, from), true;
    memcpy(here.payload, payload, n);
    if (try_match_new(comm, &here) || comm->broken) return true;
    hki_announcement *a = comm->free_announcements;
    if (a) comm->free_announcements = a->next;
    else if (!(a = hki_alloc(sizeof *a))) return false;
    *a = here;
    *comm->waiting_end = a;
    comm->waiting_end = &a->next;
    return true;
}

static void granted(hk_comm *comm, uint32_t from, uint32_t id)
{
    for (hk_request *t = comm->tasks; t; t = t->next)
        if (t->kind == HKI_TASK_SEND && t->peer == from && t->id == id && t->p2p == HKI_P2P_ANNOUNCED) {
            t->p2p = HKI_P2P_MOVING;
            if (t->in_bytes <= EAGER) t->moved = t->in_bytes;
            if (t->moved == t->in_bytes) hki_task_finish(t, HK_OK);
            return;
        }
    corrupt(comm, from);
}

static void arrived(hk_comm *comm, uint32_t from, uint32_t id, const uint8_t *payload, size_t n)
{
    for (hk_request *t = comm->tasks; t; t = t->next)
        if (t->kind == HKI_TASK_RECV && t->p2p == HKI_P2P_MOVING && t->peer == from && t->matched_id == id) {
            if (n == 0 || n > t->out_bytes - t->moved) return corrupt(comm, from);
            hki_copy(t->out + t->moved, payload, n);
            t->moved += n;
            if (t->moved == t->out_bytes) hki_task_finish(t, HK_OK);
            return;
        }
    corrupt(comm, from);
}

static void take(hk_comm *comm, uint32_t from)
{
    hki_port *p = port_of(comm);
    hki_msg m;
    header h;
    while (!comm->broken) {
        const hki_go go = p->ops->peek(p, from, &m);
        if (go == HKI_NOT_YET) return;
        if (go == HKI_BROKEN) return hki_comm_fail(comm, p->status, p->culprit, comm->tasks, 0);
        if (m.bytes < sizeof h || ((m.fingerprint ^ lane_fingerprint(comm)) & m.mask)) return corrupt(comm, from);
        memcpy(&h, m.data, sizeof h);
        const uint8_t *payload = (const uint8_t *)m.data + sizeof h;
        const size_t n = m.bytes - sizeof h;
        bool taken = true;
        if (h.kind == ANNOUNCE) taken = announced(comm, from, &h, payload, n);
        else if (h.kind == GRANT) granted(comm, from, h.id);
        else if (h.kind == DATA) arrived(comm, from, h.id, payload, n);
        else corrupt(comm, from);
        if (!taken) return;
        p->ops->release(p, from);
        comm->engine->progress++;
    }
}

/* ---- Outgoing ---------------------------------------------------------------------------------------------------------- */

/* What one pass over the tasks has met: announcements to one peer with one tag must keep the order of the calls. */
typedef struct pass {
    uint32_t full[16], nfull; /* peers whose lane has no room: all later announcements to them wait */
    bool held;                /* some send waits for its buffer: those after it with the same peer and tag wait too */
} pass;

static bool is_full(const pass *p, uint32_t peer)
{
    for (uint32_t i = 0; i < p->nfull; i++)
        if (p->full[i] == peer) return true;
    return p->nfull == HKI_COUNT(p->full); /* too many to tell: next time */
}

static bool next_in_order(const hk_request *s)
{
    for (const hk_request *e = s->prev; e; e = e->prev)
        if (e->kind == HKI_TASK_SEND && e->p2p == HKI_P2P_NEW && e->peer == s->peer && e->tag == s->tag) return false;
    return true;
}

static void announce(hk_comm *comm, hk_request *t, pass *p)
{
    if (is_full(p, t->peer) || (p->held && !next_in_order(t))) return;
    if (!hki_task_clear(t)) {
        p->held = true;
        return;
    }
    const header h = {.kind = ANNOUNCE, .id = t->id, .tag = t->tag, .dtype = t->desc->dtype, .bytes = t->in_bytes};
    if (put(comm, t->peer, &h, t->in, t->in_bytes <= EAGER ? t->in_bytes : 0)) t->p2p = HKI_P2P_ANNOUNCED;
    else p->full[p->nfull++] = t->peer;
}

static void advance_send(hk_comm *comm, hk_request *t, pass *p)
{
    if (t->p2p == HKI_P2P_NEW) announce(comm, t, p);
    const header h = {.kind = DATA, .id = t->id, .tag = t->tag, .dtype = t->desc->dtype, .bytes = t->in_bytes};
    while (t->p2p == HKI_P2P_MOVING && !t->finished) {
        const size_t n = hki_min(t->in_bytes - t->moved, port_of(comm)->slot_bytes - sizeof h);
        if (!put(comm, t->peer, &h, t->in + t->moved, n)) return;
        t->moved += n;
        if (t->moved == t->in_bytes) hki_task_finish(t, HK_OK);
    }
}

/* No earlier receive that has not matched could take the same announcements: matching keeps the order of the calls. */
static bool first_in_line(const hk_request *r)
{
    for (const hk_request *e = r->prev; e; e = e->prev)
        if (e->kind == HKI_TASK_RECV && e->p2p == HKI_P2P_NEW && e->tag == r->tag &&
            (e->peer == r->peer || e->peer == ANY_RANK || r->peer == ANY_RANK))
            return false;
    return true;
}

static void advance_recv(hk_comm *comm, hk_request *t)
{
    if (t->p2p == HKI_P2P_NEW && comm->waiting && first_in_line(t) && hki_task_clear(t)) match_waiting(comm, t);
    if (t->p2p != HKI_P2P_MATCHED || comm->broken) return;
    if (!put(comm, t->peer, &(header){.kind = GRANT, .id = t->matched_id}, NULL, 0)) return;
    t->p2p = HKI_P2P_MOVING;
    if (t->moved == t->out_bytes) hki_task_finish(t, HK_OK);
}

void hki_p2p_pump(hk_comm *comm)
{
    for (uint32_t r = 0; r < comm->shape.ranks && !comm->broken; r++) take(comm, r);
    pass p = {.nfull = 0};
    for (hk_request *t = comm->tasks, *next; t && !comm->broken; t = next) {
        next = hki_task_next(t);
        if (t->kind == HKI_TASK_RECV) advance_recv(comm, t);
        else if (t->kind == HKI_TASK_SEND) advance_send(comm, t, &p);
    }
}

uint32_t hki_p2p_waiting_for(const hk_request *t) { return t->peer; }

void hki_p2p_free(hk_comm *comm)
{
    hki_announcement *lists[] = {comm->waiting, comm->free_announcements};
    for (unsigned i = 0; i < HKI_COUNT(lists); i++)
        for (hki_announcement *a = lists[i], *next; a; a = next) {
            next = a->next;
            hki_free(a);
        }
}

/* ---- The public calls -------------------------------------------------------------------------------------------------- */

static hk_status check(hk_comm *comm, const char *name, const void *buf, size_t count, hk_dtype dtype, int peer, bool any, size_t *bytes)
{
    const size_t elem = hk_dtype_size(dtype);
    if (!elem) return hki_error(comm, HK_INVALID, "%s: dtype %d is none of HK_I8 ... HK_F64", name, (int)dtype);
    if (!(any && peer == HK_ANY_SOURCE) && (peer < 0 || peer >= (int)comm->shape.ranks))
        return hki_error(comm, HK_INVALID, "%s: peer %d is no rank of this communicator (0 to %u)", name, peer, comm->shape.ranks - 1);
    if (__builtin_mul_overflow(count, elem, bytes) || *bytes > SIZE_MAX / 2)
        return hki_error(comm, HK_INVALID, "%s: count exceeds the address space", name);
    if (*bytes && !buf) return hki_error(comm, HK_INVALID, "%s: buf is NULL but %zu bytes are to be moved", name, *bytes);
    if (*bytes && (uintptr_t)buf % elem) return hki_error(comm, HK_INVALID, "%s: buf is not aligned to its %zu-byte elements", name, elem);
    return HK_OK;
}

/* Is there something of this rank's own that a blocking call to itself could meet? */
static bool waiting_for_self(const hk_comm *comm)
{
    for (const hk_request *t = comm->tasks; t; t = t->next)
        if ((t->kind == HKI_TASK_SEND || t->kind == HKI_TASK_RECV) && (t->peer == comm->shape.rank || t->peer == ANY_RANK)) return true;
    return false;
}

static hk_status issue(hk_comm *comm, hki_task_kind kind, const void *in, void *out, size_t count, hk_dtype dtype, int peer, size_t bytes,
                       const hk_options *o, hk_request **request)
{
    if (comm->broken) return (hk_status)comm->notice.status;
    if (HKI_UNLIKELY(hki_comm_alarmed(comm))) {
        hki_comm_check(comm, hki_now_us());
        if (comm->broken) return (hk_status)comm->notice.status;
    }
    if (!request && peer == (int)comm->shape.rank && !comm->groups && !waiting_for_self(comm))
        return hki_error(comm, HK_INVALID, "a blocking %s to oneself never ends: post the other side first, or use a group or a request",
                         kind == HKI_TASK_SEND ? "send" : "recv");
    hk_request *t = hki_task_new(comm, kind);
    if (!t) return hki_error(comm, HK_NO_MEMORY, "out of memory for a request");
    const bool sends = kind == HKI_TASK_SEND;
    t->in = in;
    t->out = out;
    t->in_bytes = sends ? bytes : 0;
    t->out_bytes = sends ? 0 : bytes;
    t->peer = peer == HK_ANY_SOURCE ? ANY_RANK : (uint32_t)peer;
    const bool has = o && o->size >= offsetof(hk_options, priority);
    t->tag = has ? o->tag : 0;
    t->timeout_us = has && o->timeout_us ? hki_min(o->timeout_us, HKI_NO_LIMIT_US) : comm->settings.timeout_us;
    t->own_desc = (hki_desc){.op = sends ? HKI_SEND : HKI_RECV, .dtype = (uint8_t)dtype, .redop = 0xff, .root = peer, .count = count, .tag = t->tag};
    t->desc = &t->own_desc;
    t->seq = comm->next_id + 1;
    const hk_status status = hki_issue_with(t, o);
    return status ? status : hki_issue(comm, t, request);
}

static hk_status p2p(hki_task_kind kind, const void *in, void *out, size_t count, hk_dtype dtype, int peer, hk_comm *comm,
                     const hk_options *options, hk_request **request)
{
    const bool sends = kind == HKI_TASK_SEND;
    size_t bytes = 0;
    if (request) *request = NULL;
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    const uint64_t since = HKI_SEEN_ENTER(comm);
    hki_lock_take(&comm->engine->lock);
    status = check(comm, sends ? "send" : "recv", sends ? in : out, count, dtype, peer, !sends, &bytes);
    if (!status) status = issue(comm, kind, in, out, count, dtype, peer, bytes, options, request);
    HKI_SEEN_LEAVE(comm, since, sends ? "send" : "recv", comm->next_id, !request);
    hki_lock_give(&comm->engine->lock);
    return status;
}

HK_API hk_status hk_send(const void *buf, size_t count, hk_dtype dtype, int peer, hk_comm *comm, const hk_options *options, hk_request **request)
{
    return p2p(HKI_TASK_SEND, buf, NULL, count, dtype, peer, comm, options, request);
}

HK_API hk_status hk_recv(void *buf, size_t count, hk_dtype dtype, int peer, hk_comm *comm, const hk_options *options, hk_request **request)
{
    return p2p(HKI_TASK_RECV, NULL, buf, count, dtype, peer, comm, options, request);
}
