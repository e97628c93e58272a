/* SPDX-License-Identifier: Apache-2.0 */
#include "net/area.h"

#include "os/os.h"

#include <string.h>

/* Where a message is, if not in the ring: in its line or on its card; in its sender's memory; where its reader wanted it. */
enum { INLINE = UINT32_MAX, LENT = UINT32_MAX - 1, PUT = UINT32_MAX - 2 };

/* One cache line, and one left free: some CPUs fetch them in pairs, and the next message's is being written. */
typedef struct line {
    union {
        uint8_t payload[HKI_SHM_INLINE];
        struct {
            uint64_t fingerprint;
            uint64_t at;           /* LENT, PUT: in the segment of sender, reader */
            uint64_t wanted;       /* in the sender's segment: where it wants message `wanted_ordinal` of that window; 0: nowhere */
            uint64_t wanted_bytes;
            uint32_t window, wanted_ordinal;
        };
    };
    uint32_t bytes, place; /* place: one of the above, or where in the ring, in lines */
    _Atomic uint64_t word; /* sequence | fingerprint << 32 */
    uint8_t unused[HKI_LINE];
} line;
_Static_assert(sizeof(line) == 2 * HKI_LINE, "two cache lines");

/* Of such a size that cards do not meet in a few sets of a cache. */
typedef struct card { uint8_t payload[HKI_SHM_CARD], unused[HKI_LINE]; } card;

static inline uint64_t lines_for(size_t bytes) { return (bytes + HKI_LINE - 1) / HKI_LINE; } /* of the ring */

typedef struct ack { _Alignas(HKI_LINE) _Atomic uint32_t seq; } ack;

/* Both directions between this rank and one peer. */
typedef struct pair {
    uint32_t sent, acked;           /* sequence of the last message to it; acknowledged as last seen */
    uint32_t taken;                 /* sequence of the last message from it that was released */
    bool light;                     /* both have met, and its sleepers fence for both sides (hki_fence_all): stores need no fence of their own */
    line *out, *in;                 /* rings of lines; `in` is NULL until its area was found */
    card *cards_out, *cards_in;     /* a card for each line */
    _Atomic uint32_t *ack, *acks;   /* where this rank acknowledges; where the peer does */
    const _Atomic uint32_t *asleep; /* does anybody there sleep? */
    hki_view *view;
    const uint8_t *ring;            /* its ring of payload */
    uint64_t touched;               /* lines of it that are mapped here */
} pair;

typedef struct reader { uint32_t peer, seq; } reader;

/* Where one end wants a message of the other; per pair one for windows of even, one for windows of odd number. (A rank is done with a
 * window only when it has what it wanted of it, so none of these is overwritten while it is good.) */
typedef struct wish {
    uint64_t fingerprint, at, bytes;
    uint32_t window, ordinal;
    uint32_t seq;                   /* of the message that told it */
} wish;
#define WISHES 2

#define PARCELS 64 /* messages in the ring at most, to all readers together */

typedef struct shm_port {
    hki_port port;
    hki_area *area;
    uint32_t channel;
    pair *pairs;                 /* by rank */
    /* The ring of payload: positions in lines that only grow. Messages lie one behind the other, none wraps. */
    uint8_t *ring;
    uint64_t ring_lines, usual_lines; /* usual: what is used of it unless more is needed */
    uint64_t touched;            /* lines that have memory behind them */
    uint64_t head;               /* where the next one goes */
    uint64_t first, last;        /* messages not yet reclaimed: parcels[first % PARCELS ...) */
    struct parcel { uint64_t begin; uint32_t readers; } parcels[PARCELS];
    reader *readers;             /* per parcel `ranks` entries */
    wish *theirs, *ours;         /* WISHES per peer; kept by who may put, and by who wants */
    uint64_t *put_at;            /* what the last reserve found: per peer of the message, where to put it; 0: not by put */
    uint64_t lent_at;            /* the same: where in this segment the payload is lent; 0: not lent */
    _Alignas(HKI_LINE) uint8_t scratch[HKI_SHM_INLINE];
} shm_port;

/* Payload written to lines that no cache holds any more is several times faster than to lines that the reader still has (2 ranks on one
 * die, 32 KiB: 1.9 against 4.8 us): the rings of the channels that take turns are together larger than a second-level cache. */
