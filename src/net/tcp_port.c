/* SPDX-License-Identifier: Apache-2.0
 * The lane verbs over TCP: messages are framed in a ring per link and read ahead in another. */
#include "net/tcp_link.h"

#include "os/os.h"

#include <string.h>

#define LENT 16384 /* bytes from which a payload is worth lending */

#define MANY 65536 /* bytes from which a message may open another socket */

static hki_link *dialled(const hki_tcp_port_t *p, uint32_t peer, uint32_t k) { return p->comm->out[hki_tcp_at(p->comm, p->channel, peer, k)]; }
static hki_link *accepted(const hki_tcp_port_t *p, uint32_t peer, uint32_t k) { return p->comm->in[hki_tcp_at(p->comm, p->channel, peer, k)]; }

/* Of the sockets there are, the one with the least to do; another one if all are busy and the message is large. */
static hki_link *least_busy(hki_tcp_port_t *p, uint32_t peer, size_t bytes)
{
    hki_link *best = NULL;
    for (uint32_t k = 0; k < p->comm->sockets; k++) {
        hki_link *l = dialled(p, peer, k);
        if (!l && (k == 0 || (bytes >= MANY && best->q_used))) l = hki_tcp_dial_rank(p->comm, peer, p->channel, k);
        if (!l) break;
        if (!best || (l->state == HKI_UP && l->q_used < best->q_used)) best = l;
        if (!best->q_used) break;
    }
    return best;
}

/* The link that a message goes out on. */
static hki_link *route(hki_tcp_port_t *p, uint32_t peer, size_t bytes)
{
    hki_link *in = p->port.rank > peer && bytes <= HKI_BACKWARD ? accepted(p, peer, 0) : NULL;
    if (in && in->state == HKI_UP && bytes <= in->queue_room) return in;
    return least_busy(p, peer, bytes);
}

static uint32_t tail(const hki_tcp_port_t *p, const hki_link *l) { return (l->q_first + l->q_used) % p->comm->shape.slots; }
static uint8_t *tail_at(const hki_tcp_port_t *p, hki_link *l) { return l->queue + tail(p, l) * (HKI_FRAME_HEAD + l->queue_room); }

static bool lends(const hki_tcp_port_t *p, const hki_outgoing *o)
{
    return o->lent && o->bytes >= LENT && p->unsent[(p->mark + 1) % HKI_LENDS] == 0;
}

static hki_go reserve(hki_port *port, const hki_outgoing *o, hki_places *places)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    HKI_ASSERT(o->bytes <= port->slot_bytes);
    const bool lent = lends(p, o);
    for (uint32_t i = 0; i < o->n; i++) {
        hki_link *l = route(p, o->peers[i], o->bytes);
        if (!l || l->q_used == p->comm->shape.slots || l->state == HKI_CLOSED) /* a broken link is reported by the check */
            return port->holder = o->peers[i], HKI_NOT_YET;
        if (!lent) places->at[i] = tail_at(p, l) + HKI_FRAME_HEAD;
    }
    places->n = places->near = lent ? 0 : o->n;
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
    const bool lent = lends(p, o);
    uint32_t *unsent = lent ? &p->unsent[++p->mark % HKI_LENDS] : NULL;
    if (lent) *unsent = o->n;
    describe(p->comm, o->fingerprint, &f);
    for (uint32_t i = 0; i < o->n; i++) {
        hki_link *l = route(p, o->peers[i], o->bytes);
        f.extra = ++p->sent[o->peers[i]];
        hki_frame_pack(&f, tail_at(p, l));
        l->parcels[tail(p, l)] = (hki_parcel){o->bytes, lent ? o->lent : NULL, unsent};
        l->q_used++;
        if (l->q_used == 1 || !l->want_out) hki_link_write(l);
    }
    port->stats.messages_sent += o->n;
    port->stats.bytes_sent += o->n * o->bytes;
    return lent && *unsent ? p->mark : 0;
}

static uint32_t waiting_on(const hki_link *l) { return l && l->state != HKI_CLOSED ? l->q_used : 0; }

static uint32_t unread(hki_port *port, uint32_t peer)
{
    const hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    uint32_t n = waiting_on(accepted(p, peer, 0));
    for (uint32_t k = 0; k < HKI_SOCKETS; k++) n += waiting_on(dialled(p, peer, k));
    return n;
}

