/* SPDX-License-Identifier: Apache-2.0 */
#include "net/area.h"

#include "os/os.h"

#include <string.h>

#define INLINE UINT32_MAX

typedef struct line {
    union { uint8_t payload[HKI_SHM_INLINE]; uint64_t fingerprint; };
    uint32_t bytes, place; /* place: INLINE, or where in the ring of payload, in lines */
    _Atomic uint64_t word; /* sequence | fingerprint << 32 */
} line;
_Static_assert(sizeof(line) == HKI_LINE, "one cache line");

typedef struct ack { _Alignas(HKI_LINE) _Atomic uint32_t seq; } ack;

/* Both directions between this rank and one peer. */
typedef struct pair {
    uint32_t sent, acked;           /* sequence of the last message to it; acknowledged as last seen */
    uint32_t taken;                 /* sequence of the last message from it that was released */
    bool light;                     /* its sleepers fence for both sides (hki_fence_all): stores need no fence of their own */
    line *out, *in;                 /* rings of lines; `in` is NULL until its area was found */
    _Atomic uint32_t *ack, *acks;   /* where this rank acknowledges; where the peer does */
    const _Atomic uint32_t *asleep; /* does anybody there sleep? */
    hki_view *view;
} pair;
_Static_assert(sizeof(pair) == HKI_LINE, "one cache line");

typedef struct reader { uint32_t peer, seq; } reader;

typedef struct shm_port {
    hki_port port;
    hki_area *area;
    uint32_t channel;
    pair *pairs;                 /* by rank */
    /* The ring of payload: positions in lines that only grow. Messages lie one behind the other, none wraps. */
    uint8_t *ring;
    uint64_t head;               /* where the next one goes */
    uint64_t first, last;        /* messages not yet reclaimed: parcels[first % PARCELS ...) */
    struct parcel { uint64_t begin; uint32_t readers; } parcels[HKI_SHM_LINES];
    reader *readers;             /* per parcel `ranks` entries */
    _Alignas(HKI_LINE) uint8_t scratch[HKI_SHM_INLINE];
} shm_port;

/* Payload written to lines that no cache holds any more is several times faster than to lines that the reader still has (2 ranks on one
 * die, 32 KiB: 1.9 against 4.8 us): the rings of the channels that take turns are together larger than a second-level cache. */
static size_t ring_bytes(const hki_shape *s) { return hki_max((s->slots + 1) * s->slot_bytes, (size_t)HKI_SHM_RING); }