static size_t ring_bytes(const hki_shape *s)
{
    const size_t want = hki_max((s->slots + 1) * s->slot_bytes, (size_t)HKI_SHM_RING);
    return (size_t)1 << (64 - __builtin_clzll(want - 1)); /* a power of two: positions are masked */
}

#define PUTTING_US 1000000 /* for a put into this rank's memory to end, when it fails */

static void lay_out(hki_area *a)
{
    const hki_shape *s = &a->shape;
    const size_t lanes = (size_t)s->channels * s->ranks;
    a->acks = hki_round_up(sizeof(hki_area_head), HKI_LINE);
    a->lanes = hki_round_up(a->acks + lanes * sizeof(ack), sizeof(line));
    a->cards = a->lanes + lanes * HKI_SHM_LINES * sizeof(line);
    a->slots = hki_round_up(a->cards + lanes * HKI_SHM_LINES * sizeof(card), hki_page());
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

void hki_area_enter(hki_area *a, uint64_t seq, uint64_t fingerprint, const uint64_t *body, size_t words)
{
    hki_area_head *h = hki_area_mine(a);
    /* Readers check `entered` before and after copying: see hki_area_entered. Words are stored one by one, atomically. */
    _Atomic uint64_t *to = (_Atomic uint64_t *)&h->records[seq % HKI_RECORDS];
    atomic_store_explicit(&to[0], seq, memory_order_relaxed);
    atomic_store_explicit(&to[1], fingerprint, memory_order_relaxed);
    for (size_t i = 0; i < words; i++) atomic_store_explicit(&to[2 + i], body[i], memory_order_relaxed);
    atomic_store_explicit(&h->entered, seq, memory_order_release);
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

/* A dead rank puts nothing any more, whatever it was about. */
static bool is_putting(const hki_area *a, uint32_t rank)
{
    const hki_view *v = a->peers[rank]->view;
    return a->there[rank] && atomic_load(&((hki_area_head *)a->there[rank])->putting) && (!v || v->fd < 0 || hki_life_held(v->fd));
}

void hki_area_fail(hki_area *a, const hki_notice *n)
{
    hki_area_head *h = hki_area_mine(a);
    if (atomic_load(&h->state) != HKI_AREA_LIVE) return;
    h->notice = *n;
    atomic_store(&h->state, (uint32_t)HKI_AREA_FAILED);
    hki_area_ring(a);
    /* Who puts into our buffers has not seen this yet; a moment later none does. */
    const uint64_t until = hki_now_us() + PUTTING_US;
    for (uint32_t r = 0; r < a->shape.ranks; r++)
        while (r != a->shape.rank && is_putting(a, r) && hki_now_us() < until) hki_yield();
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

static card *cards_of(const hki_area *a, uint8_t *base, uint32_t channel, uint32_t destination)
{
    return (card *)(base + a->cards) + ((size_t)channel * a->shape.ranks + destination) * HKI_SHM_LINES;
}

/* The payload of message seq, whose line is l. */
static inline uint8_t *beside(line *l, card *cards, uint32_t seq, size_t bytes)
{
    return bytes <= HKI_SHM_INLINE ? l->payload : cards[seq % HKI_SHM_LINES].payload;
}

static _Atomic uint32_t *ack_at(const hki_area *a, uint8_t *base, uint32_t channel, uint32_t source)
{
    return &((ack *)(base + a->acks))[(size_t)channel * a->shape.ranks + source].seq;
}

static uint8_t *ring_of(const hki_area *a, uint8_t *base, uint32_t channel) { return base + a->slots + channel * ring_bytes(&a->shape); }

/* The peer's side of a pair, once its area is there. */
static __attribute__((noinline)) bool meet(shm_port *p, uint32_t peer)
{
    pair *q = &p->pairs[peer];
    uint8_t *base = there(p->area, peer);
    if (!base) return false;
    const hki_segment_head *mine = hki_segment_head_of(p->area->segment->base), *its = q->view ? hki_segment_head_of(q->view->base) : mine;
    q->light = atomic_load(&mine->fences) && atomic_load(&its->fences);
    q->acks = ack_at(p->area, base, p->channel, p->port.rank);
    q->ring = ring_of(p->area, base, p->channel);
    q->cards_in = cards_of(p->area, base, p->channel, p->port.rank);
    q->in = lines_of(p->area, base, p->channel, p->port.rank);
    return true;
}

static inline bool met(shm_port *p, uint32_t peer) { return p->pairs[peer].in || meet(p, peer); }

static inline void wake(const shm_port *p, const pair *q)
{
    if (HKI_UNLIKELY(atomic_load(q->asleep)) && q->view) hki_bell_ring(p->area->bell, q->view->bell);
}

/* Stores what the peer looks for, a word or an ack, and wakes it if it sleeps. One of the two sees the other: see area.h. */
#define PUBLISH(p, q, at, value)                                         \
    do {                                                                 \
        if ((q)->light) {                                                \
            atomic_store_explicit(at, value, memory_order_release);      \
            atomic_signal_fence(memory_order_seq_cst);                   \
        } else {                                                         \
            atomic_store(at, value);                                     \
        }                                                                \
        wake(p, q);                                                      \
    } while (0)

/* Has peer acknowledged message seq? Looks at the peer's memory only when what was seen last does not settle it. */
static __attribute__((noinline)) bool passed(shm_port *p, uint32_t peer, uint32_t seq)
{
    pair *q = &p->pairs[peer];
    if ((int32_t)(q->acked - seq) >= 0) return true;
    if (hki_area_left(p->area, peer)) q->acked = q->sent; /* it needed nothing more */
    if (!met(p, peer)) return p->area->left[peer];
    const uint32_t now = atomic_load(q->acks);
    if ((int32_t)(now - q->acked) > 0 && (int32_t)(q->sent - now) >= 0) q->acked = now; /* only what can be */
    return (int32_t)(q->acked - seq) >= 0;
}

/* Have all readers of a message passed it? */
static bool all_passed(shm_port *p, uint64_t parcel)
{
    struct parcel *c = &p->parcels[parcel % PARCELS];
    const reader *r = p->readers + (parcel % PARCELS) * p->port.ranks;
    for (; c->readers; c->readers--)
        if (!passed(p, r[c->readers - 1].peer, r[c->readers - 1].seq)) return p->port.holder = r[c->readers - 1].peer, false;
    return true;
}

/* Takes back the oldest parcel if all its readers have passed it. */
static bool reclaim(shm_port *p)
{
    if (!all_passed(p, p->first)) return false;
    p->first++;
    return true;
}

/* No line is left for another message to peer, which has to go on first. */
static inline bool is_full(shm_port *p, uint32_t peer)
{
    const pair *q = &p->pairs[peer];
    if (HKI_LIKELY(q->sent - q->acked < HKI_SHM_LINES) || passed(p, peer, q->sent + 1 - HKI_SHM_LINES)) return false;
    p->port.holder = peer;
    return true;
}

/* The ring's first turn takes memory from the system, in larger portions than pages. */
static uint64_t touch_ring(const shm_port *p, const uint8_t *ring, uint64_t touched, uint64_t end, bool write)
{
    const uint64_t to = hki_min(p->ring_lines, hki_round_up(end, HKI_SHM_RING / 4 / HKI_LINE));
    hki_populate((uint8_t *)(uintptr_t)ring + touched * HKI_LINE, (to - touched) * HKI_LINE, write);
    return to;
}

/* Room for n lines in one piece, at the head or, if they would wrap, at the ring's beginning. false: readers have to go on first. */
static bool make_room(shm_port *p, uint64_t n)
{
    const uint64_t size = p->ring_lines;
    if ((p->head & (size - 1)) >= p->usual_lines) { /* back to memory that was used before, as soon as all was read */
        while (p->first != p->last && reclaim(p)) { }
        if (p->first == p->last) p->head = hki_round_up(p->head, size);
    }
    const uint64_t at = p->head & (size - 1);
    const uint64_t begin = at + n > size ? p->head + size - at : p->head;
    while (p->first != p->last && (p->last - p->first == PARCELS || begin + n - p->parcels[p->first % PARCELS].begin > size))
        if (!reclaim(p)) return false;
    p->head = begin;
    const uint64_t end = (begin & (size - 1)) + n;
    if (HKI_UNLIKELY(end > p->touched)) p->touched = touch_ring(p, p->ring, p->touched, end, true);
    return true;
}

static uint8_t *head_of(shm_port *p) { return p->ring + (p->head & (p->ring_lines - 1)) * HKI_LINE; }

/* ---- Putting: into memory of a peer, which may fail and go its way at any moment. Who puts says so first and then looks whether the
 * peer has failed; a peer that fails says so first and then waits for those who put (hki_area_fail). */

static bool touch(uint64_t a, uint64_t an, uint64_t b, uint64_t bn) { return a < b + bn && b < a + an; }

/* Where peer wants this message, or 0. The message that told it must be read, or be about to be by the very step that sends this one;
 * memory that it lends must then be no other than what is wanted, or apart from it: a step reads an element before it writes it. */
static uint64_t wanted_by(shm_port *p, uint32_t peer, const hki_outgoing *o, uint32_t ordinal)
{
    const pair *q = &p->pairs[peer];
    const wish *w = &p->theirs[peer * WISHES + o->window % WISHES];
    if (!w->at || w->fingerprint != o->fingerprint || w->window != o->window || w->ordinal != ordinal || w->bytes != o->bytes) return 0;
    if (w->seq == q->taken + 1) {
        const line *l = &q->in[w->seq % HKI_SHM_LINES];
        if (!o->holds || (l->place == LENT && l->at != w->at && touch(l->at, l->bytes, w->at, w->bytes))) return 0;
    } else if ((int32_t)(q->taken - w->seq) < 0) {
        return 0;
    }
    return q->view && w->at >= sizeof(hki_segment_head) && w->at <= q->view->bytes && o->bytes <= q->view->bytes - w->at ? w->at : 0;
}

/* Fills places with the memory of those peers who want the message; returns how many. */
static uint32_t find_wanted(shm_port *p, const hki_outgoing *o, void **at)
{
    uint32_t n = 0;
    _Atomic uint32_t *putting = &hki_area_mine(p->area)->putting;
    for (uint32_t i = 0; i < o->n; i++) {
        p->put_at[i] = o->ordinal && o->bytes >= HKI_SHM_LENT ? wanted_by(p, o->peers[i], o, o->ordinal[i]) : 0;
        if (!p->put_at[i]) continue;
        atomic_store(putting, 1u);
        if (atomic_load(&hki_area_of(p->area, o->peers[i])->state) == HKI_AREA_LIVE) at[n++] = p->pairs[o->peers[i]].view->base + p->put_at[i];
        else p->put_at[i] = 0;
    }
    if (!n && o->ordinal) atomic_store_explicit(putting, 0u, memory_order_release);
    return n;
}

static __attribute__((noinline)) hki_go reserve_outside(shm_port *p, const hki_outgoing *o, hki_places *places)
{
    if (o->lent && o->bytes >= HKI_SHM_LENT) hki_segment_find(p->area->segment, o->lent, o->bytes, &p->lent_at);
    /* Even what is lent or put takes its turn among the parcels. */
    if (!make_room(p, p->lent_at ? 0 : lines_for(o->bytes))) return HKI_NOT_YET;
    const uint32_t put = find_wanted(p, o, places->at + 1);
    if (put == o->n || p->lent_at) { /* no copy of ours */
        memmove(places->at, places->at + 1, put * sizeof *places->at);
        places->n = put;
        places->near = 0;
        return HKI_GO;
    }
    places->at[0] = head_of(p);
    places->n = 1 + put;
    return HKI_GO;
}

/* Does it travel in its line or on its card? What has several readers and is too long for their lines is written once, to the ring. */
static inline bool travels_beside(const hki_outgoing *o)
{
    return o->bytes <= HKI_SHM_INLINE || (o->bytes <= HKI_SHM_CARD && o->n == 1 && !o->lent && !o->ordinal);
}

static hki_go reserve(hki_port *port, const hki_outgoing *o, hki_places *places)
{
    shm_port *p = (shm_port *)port;
    HKI_ASSERT(o->bytes <= port->slot_bytes);
    for (uint32_t i = 0; i < o->n; i++)
        if (is_full(p, o->peers[i])) return HKI_NOT_YET;
    places->n = places->near = 1;
    p->lent_at = 0;
    if (!travels_beside(o)) {
        if (o->lent || o->ordinal) return reserve_outside(p, o, places);
        if (!make_room(p, lines_for(o->bytes))) return HKI_NOT_YET;
        places->at[0] = head_of(p);
        return HKI_GO;
    }
    const pair *q = &p->pairs[o->peers[0]];
    const uint32_t seq = q->sent + 1;
    places->at[0] = o->n == 1 ? beside(&q->out[seq % HKI_SHM_LINES], q->cards_out, seq, o->bytes) : p->scratch;
    return HKI_GO;
}

/* Word by word, as the scratch was written: a wider load would wait for the narrower stores before it. */
static void copy_words(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) memcpy(to + at, from + at, 8);
}

/* What a message tells of this rank's wishes. */
static void tell_wish(shm_port *p, const hki_outgoing *o, uint32_t seq, line *l)
{
    uint64_t at = 0;
    if (o->wanted && o->n == 1 && o->wanted_bytes >= HKI_SHM_LENT && hki_segment_find(p->area->segment, o->wanted, o->wanted_bytes, &at)) {
        p->ours[o->peers[0] * WISHES + o->window % WISHES] =
            (wish){o->fingerprint, at, o->wanted_bytes, o->window, o->wanted_ordinal, seq};
        l->wanted_bytes = o->wanted_bytes;
        l->window = o->window;
        l->wanted_ordinal = o->wanted_ordinal;
    }
    l->wanted = at;
}

static void commit_beside(shm_port *p, const hki_outgoing *o)
{
    for (uint32_t i = 0; i < o->n; i++) {
        pair *q = &p->pairs[o->peers[i]];
        const uint32_t seq = ++q->sent;
        line *l = &q->out[seq % HKI_SHM_LINES];
        if (o->n > 1) copy_words(l->payload, p->scratch, o->bytes);
        l->bytes = (uint32_t)o->bytes;
        l->place = INLINE;
        PUBLISH(p, q, &l->word, seq | o->fingerprint << 32);
    }
}

static inline void send_one(shm_port *p, uint32_t peer, const void *payload, size_t bytes, uint64_t fingerprint)
{
    pair *q = &p->pairs[peer];
    const uint32_t seq = ++q->sent;
    line *l = &q->out[seq % HKI_SHM_LINES];
    uint8_t *to = beside(l, q->cards_out, seq, bytes);
    if (bytes == 8) memcpy(to, payload, 8);
    else if (bytes <= 2 * HKI_LINE) hki_copy_small(to, payload, bytes);
    else memcpy(to, payload, bytes);
    l->bytes = (uint32_t)bytes;
    l->place = INLINE;
    PUBLISH(p, q, &l->word, seq | fingerprint << 32);
}

static hki_go send_small(hki_port *port, const uint32_t *peers, uint32_t n, const void *payload, size_t bytes, uint64_t fingerprint)
{
    shm_port *p = (shm_port *)port;
    for (uint32_t i = 0; i < n; i++) /* all or none */
        if (is_full(p, peers[i])) return HKI_NOT_YET;
    for (uint32_t i = 0; i < n; i++) send_one(p, peers[i], payload, bytes, fingerprint);
    port->stats.messages_sent += n;
    port->stats.bytes_sent += n * bytes;
    return HKI_GO;
}

static __attribute__((noinline)) uint64_t commit_outside(shm_port *p, const hki_outgoing *o)
{
    const uint32_t place = p->lent_at ? LENT : (uint32_t)(p->head & (p->ring_lines - 1));
    reader *r = p->readers + (p->last % PARCELS) * p->port.ranks;
    uint32_t readers = 0, put = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        pair *q = &p->pairs[o->peers[i]];
        const uint32_t seq = ++q->sent;
        line *l = &q->out[seq % HKI_SHM_LINES];
        l->bytes = (uint32_t)o->bytes;
        l->place = place;
        l->fingerprint = o->fingerprint;
        l->at = p->lent_at;
        tell_wish(p, o, seq, l);
        if (p->put_at[i]) l->place = PUT, l->at = p->put_at[i], put++;
        else r[readers++] = (reader){o->peers[i], seq};
        PUBLISH(p, q, &l->word, seq | o->fingerprint << 32);
    }
    if (put) atomic_store_explicit(&hki_area_mine(p->area)->putting, 0u, memory_order_release);
    p->port.lent += o->bytes * (p->lent_at ? o->n : put);
    if (!readers) return 0;
    p->parcels[p->last++ % PARCELS] = (struct parcel){p->head, readers};
    if (p->lent_at) return p->last;
    p->head += lines_for(o->bytes);
    return 0;
}

/* Through the ring, with nothing lent, put or wanted. */
static void commit_ring(shm_port *p, const hki_outgoing *o)
{
    const uint32_t place = (uint32_t)(p->head & (p->ring_lines - 1));
    reader *r = p->readers + (p->last % PARCELS) * p->port.ranks;
    for (uint32_t i = 0; i < o->n; i++) {
        pair *q = &p->pairs[o->peers[i]];
        const uint32_t seq = ++q->sent;
        line *l = &q->out[seq % HKI_SHM_LINES];
        l->bytes = (uint32_t)o->bytes;
        l->place = place;
        l->fingerprint = o->fingerprint;
        l->wanted = 0;
        r[i] = (reader){o->peers[i], seq};
        PUBLISH(p, q, &l->word, seq | o->fingerprint << 32);
    }
    p->parcels[p->last++ % PARCELS] = (struct parcel){p->head, o->n};
    p->head += lines_for(o->bytes);
}

static uint64_t commit(hki_port *port, const hki_outgoing *o)
{
    shm_port *p = (shm_port *)port;
    port->stats.messages_sent += o->n;
    port->stats.bytes_sent += o->n * o->bytes;
    if (travels_beside(o)) commit_beside(p, o);
    else if (o->lent || o->ordinal) return commit_outside(p, o);
    else commit_ring(p, o);
    return 0;
}

static bool settled(hki_port *port, uint64_t mark, bool up_to)
{
    shm_port *p = (shm_port *)port;
    while (up_to && p->first < mark)
        if (!reclaim(p)) return false;
    return p->first >= mark || all_passed(p, mark - 1);
}

static bool lendable(hki_port *port, const void *memory, size_t bytes)
{
    return hki_segment_has(((shm_port *)port)->area->segment, memory, bytes);
}

/* The message is outside its line. false: nothing that a peer could have sent in good faith. */
static __attribute__((noinline)) bool locate(shm_port *p, uint32_t peer, const line *l, uint32_t place, hki_msg *m)
{
    const pair *q = &p->pairs[peer];
    const uint64_t at = l->at;
    if (l->wanted) {
        wish *w = &p->theirs[peer * WISHES + l->window % WISHES];
        *w = (wish){l->fingerprint, l->wanted, l->wanted_bytes, l->window, l->wanted_ordinal, q->taken + 1};
    }
    if (place == PUT) {
        const wish *w = &p->ours[peer * WISHES];
        if (at != w[0].at && at != w[1].at) return false;
        m->data = NULL;
        m->placed = true;
        return true;
    }
    if (place == LENT) {
        if (!q->view || at < sizeof(hki_segment_head) || at > q->view->bytes || m->bytes > q->view->bytes - at) return false;
        m->data = q->view->base + at;
        return true;
    }
    if ((uint64_t)place * HKI_LINE + m->bytes > p->ring_lines * HKI_LINE) return false;
    m->data = q->ring + (size_t)place * HKI_LINE;
    return true;
}

static __attribute__((noinline)) hki_go peek_outside(shm_port *p, uint32_t peer, const line *l, hki_msg *m)
{
    pair *q = &p->pairs[peer];
    const uint32_t bytes = l->bytes, place = l->place;
    m->bytes = bytes;
    m->placed = false;
    m->fingerprint = l->fingerprint;
    m->mask = UINT64_MAX;
    if (HKI_LIKELY(!l->wanted && place < p->ring_lines && bytes <= p->port.slot_bytes && (p->ring_lines - place) * HKI_LINE >= bytes)) {
        const uint64_t end = place + lines_for(bytes);
        if (HKI_UNLIKELY(end > q->touched)) q->touched = touch_ring(p, q->ring, q->touched, end, false);
        m->data = q->ring + (size_t)place * HKI_LINE;
    } else if (bytes > p->port.slot_bytes || !locate(p, peer, l, place, m)) {
        hki_port_break(&p->port, HK_CORRUPT, peer);
        return HKI_BROKEN;
    }
    return HKI_GO;
}

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *m)
{
    shm_port *p = (shm_port *)port;
    pair *q = &p->pairs[peer];
    if (HKI_UNLIKELY(!q->in) && !meet(p, peer)) return HKI_NOT_YET;
    const uint32_t seq = q->taken + 1;
    line *l = &q->in[seq % HKI_SHM_LINES];
    const uint64_t word = atomic_load_explicit(&l->word, memory_order_acquire);
    if ((uint32_t)word != seq) return HKI_NOT_YET;
    const uint32_t bytes = l->bytes;
    if (HKI_UNLIKELY(l->place != INLINE || bytes > HKI_SHM_CARD)) return peek_outside(p, peer, l, m);
    m->bytes = bytes;
    m->placed = false;
    m->data = beside(l, q->cards_in, seq, bytes);
    m->fingerprint = word >> 32;
    m->mask = UINT32_MAX;
    return HKI_GO;
}

