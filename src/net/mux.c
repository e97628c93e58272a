/* SPDX-License-Identifier: Apache-2.0 */
#include "net/mux.h"

#include <string.h>

typedef struct mux_port {
    hki_port port;
    hki_port *near, *far;
    bool *is_near;          /* by rank */
    uint32_t *sorted;       /* destinations of one message, near ones first */
    uint64_t last_near, last_far; /* marks given by either; the one in the lowest bit of ours tells whose it is */
} mux_port;

static hki_port *via(mux_port *m, uint32_t peer) { return m->is_near[peer] ? m->near : m->far; }

static hki_go pass_on(mux_port *m, hki_port *from, hki_go go)
{
    if (go == HKI_BROKEN) hki_port_break(&m->port, from->status, from->culprit);
    if (go == HKI_NOT_YET) m->port.holder = from->holder;
    return go;
}

/* The near and the far part of a message, as two. Only one that is all near may be put: its peers keep their order. */
static void split(mux_port *m, const hki_outgoing *o, hki_outgoing *near, hki_outgoing *far)
{
    uint32_t n = 0, f = o->n;
    for (uint32_t i = 0; i < o->n; i++)
        if (m->is_near[o->peers[i]]) m->sorted[n++] = o->peers[i];
    for (uint32_t i = o->n; i-- > 0;)
        if (!m->is_near[o->peers[i]]) m->sorted[--f] = o->peers[i];
    *near = *far = *o;
    near->peers = m->sorted;
    near->n = n;
    far->peers = m->sorted + n;
    far->n = o->n - n;
    far->wanted = NULL;
    far->ordinal = NULL;
    if (far->n) near->ordinal = NULL;
    if (n && far->n) near->lent = far->lent = NULL; /* one mark cannot stand for two */
}

static hki_go reserve(hki_port *port, const hki_outgoing *o, hki_places *places)
{
    mux_port *m = (mux_port *)port;
    hki_outgoing near, far;
    hki_places a = {.at = places->at}, b = {0};
    split(m, o, &near, &far);
    hki_go go = HKI_GO;
    if (near.n) go = pass_on(m, m->near, m->near->ops->reserve(m->near, &near, &a));
    b.at = places->at + a.n;
    if (go == HKI_GO && far.n) go = pass_on(m, m->far, m->far->ops->reserve(m->far, &far, &b));
    places->n = a.n + b.n;
    places->near = far.n ? places->n : a.near;
    return go;
}

static uint64_t commit(hki_port *port, const hki_outgoing *o)
{
    mux_port *m = (mux_port *)port;
    hki_outgoing near, far;
    split(m, o, &near, &far);
    uint64_t mark = 0;
    if (near.n && (mark = m->near->ops->commit(m->near, &near))) m->last_near = mark, mark = mark << 1;
    if (far.n && (mark = m->far->ops->commit(m->far, &far))) m->last_far = mark, mark = mark << 1 | 1;
    return mark;
}

static bool settled_in(mux_port *m, hki_port *p, uint64_t mark, bool up_to)
{
    const bool done = p->ops->settled(p, mark, up_to);
    if (!done) m->port.holder = p->holder;
    return done;
}

static bool settled(hki_port *port, uint64_t mark, bool up_to)
{
    mux_port *m = (mux_port *)port;
    if (!up_to) return settled_in(m, mark & 1 ? m->far : m->near, mark >> 1, false);
    return (!m->last_near || settled_in(m, m->near, m->last_near, true)) && (!m->last_far || settled_in(m, m->far, m->last_far, true));
}

static bool lendable(hki_port *port, const void *memory, size_t bytes)
{
    const mux_port *m = (mux_port *)port;
    return (m->near->ops->lendable && m->near->ops->lendable(m->near, memory, bytes)) ||
           (m->far->ops->lendable && m->far->ops->lendable(m->far, memory, bytes));
}

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *msg)
{
    mux_port *m = (mux_port *)port;
    hki_port *p = via(m, peer);
    return pass_on(m, p, p->ops->peek(p, peer, msg));
}

static void expect(hki_port *port, uint32_t peer, void *place, size_t bytes, uint64_t fingerprint)
{
    hki_port *p = via((mux_port *)port, peer);
    if (p->ops->expect) p->ops->expect(p, peer, place, bytes, fingerprint);
}

static void release(hki_port *port, uint32_t peer)
{
    hki_port *p = via((mux_port *)port, peer);
    p->ops->release(p, peer);
    if (HKI_UNLIKELY(p->status)) hki_port_break(port, p->status, p->culprit);
}

static uint32_t unread(hki_port *port, uint32_t peer)
{
    hki_port *p = via((mux_port *)port, peer);
    return p->ops->unread(p, peer);
}

static void close_port(hki_port *port)
{
    mux_port *m = (mux_port *)port;
    hki_free(m->is_near);
    hki_free(m->sorted);
    hki_free(m);
}

static const hki_port_ops ops = {reserve, NULL, commit, settled, lendable, peek, NULL, expect, release, unread, close_port};

hki_port *hki_mux_port(hki_port *near, hki_port *far, hki_peer *const *peers, bool all_far)
{
    mux_port *m = hki_alloc(sizeof *m);
    if (!m) return NULL;
    m->port = (hki_port){.ops = &ops, .ranks = near->ranks, .rank = near->rank, .slot_bytes = hki_min(near->slot_bytes, far->slot_bytes)};
    m->near = near;
    m->far = far;
    m->is_near = hki_alloc(near->ranks * sizeof *m->is_near);
    m->sorted = hki_alloc(near->ranks * sizeof *m->sorted);
    if (!m->is_near || !m->sorted) {
        close_port(&m->port);
        return NULL;
    }
    for (uint32_t r = 0; r < near->ranks; r++) m->is_near[r] = r == near->rank || (!all_far && peers[r]->view);
    return &m->port;
}