/* What was lent is settled once the kernel has it. */
static bool settled(hki_port *port, uint64_t mark, bool up_to)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    if (mark + HKI_LENDS <= p->mark) return true; /* its place has been taken since */
    const uint64_t first = up_to ? p->mark >= HKI_LENDS ? p->mark - HKI_LENDS + 1 : 1 : mark;
    for (uint64_t m = first; m <= mark; m++) {
        if (!p->unsent[m % HKI_LENDS]) continue;
        for (uint32_t r = 0; r < port->ranks; r++)
            if (unread(port, r)) port->holder = r;
        return false;
    }
    return true;
}

static bool lendable(hki_port *port, const void *memory, size_t bytes) { return bytes >= LENT; }

/* Is the next message of the lane the oldest complete one of this link? */
static bool next_on(const hki_tcp_port_t *p, uint32_t peer, const hki_link *l)
{
    return l && l->complete && l->frame[l->first].extra == p->taken[peer] + 1;
}

static hki_link *holding(const hki_tcp_port_t *p, uint32_t peer)
{
    for (uint32_t k = 0; k < HKI_SOCKETS; k++)
        if (next_on(p, peer, accepted(p, peer, k))) return accepted(p, peer, k);
    return next_on(p, peer, dialled(p, peer, 0)) ? dialled(p, peer, 0) : NULL;
}

static void read_some(hki_link *l)
{
    if (l && l->state == HKI_UP && l->complete < HKI_READ_AHEAD) hki_link_read(l);
}

static hki_link *look(const hki_tcp_port_t *p, uint32_t peer)
{
    for (uint32_t k = 0; k < HKI_SOCKETS; k++) read_some(accepted(p, peer, k));
    if (peer > p->port.rank) read_some(dialled(p, peer, 0));
    return holding(p, peer);
}

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *m)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    hki_link *l = holding(p, peer);
    if (!l && p->eager) l = look(p, peer);
    if (!l) return HKI_NOT_YET;
    m->placed = l->place[l->first] != NULL;
    m->data = m->placed ? l->place[l->first] : l->read_ahead + l->first * l->ahead_room;
    m->bytes = l->frame[l->first].bytes;
    m->fingerprint = l->frame[l->first].fingerprint;
    m->mask = UINT64_MAX;
    return HKI_GO;
}

static void expect(hki_port *port, uint32_t peer, void *place, size_t bytes, uint64_t fingerprint)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    p->comm->expected[p->channel * port->ranks + peer] = (hki_expected){place, bytes, fingerprint, p->taken[peer] + 1};
}

static void release(hki_port *port, uint32_t peer)
{
    hki_tcp_port_t *p = (hki_tcp_port_t *)port;
    hki_link *l = holding(p, peer);
    p->taken[peer]++;
    p->comm->expected[p->channel * port->ranks + peer].place = NULL;
    port->stats.messages_received++;
    port->stats.bytes_received += l->frame[l->first].bytes;
    const bool was_full = l->complete == HKI_READ_AHEAD;
    l->first = (l->first + 1) % HKI_READ_AHEAD;
    l->complete--;
    if (was_full) hki_link_read(l); /* what waited in the inbox or the socket */
}

static void close_port(hki_port *port)
{
    hki_free(((hki_tcp_port_t *)port)->sent);
    hki_free(port);
}

static const hki_port_ops ops = {reserve, NULL, commit, settled, lendable, peek, NULL, expect, release, unread, close_port};

hki_port *hki_tcp_port(hki_tcp_comm *c, uint32_t channel)
{
    hki_tcp_port_t *p = hki_alloc(sizeof *p);
    if (!p) return NULL;
    p->port = (hki_port){.ops = &ops, .ranks = c->shape.ranks, .rank = c->shape.rank, .slot_bytes = c->shape.slot_bytes};
    p->comm = c;
    p->channel = channel;
    p->eager = c->shape.ranks <= 4 && !c->shape.crowded;
    p->sent = hki_alloc(2 * c->shape.ranks * sizeof *p->sent);
    if (!p->sent) {
        hki_free(p);
        return NULL;
    }
    p->taken = p->sent + c->shape.ranks;
    return &p->port;
}