static const void *glance(hki_port *port, uint32_t peer, size_t bytes, uint64_t fingerprint)
{
    const shm_port *p = (const shm_port *)port;
    const pair *q = &p->pairs[peer];
    if (HKI_UNLIKELY(!q->in)) return NULL;
    const uint32_t seq = q->taken + 1;
    line *l = &q->in[seq % HKI_SHM_LINES];
    if (atomic_load_explicit(&l->word, memory_order_acquire) == (seq | fingerprint << 32) && l->bytes == bytes && l->place == INLINE)
        return beside(l, q->cards_in, seq, bytes);
    /* Written before the word, the card will be here with it. */
    for (size_t at = 0; bytes > HKI_SHM_INLINE && at < bytes; at += HKI_LINE) __builtin_prefetch(q->cards_in[seq % HKI_SHM_LINES].payload + at);
    return NULL;
}

/* What was read of lent memory counts only if the lender had not failed by then: a rank that fails gives its buffers back to its caller. */
static void check_lender(shm_port *p, uint32_t peer)
{
    atomic_thread_fence(memory_order_acquire);
    const hki_area_head *h = hki_area_of(p->area, peer);
    if (h && atomic_load(&h->state) == HKI_AREA_FAILED) hki_port_break(&p->port, HK_ABORTED, peer);
}

