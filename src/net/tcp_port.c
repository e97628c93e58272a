/* SPDX-License-Identifier: Apache-2.0
 * The lane verbs over TCP: messages are framed in a ring per destination and read ahead in a ring per source. */
#include "net/tcp_link.h"

#include "os/os.h"

#include <string.h>

static hki_link *outgoing(hki_tcp_port_t *p, uint32_t peer)
{
    hki_link *l = p->comm->out[p->channel * p->port.ranks + peer];
    return l ? l : hki_tcp_dial_rank(p->comm, peer, p->channel);
}

static uint8_t *tail(hki_tcp_port_t *p, hki_link *l)
{
    return l->queue + (l->q_first + l->q_used) % p->comm->shape.slots * (HKI_FRAME_HEAD + p->port.slot_bytes);
}

static hki_go reserve(hki_port *port, const hki_outgoing *o, hki_places *places)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    HKI_ASSERT(o->bytes <= port->slot_bytes);
    for (uint32_t i = 0; i < o->n; i++) {
        hki_link *l = outgoing(p, o->peers[i]);
        if (!l || l->q_used == p->comm->shape.slots || l->state == HKI_CLOSED) /* a broken link is reported by the check */
            return port->holder = o->peers[i], HKI_NOT_YET;
        places->at[i] = tail(p, l) + HKI_FRAME_HEAD;
    }
    places->n = places->near = o->n;
    return HKI_GO;
}

/* The call a message belongs to, for reports at the other end. */
static void describe(const hki_tcp_comm *c, uint64_t fingerprint, hki_frame *f)
{
    for (uint64_t k = 0; k < HKI_KNOWN && k < c->entered; k++) {
        const hki_record *r = &c->own[(c->entered - k) % HKI_KNOWN];
        if (r->fingerprint != fingerprint) continue;
        f->seq = r->seq;
        memcpy(f->desc, r->body, sizeof f->desc);
        return;
    }
}

static uint64_t commit(hki_port *port, const hki_outgoing *o)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    hki_frame f = {.kind = HKI_FRAME_DATA, .bytes = (uint32_t)o->bytes, .fingerprint = o->fingerprint};
    describe(p->comm, o->fingerprint, &f);
    for (uint32_t i = 0; i < o->n; i++) {
        hki_link *l = outgoing(p, o->peers[i]);
        hki_frame_pack(&f, tail(p, l));
        l->queue_bytes[(l->q_first + l->q_used) % p->comm->shape.slots] = HKI_FRAME_HEAD + o->bytes;
        l->q_used++;
        if (l->q_used == 1 || !l->want_out) hki_link_write(l);
    }
    port->stats.messages_sent += o->n;
    port->stats.bytes_sent += o->n * o->bytes;
    return 0;
}

static bool settled(hki_port *port, uint64_t mark, bool up_to) { return true; }

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *m)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    hki_link *l = p->comm->in[p->channel * port->ranks + peer];
    if (!l || !l->complete) return HKI_NOT_YET;
    m->data = l->read_ahead + l->first * port->slot_bytes;
    m->bytes = l->frame[l->first].bytes;
    m->fingerprint = l->frame[l->first].fingerprint;
    m->mask = UINT64_MAX;
    m->placed = false;
    return HKI_GO;
}

static void release(hki_port *port, uint32_t peer)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    hki_link *l = p->comm->in[p->channel * port->ranks + peer];
    port->stats.messages_received++;
    port->stats.bytes_received += l->frame[l->first].bytes;
    const bool was_full = l->complete == HKI_READ_AHEAD;
    l->first = (l->first + 1) % HKI_READ_AHEAD;
    l->complete--;
    if (was_full) hki_link_read(l); /* what waited in the inbox or the socket */
}

static uint32_t unread(hki_port *port, uint32_t peer)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    const hki_link *l = p->comm->out[p->channel * port->ranks + peer];
    return l && l->state != HKI_CLOSED ? l->q_used : 0;
}

static void close_port(hki_port *port) { hki_free(port); }

static const hki_port_ops ops = {reserve, commit, settled, NULL, peek, release, unread, close_port};

hki_port *hki_tcp_port(hki_tcp_comm *c, uint32_t channel)
{
    hki_tcp_port_t *p = hki_alloc(sizeof *p);
    if (!p) return NULL;
    p->port = (hki_port){.ops = &ops, .ranks = c->shape.ranks, .rank = c->shape.rank, .slot_bytes = c->shape.slot_bytes};
    p->comm = c;
    p->channel = channel;
    return &p->port;
}