static void lay_out(hki_area *a)
{
    const hki_shape *s = &a->shape;
    const size_t lanes = (size_t)s->channels * s->ranks;
    a->acks = hki_round_up(sizeof(hki_area_head), HKI_LINE);
    a->lanes = a->acks + lanes * sizeof(ack);
    a->slots = hki_round_up(a->lanes + lanes * HKI_SHM_LINES * sizeof(line), hki_page());
    a->bytes = a->slots + s->channels * ring_bytes(s);
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

static line *lines_of(const hki_area *a, uint8_t *base, uint32_t channel, uint32_t destination)
{
    return (line *)(base + a->lanes) + ((size_t)channel * a->shape.ranks + destination) * HKI_SHM_LINES;
}

static _Atomic uint32_t *ack_at(const hki_area *a, uint8_t *base, uint32_t channel, uint32_t source)
{
    return &((ack *)(base + a->acks))[(size_t)channel * a->shape.ranks + source].seq;
}

static uint8_t *ring_of(const hki_area *a, uint8_t *base, uint32_t channel) { return base + a->slots + channel * ring_bytes(&a->shape); }

/* The peer's side of a pair, once its area is there. */
static bool met(shm_port *p, uint32_t peer)
{
    pair *q = &p->pairs[peer];
    if (HKI_LIKELY(q->in != NULL)) return true;
    uint8_t *base = there(p->area, peer);
    if (!base) return false;
    const hki_segment_head *mine = hki_segment_head_of(p->area->segment->base), *its = q->view ? hki_segment_head_of(q->view->base) : mine;
    q->light = atomic_load(&mine->fences) && atomic_load(&its->fences);
    q->acks = ack_at(p->area, base, p->channel, p->port.rank);
    q->asleep = &its->asleep;
    q->in = lines_of(p->area, base, p->channel, p->port.rank);
    return true;
}

/* Stores what the peer looks for, and wakes it if it sleeps. One of the two sees the other: see area.h. */
static void publish64(shm_port *p, pair *q, _Atomic uint64_t *at, uint64_t value)
{
    if (q->light) {
        atomic_store_explicit(at, value, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
    } else {
        atomic_store(at, value);
    }
    if (q->asleep && HKI_UNLIKELY(atomic_load(q->asleep)) && q->view) hki_bell_ring(p->area->bell, q->view->bell);
}

static void publish32(shm_port *p, pair *q, _Atomic uint32_t *at, uint32_t value)
{
    if (q->light) {
        atomic_store_explicit(at, value, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
    } else {
        atomic_store(at, value);
    }
    if (HKI_UNLIKELY(atomic_load(q->asleep)) && q->view) hki_bell_ring(p->area->bell, q->view->bell);
}

/* Has peer acknowledged message seq? Looks at the peer's memory only when what was seen last does not settle it. */
static bool passed(shm_port *p, uint32_t peer, uint32_t seq)
{
    pair *q = &p->pairs[peer];
    if ((int32_t)(q->acked - seq) >= 0) return true;
    if (hki_area_left(p->area, peer)) q->acked = q->sent; /* it needed nothing more */
    if (!met(p, peer)) return p->area->left[peer];
    const uint32_t now = atomic_load(q->acks);
    if ((int32_t)(now - q->acked) > 0 && (int32_t)(q->sent - now) >= 0) q->acked = now; /* only what can be */
    return (int32_t)(q->acked - seq) >= 0;
}

/* Takes back the oldest parcel if all its readers have passed it. */
static bool reclaim(shm_port *p)
{
    struct parcel *c = &p->parcels[p->first % HKI_SHM_LINES];
    const reader *r = p->readers + (p->first % HKI_SHM_LINES) * p->port.ranks;
    for (; c->readers; c->readers--)
        if (!passed(p, r[c->readers - 1].peer, r[c->readers - 1].seq)) return p->port.holder = r[c->readers - 1].peer, false;
    p->first++;
    return true;
}

/* Room for n lines in one piece, at the head or, if they would wrap, at the ring's beginning. false: readers have to go on first. */
static bool make_room(shm_port *p, uint64_t n)
{
    const uint64_t size = ring_bytes(&p->area->shape) / HKI_LINE, at = p->head % size;
    const uint64_t begin = at + n > size ? p->head + size - at : p->head;
    while (p->first != p->last && (p->last - p->first == HKI_SHM_LINES || begin + n - p->parcels[p->first % HKI_SHM_LINES].begin > size))
        if (!reclaim(p)) return false;
    p->head = begin;
    return true;
}

static uint8_t *head_of(shm_port *p) { return p->ring + p->head % (ring_bytes(&p->area->shape) / HKI_LINE) * HKI_LINE; }

static hki_go reserve(hki_port *port, const uint32_t *peers, uint32_t n, size_t bytes, void **at, uint32_t *nat)
{
    shm_port *p = (shm_port *)port;
    HKI_ASSERT(bytes <= port->slot_bytes);
    for (uint32_t i = 0; i < n; i++) {
        const pair *q = &p->pairs[peers[i]];
        if (q->sent - q->acked >= HKI_SHM_LINES && !passed(p, peers[i], q->sent + 1 - HKI_SHM_LINES)) return port->holder = peers[i], HKI_NOT_YET;
    }
    *nat = 1;
    if (bytes <= HKI_SHM_INLINE) {
        const pair *q = &p->pairs[peers[0]];
        at[0] = n == 1 ? q->out[(q->sent + 1) % HKI_SHM_LINES].payload : p->scratch;
        return HKI_GO;
    }
    if (!make_room(p, (bytes + HKI_LINE - 1) / HKI_LINE)) return HKI_NOT_YET;
    at[0] = head_of(p);
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
    const bool outside = bytes > HKI_SHM_INLINE;
    const uint32_t place = outside ? (uint32_t)(p->head % (ring_bytes(&p->area->shape) / HKI_LINE)) : INLINE;
    reader *r = p->readers + (p->last % HKI_SHM_LINES) * port->ranks;
    for (uint32_t i = 0; i < n; i++) {
        pair *q = &p->pairs[peers[i]];
        const uint32_t seq = ++q->sent;
        line *l = &q->out[seq % HKI_SHM_LINES];
        if (outside) {
            l->fingerprint = fingerprint;
            r[i] = (reader){peers[i], seq};
        } else if (n > 1) {
            copy_words(l->payload, p->scratch, bytes);
        }
        l->bytes = (uint32_t)bytes;
        l->place = place;
        publish64(p, q, &l->word, seq | fingerprint << 32);
    }
    if (outside) {
        p->parcels[p->last++ % HKI_SHM_LINES] = (struct parcel){p->head, n};
        p->head += (bytes + HKI_LINE - 1) / HKI_LINE;
    }
    port->stats.messages_sent += n;
    port->stats.bytes_sent += n * bytes;
}

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *m)
{
    shm_port *p = (shm_port *)port;
    pair *q = &p->pairs[peer];
    if (HKI_UNLIKELY(!met(p, peer))) return HKI_NOT_YET;
    const uint32_t seq = q->taken + 1;
    line *l = &q->in[seq % HKI_SHM_LINES];
    const uint64_t word = atomic_load_explicit(&l->word, memory_order_acquire);
    if ((uint32_t)word != seq) return HKI_NOT_YET;
    const uint32_t bytes = l->bytes, place = l->place;
    m->bytes = bytes;
    if (place == INLINE && bytes <= HKI_SHM_INLINE) {
        m->data = l->payload;
        m->fingerprint = word >> 32;
        m->mask = UINT32_MAX;
        return HKI_GO;
    }
    if (bytes > port->slot_bytes || (uint64_t)place * HKI_LINE + bytes > ring_bytes(&p->area->shape)) {
        hki_port_break(port, HK_CORRUPT, peer);
        return HKI_BROKEN;
    }
    m->data = ring_of(p->area, p->area->there[peer], p->channel) + (size_t)place * HKI_LINE;
    m->fingerprint = l->fingerprint;
    m->mask = UINT64_MAX;
    return HKI_GO;
}

static void release(hki_port *port, uint32_t peer)
{
    shm_port *p = (shm_port *)port;
    pair *q = &p->pairs[peer];
    const uint32_t seq = ++q->taken, bytes = q->in[seq % HKI_SHM_LINES].bytes;
    port->stats.messages_received++;
    port->stats.bytes_received += bytes;
    /* Only a writer short of room or lines waits for an ack; it runs out of lines after 64. */
    if (bytes <= HKI_SHM_INLINE && seq % 16) atomic_store_explicit(q->ack, seq, memory_order_release);
    else publish32(p, q, q->ack, seq);
}

static uint32_t unread(hki_port *port, uint32_t peer)
{
    shm_port *p = (shm_port *)port;
    const pair *q = &p->pairs[peer];
    return passed(p, peer, q->sent) ? 0 : q->sent - q->acked;
}

static void close_port(hki_port *port)
{
    shm_port *p = (shm_port *)port;
    hki_free(p->pairs);
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
    p->ring = ring_of(a, a->base, channel);
    p->pairs = hki_alloc(s->ranks * sizeof *p->pairs);
    p->readers = hki_alloc((size_t)HKI_SHM_LINES * s->ranks * sizeof *p->readers);
    if (!p->pairs || !p->readers) {
        close_port(&p->port);
        return NULL;
    }
    for (uint32_t r = 0; r < s->ranks; r++)
        p->pairs[r] = (pair){.out = lines_of(a, a->base, channel, r), .ack = ack_at(a, a->base, channel, r), .view = a->peers[r]->view};
    return &p->port;
}