static void release(hki_port *port, uint32_t peer)
{
    shm_port *p = (shm_port *)port;
    pair *q = &p->pairs[peer];
    const uint32_t seq = ++q->taken;
    const line *l = &q->in[seq % HKI_SHM_LINES];
    const uint32_t bytes = l->bytes;
    port->stats.messages_received++;
    port->stats.bytes_received += bytes;
    /* Only a writer short of room or lines waits for an ack; it runs out of lines after 16. */
    if (HKI_LIKELY(l->place == INLINE && seq % (HKI_SHM_LINES / 4))) {
        atomic_store_explicit(q->ack, seq, memory_order_release);
        return;
    }
    if (HKI_UNLIKELY(l->place == LENT)) check_lender(p, peer);
    PUBLISH(p, q, q->ack, seq);
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
    hki_free(p->theirs);
    hki_free(p->put_at);
    hki_free(p);
}

static const hki_port_ops ops = {reserve, send_small, commit, settled, lendable, peek, glance, NULL, release, unread, close_port};

hki_port *hki_shm_port(hki_area *a, uint32_t channel)
{
    const hki_shape *s = &a->shape;
    shm_port *p = hki_alloc(sizeof *p);
    if (!p) return NULL;
    p->port = (hki_port){.ops = &ops, .ranks = s->ranks, .rank = s->rank, .slot_bytes = s->slot_bytes};
    p->port.small_bytes = HKI_SHM_CARD;
    p->area = a;
    p->channel = channel;
    p->ring = ring_of(a, a->base, channel);
    p->ring_lines = ring_bytes(s) / HKI_LINE;
    p->usual_lines = (s->crowded ? HKI_SHM_RING / 8 : HKI_SHM_RING) / HKI_LINE;
    p->pairs = hki_alloc(s->ranks * sizeof *p->pairs);
    p->readers = hki_alloc((size_t)PARCELS * s->ranks * sizeof *p->readers);
    p->theirs = hki_alloc(2 * WISHES * s->ranks * sizeof *p->theirs);
    p->put_at = hki_alloc(s->ranks * sizeof *p->put_at);
    if (!p->pairs || !p->readers || !p->theirs || !p->put_at) {
        close_port(&p->port);
        return NULL;
    }
    p->ours = p->theirs + WISHES * s->ranks;
    for (uint32_t r = 0; r < s->ranks; r++) {
        hki_view *v = a->peers[r]->view;
        p->pairs[r] = (pair){.out = lines_of(a, a->base, channel, r), .cards_out = cards_of(a, a->base, channel, r), .ack = ack_at(a, a->base, channel, r), .view = v};
        /* Known before its area is: a rank may sleep before it has heard of this communicator, or be sent to and never heard. */
        p->pairs[r].asleep = &hki_segment_head_of(v ? v->base : a->segment->base)->asleep;
    }
    return &p->port;
}
