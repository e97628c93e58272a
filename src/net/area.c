/* SPDX-License-Identifier: Apache-2.0 */
#include "net/area.h"

#include "os/os.h"

#include <string.h>

#define INLINE_SLOT UINT32_MAX

typedef struct line {
    union { uint8_t payload[HKI_SHM_INLINE]; uint64_t fingerprint; };
    uint32_t bytes, slot;
    _Atomic uint64_t word; /* sequence | fingerprint << 32 */
} line;
_Static_assert(sizeof(line) == HKI_LINE, "one cache line");

typedef struct ack { _Alignas(HKI_LINE) _Atomic uint32_t seq; } ack;

typedef struct reader { uint32_t peer, seq; } reader;

typedef struct shm_port {
    hki_port port;
    hki_area *area;
    uint32_t channel;
    uint32_t *sent, *acked;      /* by destination: sequence of the last message; acknowledged as last seen */
    uint32_t *taken;             /* by source: sequence of the last message released */
    uint32_t slot;               /* next in the ring */
    uint32_t *slot_readers;      /* per slot: how many readers it was sent to */
    reader *readers;             /* per slot `ranks` entries */
    _Alignas(HKI_LINE) uint8_t scratch[HKI_SHM_INLINE];
} shm_port;

static void lay_out(hki_area *a)
{
    const hki_shape *s = &a->shape;
    const size_t lanes = (size_t)s->channels * s->ranks;
    a->acks = hki_round_up(sizeof(hki_area_head), HKI_LINE);
    a->lanes = a->acks + lanes * sizeof(ack);
    a->slots = hki_round_up(a->lanes + lanes * HKI_SHM_LINES * sizeof(line), hki_page());
    a->bytes = a->slots + (size_t)s->channels * s->slots * s->slot_bytes;
}

/* Ranks of one process share a segment, so an area is found by communicator and rank. */
static uint64_t key(const hki_shape *s, uint32_t rank) { return hki_mix(s->uid, rank) | 2; }

hk_status hki_area_open(hki_area *a, const hki_shape *shape, hki_segment *segment, hki_peer *const *peers, int bell)
{
    memset(a, 0, sizeof *a);
    a->shape = *shape;
    a->segment = segment;
    a->peers = peers;
    a->bell = bell;
    lay_out(a);
    a->there = hki_alloc(shape->ranks * sizeof *a->there);
    a->left = hki_alloc(shape->ranks * sizeof *a->left);
    a->base = a->there && a->left ? hki_segment_alloc(segment, a->bytes) : NULL;
    if (!a->base) {
        hki_free(a->there);
        hki_free(a->left);
        return HK_NO_MEMORY;
    }
    hki_area_head *h = hki_area_mine(a);
    atomic_store(&h->now.waiting_for, UINT32_MAX);
    atomic_store(&h->state, (uint32_t)HKI_AREA_LIVE);
    atomic_store(&h->uid, shape->uid);
    a->there[shape->rank] = a->base;
    const hk_status status = hki_segment_publish(segment, key(shape, shape->rank), a->base);
    if (status) {
        hki_segment_free(segment, a->base);
        hki_free(a->there);
        hki_free(a->left);
        a->base = NULL;
    }
    return status;
}

void hki_area_close(hki_area *a)
{
    if (!a->base) return;
    if (atomic_load(&hki_area_mine(a)->state) == HKI_AREA_FAILED) {
        const size_t head = hki_round_up(sizeof(hki_area_head), hki_page());
        hki_punch(a->base + head, a->bytes - head);
    } else {
        atomic_store(&hki_area_mine(a)->uid, (uint64_t)0);
        hki_segment_withdraw(a->segment, key(&a->shape, a->shape.rank));
        hki_segment_free(a->segment, a->base);
    }
    hki_free(a->there);
    hki_free(a->left);
    a->base = NULL;
}

static uint8_t *there(hki_area *a, uint32_t rank)
{
    if (HKI_LIKELY(a->there[rank] != NULL)) return a->there[rank];
    const hki_view *v = a->peers[rank]->view;
    return a->there[rank] = v ? hki_view_find(v, key(&a->shape, rank), a->bytes, &a->left[rank]) : NULL;
}

hki_area_head *hki_area_of(hki_area *a, uint32_t rank) { return (hki_area_head *)there(a, rank); }

bool hki_area_left(hki_area *a, uint32_t rank)
{
    const hki_area_head *h = hki_area_of(a, rank);
    return h ? atomic_load(&h->uid) != a->shape.uid : a->left[rank];
}

void hki_area_enter(hki_area *a, const hki_record *r)
{
    hki_area_head *h = hki_area_mine(a);
    /* Readers check `entered` before and after copying: see hki_area_entered. Words are stored one by one, atomically. */
    _Atomic uint64_t *to = (_Atomic uint64_t *)&h->records[r->seq % HKI_RECORDS];
    const uint64_t *from = (const uint64_t *)r;
    for (size_t i = 0; i < sizeof *r / 8; i++) atomic_store_explicit(&to[i], from[i], memory_order_relaxed);
    atomic_store_explicit(&h->entered, r->seq, memory_order_release);
}

