/* SPDX-License-Identifier: Apache-2.0 */
#include "net/mux.h"

#include <string.h>

typedef struct mux_port {
    hki_port port;
    hki_port *near, *far;
    bool *is_near;          /* by rank */
    uint32_t *sorted;       /* destinations of one message, near ones first */
} mux_port;

static hki_port *via(mux_port *m, uint32_t peer) { return m->is_near[peer] ? m->near : m->far; }

static hki_go pass_on(mux_port *m, hki_port *from, hki_go go)
{
    if (go == HKI_BROKEN) hki_port_break(&m->port, from->status, from->culprit);
    if (go == HKI_NOT_YET) m->port.holder = from->holder;
    return go;
}

/* Splits peers; returns how many are near. */
static uint32_t split(mux_port *m, const uint32_t *peers, uint32_t n)
{
    uint32_t near = 0, far = n;
    for (uint32_t i = 0; i < n; i++)
        if (m->is_near[peers[i]]) m->sorted[near++] = peers[i];
    for (uint32_t i = n; i-- > 0;)
        if (!m->is_near[peers[i]]) m->sorted[--far] = peers[i];
    return near;
}

static hki_go reserve(hki_port *port, const uint32_t *peers, uint32_t n, size_t bytes, void **at, uint32_t *nat)
{
    mux_port *m = (mux_port *)port;
    const uint32_t near = split(m, peers, n);
    uint32_t a = 0, b = 0;
    hki_go go = HKI_GO;
    if (near) go = pass_on(m, m->near, m->near->ops->reserve(m->near, m->sorted, near, bytes, at, &a));
    if (go == HKI_GO && near < n)
        go = pass_on(m, m->far, m->far->ops->reserve(m->far, m->sorted + near, n - near, bytes, at + a, &b));
    *nat = a + b;
    return go;
}

static void commit(hki_port *port, const uint32_t *peers, uint32_t n, size_t bytes, uint64_t fingerprint)
{
    mux_port *m = (mux_port *)port;
    const uint32_t near = split(m, peers, n);
    if (near) m->near->ops->commit(m->near, m->sorted, near, bytes, fingerprint);
    if (near < n) m->far->ops->commit(m->far, m->sorted + near, n - near, bytes, fingerprint);
}

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *msg)
{
    mux_port *m = (mux_port *)port;
    hki_port *p = via(m, peer);
    return pass_on(m, p, p->ops->peek(p, peer, msg));
}

static void release(hki_port *port, uint32_t peer)
{
    hki_port *p = via((mux_port *)port, peer);
    p->ops->release(p, peer);
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

static const hki_port_ops ops = {reserve, commit, peek, release, unread, close_port};

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