bool hki_area_entered(hki_area *a, uint32_t rank, uint64_t seq, hki_record *out)
{
    hki_area_head *h = hki_area_of(a, rank);
    if (!h || atomic_load(&h->uid) != a->shape.uid || atomic_load_explicit(&h->entered, memory_order_acquire) < seq) return false;
    _Atomic uint64_t *from = (_Atomic uint64_t *)&h->records[seq % HKI_RECORDS];
    uint64_t *to = (uint64_t *)out;
    for (size_t i = 0; i < sizeof *out / 8; i++) to[i] = atomic_load_explicit(&from[i], memory_order_acquire);
    /* The writer fills the entry of `entered + 1` at any time: one that close to being overwritten is not trusted. */
    return atomic_load_explicit(&h->entered, memory_order_acquire) + 2 < seq + HKI_RECORDS && out->seq == seq &&
           atomic_load(&h->uid) == a->shape.uid; /* else the owner has left and another communicator lives there */
}

void hki_area_fail(hki_area *a, const hki_notice *n)
{
    hki_area_head *h = hki_area_mine(a);
    if (atomic_load(&h->state) != HKI_AREA_LIVE) return;
    h->notice = *n;
    atomic_store(&h->state, (uint32_t)HKI_AREA_FAILED);
    hki_area_ring(a);
}

static void ring_if_asleep(hki_area *a, uint32_t rank)
{
    const hki_view *v = a->peers[rank]->view;
    if (v && HKI_UNLIKELY(atomic_load(&hki_segment_head_of(v->base)->asleep))) hki_bell_ring(a->bell, v->bell);
}

void hki_area_ring(hki_area *a)
{
    for (uint32_t r = 0; r < a->shape.ranks; r++)
        if (r != a->shape.rank) ring_if_asleep(a, r);
}

/* ---- The port --------------------------------------------------------------------------------------------------------- */

static line *line_at(const hki_area *a, uint8_t *base, uint32_t channel, uint32_t destination, uint32_t seq)
{
    const size_t lane = (size_t)channel * a->shape.ranks + destination;
    return (line *)(base + a->lanes) + lane * HKI_SHM_LINES + seq % HKI_SHM_LINES;
}

static _Atomic uint32_t *ack_at(const hki_area *a, uint8_t *base, uint32_t channel, uint32_t source)
{
    return &((ack *)(base + a->acks))[(size_t)channel * a->shape.ranks + source].seq;
}

static uint8_t *slot_at(const hki_area *a, uint8_t *base, uint32_t channel, uint32_t slot)
{
    return base + a->slots + ((size_t)channel * a->shape.slots + slot) * a->shape.slot_bytes;
}

/* Has peer acknowledged message seq? Looks at the peer's memory only when what was seen last does not settle it. */
static bool passed(shm_port *p, uint32_t peer, uint32_t seq)
{
    if ((int32_t)(p->acked[peer] - seq) >= 0) return true;
    uint8_t *base = there(p->area, peer);
    if (hki_area_left(p->area, peer)) p->acked[peer] = p->sent[peer]; /* it needed nothing more */
    if (!base) return p->area->left[peer];
    const uint32_t now = atomic_load(ack_at(p->area, base, p->channel, p->port.rank));
    if ((int32_t)(now - p->acked[peer]) > 0 && (int32_t)(p->sent[peer] - now) >= 0) p->acked[peer] = now; /* only what can be */
    return (int32_t)(p->acked[peer] - seq) >= 0;
}

static bool slot_free(shm_port *p)
{
    const reader *r = p->readers + (size_t)p->slot * p->port.ranks;
    uint32_t *left = &p->slot_readers[p->slot];
    for (; *left; --*left)
        if (!passed(p, r[*left - 1].peer, r[*left - 1].seq)) return p->port.holder = r[*left - 1].peer, false;
    return true;
}

static hki_go reserve(hki_port *port, const uint32_t *peers, uint32_t n, size_t bytes, void **at, uint32_t *nat)
{
    shm_port *p = (shm_port *)port;
    HKI_ASSERT(bytes <= port->slot_bytes);
    for (uint32_t i = 0; i < n; i++)
        if (p->sent[peers[i]] - p->acked[peers[i]] >= HKI_SHM_LINES && !passed(p, peers[i], p->sent[peers[i]] + 1 - HKI_SHM_LINES))
            return port->holder = peers[i], HKI_NOT_YET;
    *nat = 1;
    if (bytes <= HKI_SHM_INLINE) {
        at[0] = p->scratch;
        return HKI_GO;
    }
    if (!slot_free(p)) return HKI_NOT_YET;
    at[0] = slot_at(p->area, p->area->base, p->channel, p->slot);
    return HKI_GO;
}

/* Word by word, as the scratch was written: a wider load would wait for the narrower stores before it. */
static void copy_words(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) memcpy(to + at, from + at, 8);
}

static void commit(hki_port *port, const uint32_t *peers, uint32_t n, size_t bytes, uint64_t fingerprint)
{
    shm_port *p = (shm_port *)port;
    const bool in_slot = bytes > HKI_SHM_INLINE;
    reader *r = p->readers + (size_t)p->slot * port->ranks;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t peer = peers[i], seq = ++p->sent[peer];
        line *l = line_at(p->area, p->area->base, p->channel, peer, seq);
        if (in_slot) {
            l->fingerprint = fingerprint;
            r[i] = (reader){peer, seq};
        } else {
            copy_words(l->payload, p->scratch, bytes);
        }
        l->bytes = (uint32_t)bytes;
        l->slot = in_slot ? p->slot : INLINE_SLOT;
        atomic_store(&l->word, seq | fingerprint << 32);
    }
    if (in_slot) {
        p->slot_readers[p->slot] = n;
        p->slot = (p->slot + 1) % p->area->shape.slots;
    }
    for (uint32_t i = 0; i < n; i++) ring_if_asleep(p->area, peers[i]);
    port->stats.messages_sent += n;
    port->stats.bytes_sent += n * bytes;
}

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *m)
{
    shm_port *p = (shm_port *)port;
    uint8_t *base = there(p->area, peer);
    if (HKI_UNLIKELY(!base)) return HKI_NOT_YET;
    const uint32_t seq = p->taken[peer] + 1;
    line *l = line_at(p->area, base, p->channel, port->rank, seq);
    const uint64_t word = atomic_load_explicit(&l->word, memory_order_acquire);
    if ((uint32_t)word != seq) return HKI_NOT_YET;
    const uint32_t bytes = l->bytes, slot = l->slot;
    m->bytes = bytes;
    if (slot == INLINE_SLOT && bytes <= HKI_SHM_INLINE) {
        m->data = l->payload;
        m->fingerprint = word >> 32;
        m->mask = UINT32_MAX;
        return HKI_GO;
    }
    if (slot >= p->area->shape.slots || bytes > port->slot_bytes) {
        hki_port_break(port, HK_CORRUPT, peer);
        return HKI_BROKEN;
    }
    m->data = slot_at(p->area, base, p->channel, slot);
    m->fingerprint = l->fingerprint;
    m->mask = UINT64_MAX;
    return HKI_GO;
}

static void release(hki_port *port, uint32_t peer)
{
    shm_port *p = (shm_port *)port;
    const uint32_t seq = ++p->taken[peer];
    line *l = line_at(p->area, p->area->there[peer], p->channel, port->rank, seq);
    const uint32_t bytes = l->bytes;
    _Atomic uint32_t *a = ack_at(p->area, p->area->base, p->channel, peer);
    port->stats.messages_received++;
    port->stats.bytes_received += bytes;
    /* Only a writer short of slots or lines waits for an ack; it runs out of lines after 64. */
    if (bytes <= HKI_SHM_INLINE && seq % 16) {
        atomic_store_explicit(a, seq, memory_order_release);
        return;
    }
    atomic_store(a, seq);
    ring_if_asleep(p->area, peer);
}

static uint32_t unread(hki_port *port, uint32_t peer)
{
    shm_port *p = (shm_port *)port;
    return passed(p, peer, p->sent[peer]) ? 0 : p->sent[peer] - p->acked[peer];
}

static void close_port(hki_port *port)
{
    shm_port *p = (shm_port *)port;
    hki_free(p->sent);
    hki_free(p->slot_readers);
    hki_free(p->readers);
    hki_free(p);
}

static const hki_port_ops ops = {reserve, commit, peek, release, unread, close_port};

hki_port *hki_shm_port(hki_area *a, uint32_t channel)
{
    const hki_shape *s = &a->shape;
    shm_port *p = hki_alloc(sizeof *p);
    if (!p) return NULL;
    p->port = (hki_port){.ops = &ops, .ranks = s->ranks, .rank = s->rank, .slot_bytes = s->slot_bytes};
    p->area = a;
    p->channel = channel;
    p->sent = hki_alloc(3 * s->ranks * sizeof *p->sent);
    p->slot_readers = hki_alloc(s->slots * sizeof *p->slot_readers);
    p->readers = hki_alloc((size_t)s->slots * s->ranks * sizeof *p->readers);
    if (!p->sent || !p->slot_readers || !p->readers) {
        close_port(&p->port);
        return NULL;
    }
    p->acked = p->sent + s->ranks;
    p->taken = p->acked + s->ranks;
    return &p->port;
}
