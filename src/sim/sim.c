/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LINES 16           /* messages under way in a lane */
#define SHORT 56           /* payloads up to here carry half of the fingerprint, as in shared memory */
#define NO_SLOT UINT32_MAX

typedef enum event { SENDS, TAKES, ENDS, BLOCKS, FAILS, DIES, TURNS } event;

/* Where a rank wants a message of another. */
typedef struct hki_sim_wish { void *at; size_t bytes; uint32_t window, ordinal; } hki_sim_wish;

/* Message number k of a lane, k = 1, 2, ..., stands in line k % LINES until the source has seen its release. */
typedef struct line {
    uint64_t seen;         /* when the destination sees it */
    uint64_t free;         /* when the source sees its release; NEVER before that */
    uint64_t fingerprint;
    uint32_t bytes, slot;
    const void *lent;      /* where its sender lends it */
    bool placed;           /* it was put where its reader wanted it */
    hki_sim_wish wish;     /* what it tells */
} line;

#define LENDS 1024 /* marks remembered: more than a run has under way */

typedef struct lane {
    uint32_t sent, taken, freed; /* numbers of the last message sent, released, seen released */
    uint64_t last_seen, last_free;
    line *lines;
} lane;

typedef struct reader { uint32_t rank, number; } reader;

typedef struct rank {
    hki_port port;
    hki_sim *sim;
    hki_run run;
    bool loaded, event;
    hki_sim_verdict verdict;
    uint64_t wake;         /* when it runs next */
    /* What the last block was, to write it down once. */
    uint32_t steps_done, waiting_for;
    bool waits_to_send, hesitated;
    bool *lacks;           /* by rank, of the last time it ran */
    /* Payload slots of this source. */
    uint8_t *slots;
    uint32_t slot, *slot_readers;
    reader *readers;       /* `ranks` a slot */
    /* Memory lent, and what the last reserve decided. */
    uint64_t mark;
    uint32_t *lent_readers; /* [mark % LENDS][destination]: number of the message that lent it, 0: none */
    struct expected { uint8_t *place; size_t bytes; uint64_t fingerprint; uint32_t number; } *expected; /* by rank */
    bool lending, *putting; /* putting: by position in the message's list of peers */
    /* Storage of the run. */
    uint8_t *temp, *done;
    size_t temp_bytes, done_bytes;
    /* Faults. */
    uint64_t stall_from, stall_to, kill_at;
    uint32_t kill_after, corrupt_message, messages, payloads;
    size_t corrupt_byte;
} rank;

struct hki_sim {
    hki_sim_params params;
    hki_prng prng;
    uint64_t now, hash;
    rank *ranks;
    lane *lanes;           /* [source * ranks + destination] */
    line *lines;
    uint8_t *slots;
    uint32_t *slot_readers, *lent_readers;
    struct expected *expected;
    bool *putting;
    reader *readers;
    const void **sources;
    void **places;
    uint32_t *marks;
    bool *lacks;
    char *text;
    size_t text_len;
    bool text_full;
};

/* ---- Writing down --------------------------------------------------------------------------------------------------- */

static void put(hki_sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(hki_sim *s, const char *format, ...)
{
    const size_t room = s->params.transcript_bytes;
    if (s->text_full || room < 8) return;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(s->text + s->text_len, room - 4 - s->text_len, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < room - 4 - s->text_len) {
        s->text_len += (size_t)n;
    } else {
        memcpy(s->text + s->text_len, "...", 4);
        s->text_full = true;
    }
}

static void note(hki_sim *s, uint32_t r, event what, uint32_t peer, uint32_t number, size_t bytes)
{
    s->hash = hki_mix(hki_mix(s->hash, s->now), (uint64_t)r << 32 | what);
    s->hash = hki_mix(hki_mix(s->hash, (uint64_t)peer << 32 | number), bytes);
    if (s->params.transcript_bytes == 0) return;
    const rank *k = &s->ranks[r];
    put(s, "%6llu  %u ", (unsigned long long)s->now, r);
    switch (what) {
    case SENDS: put(s, "sends #%u to %u, %zu bytes\n", number, peer, bytes); break;
    case TAKES: put(s, "takes #%u from %u, %zu bytes\n", number, peer, bytes); break;
    case ENDS: put(s, "is done\n"); break;
    case BLOCKS: put(s, k->waits_to_send ? "waits for %u to make room\n" : "waits for a message of %u\n", peer); break;
    case FAILS: put(s, "fails: %s, rank %u\n", hk_status_name(k->run.status), peer); break;
    case DIES: put(s, "is killed\n"); break;
    case TURNS: put(s, "goes on event-driven\n"); break;
    }
}

/* ---- Lanes ---------------------------------------------------------------------------------------------------------- */

static lane *lane_of(const hki_sim *s, uint32_t from, uint32_t to) { return &s->lanes[(size_t)from * s->params.ranks + to]; }
static line *line_of(const lane *l, uint32_t number) { return &l->lines[number % LINES]; }

static uint64_t delay(hki_sim *s) { return s->params.delay_us + hki_prng_below(&s->prng, s->params.jitter_us + 1); }

static bool hesitates(rank *k)
{
    hki_sim *s = k->sim;
    if (!s->params.hesitate || hki_prng_below(&s->prng, s->params.hesitate)) return false;
    return k->hesitated = true;
}

/* Has the source seen the release of message `number` of this lane? */
static bool passed(const hki_sim *s, lane *l, uint32_t number)
{
    while (l->freed < l->taken && line_of(l, l->freed + 1)->free <= s->now) l->freed++;
    return l->freed >= number;
}

static hki_go lacking(rank *k, uint32_t of)
{
    k->lacks[of] = true;
    k->port.holder = of;
    return HKI_NOT_YET;
}

/* The reader that still holds the next slot, or UINT32_MAX. */
static uint32_t slot_holder(const rank *k)
{
    const reader *r = k->readers + (size_t)k->slot * k->port.ranks;
    uint32_t *left = &k->slot_readers[k->slot];
    for (; *left; --*left)
        if (!passed(k->sim, lane_of(k->sim, k->port.rank, r[*left - 1].rank), r[*left - 1].number)) return r[*left - 1].rank;
    return UINT32_MAX;
}

static bool chance(hki_sim *s) { return s->params.lends && hki_prng_below(&s->prng, 4); }

static bool lendable(hki_port *port, const void *memory, size_t bytes) { return chance(((rank *)port)->sim); }

/* The rules of net/area.c: the message that told the wish was released, or is held by this very step and lends nothing that overlaps. */
static void *wanted_by(rank *k, uint32_t peer, const hki_outgoing *o, uint32_t ordinal)
{
    const lane *l = lane_of(k->sim, peer, k->port.rank);
    for (uint32_t number = l->taken + 1, back = 0; back < LINES - 1 && number > 0; number--, back++) {
        const line *m = line_of(l, number);
        const hki_sim_wish *w = &m->wish;
        if (number > l->sent || !w->at || m->fingerprint != o->fingerprint || w->window != o->window || w->ordinal != ordinal) continue;
        if (number == l->taken + 1 && (!o->holds || m->seen > k->sim->now)) continue;
        const uint8_t *a = m->lent, *b = w->at;
        if (number == l->taken + 1 && a && a != b && a < b + w->bytes && b < a + m->bytes) continue;
        return w->bytes == o->bytes ? w->at : NULL;
    }
    return NULL;
}

static uint32_t find_wanted(rank *k, const hki_outgoing *o, void **at)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        void *wanted = o->ordinal && o->bytes && chance(k->sim) ? wanted_by(k, o->peers[i], o, o->ordinal[i]) : NULL;
        k->putting[i] = wanted != NULL;
        if (wanted) at[n++] = wanted;
    }
    return n;
}

static hki_go reserve(hki_port *port, const hki_outgoing *o, hki_places *places)
{
    rank *k = (rank *)port;
    HKI_ASSERT(o->bytes <= port->slot_bytes);
    if (k->messages >= k->kill_after) k->kill_at = k->sim->now;
    port->holder = o->peers[0];
    if (k->kill_at <= k->sim->now || hesitates(k)) return HKI_NOT_YET;
    for (uint32_t i = 0; i < o->n; i++) {
        lane *l = lane_of(k->sim, port->rank, o->peers[i]);
        if (l->sent >= LINES && !passed(k->sim, l, l->sent + 1 - LINES)) return lacking(k, o->peers[i]);
    }
    k->lending = o->lent && o->bytes && chance(k->sim);
    const uint32_t put = find_wanted(k, o, places->at + 1), holder = o->bytes && !k->lending && put < o->n ? slot_holder(k) : UINT32_MAX;
    if (holder != UINT32_MAX) return lacking(k, holder);
    places->near = 1;
    places->n = 1 + put;
    places->at[0] = k->slots + (size_t)k->slot * port->slot_bytes;
    if (k->lending || (put && put == o->n)) {
        memmove(places->at, places->at + 1, put * sizeof *places->at);
        places->near = 0;
        places->n = put;
    }
    return HKI_GO;
}

/* A message that its reader expects may be stored there from now on, long before it is seen. */
static bool store_expected(rank *k, uint32_t peer, const hki_outgoing *o, uint32_t number)
{
    const struct expected *e = &k->sim->ranks[peer].expected[k->port.rank];
    if (!e->place || e->number != number || e->bytes != o->bytes || e->fingerprint != o->fingerprint || !chance(k->sim)) return false;
    memcpy(e->place, k->lending ? o->lent : k->slots + (size_t)k->slot * k->port.slot_bytes, o->bytes);
    return true;
}

static void expect(hki_port *port, uint32_t peer, void *place, size_t bytes, uint64_t fingerprint)
{
    rank *k = (rank *)port;
    const lane *l = lane_of(k->sim, peer, port->rank);
    if (l->sent <= l->taken) k->expected[peer] = (struct expected){place, bytes, fingerprint, l->taken + 1};
}

static uint64_t commit(hki_port *port, const hki_outgoing *o)
{
    rank *k = (rank *)port;
    hki_sim *s = k->sim;
    uint32_t *lent = k->lent_readers + (k->mark + 1) % LENDS * port->ranks, readers = 0;
    if (k->lending) memset(lent, 0, port->ranks * sizeof *lent);
    for (uint32_t i = 0; i < o->n; i++) {
        lane *l = lane_of(s, port->rank, o->peers[i]);
        const uint32_t number = ++l->sent;
        line *m = line_of(l, number);
        const bool in_slot = o->bytes && !k->lending && !k->putting[i];
        *m = (line){.seen = s->now + delay(s), .free = HKI_SIM_NEVER, .fingerprint = o->fingerprint, .bytes = (uint32_t)o->bytes,
                    .slot = in_slot ? k->slot : NO_SLOT, .placed = k->putting[i], .lent = k->lending && !k->putting[i] ? o->lent : NULL};
        if (!m->placed && store_expected(k, o->peers[i], o, number)) m->placed = true;
        if (o->n == 1) m->wish = (hki_sim_wish){o->wanted, o->wanted_bytes, o->window, o->wanted_ordinal};
        m->seen = l->last_seen = hki_max(m->seen, l->last_seen);
        if (number == l->taken + 1) s->ranks[o->peers[i]].wake = hki_min(s->ranks[o->peers[i]].wake, m->seen);
        if (in_slot) k->readers[(size_t)k->slot * port->ranks + readers++] = (reader){o->peers[i], number};
        if (m->lent) lent[o->peers[i]] = number;
        note(s, port->rank, SENDS, o->peers[i], number, o->bytes);
    }
    if (o->bytes && k->payloads++ == k->corrupt_message && readers) k->slots[(size_t)k->slot * port->slot_bytes + k->corrupt_byte % o->bytes] ^= 0x10;
    if (readers) {
        k->slot_readers[k->slot] = readers;
        k->slot = (k->slot + 1) % s->params.slots;
    }
    k->messages++;
    port->stats.messages_sent += o->n;
    port->stats.bytes_sent += o->n * o->bytes;
    return k->lending ? ++k->mark : 0;
}

static bool settled(hki_port *port, uint64_t mark, bool up_to)
{
    rank *k = (rank *)port;
    HKI_ASSERT(k->mark - mark < LENDS);
    for (uint64_t m = up_to && k->mark >= LENDS ? k->mark - LENDS + 1 : up_to ? 1 : mark; m <= mark; m++)
        for (uint32_t r = 0; r < port->ranks; r++) {
            const uint32_t number = k->lent_readers[m % LENDS * port->ranks + r];
            if (number && !passed(k->sim, lane_of(k->sim, port->rank, r), number)) return lacking(k, r), false;
        }
    return true;
}

static hki_go peek(hki_port *port, uint32_t peer, hki_msg *m)
{
    rank *k = (rank *)port;
    const lane *l = lane_of(k->sim, peer, port->rank);
    const line *at = line_of(l, l->taken + 1);
    if (k->kill_at <= k->sim->now || hesitates(k)) return HKI_NOT_YET;
    if (l->taken == l->sent || at->seen > k->sim->now) return lacking(k, peer);
    const uint64_t mask = at->bytes <= SHORT ? UINT32_MAX : UINT64_MAX;
    const size_t slot = at->slot == NO_SLOT ? 0 : at->slot;
    const void *data = at->lent ? at->lent : k->sim->ranks[peer].slots + slot * port->slot_bytes;
    *m = (hki_msg){data, at->bytes, at->fingerprint & mask, mask, at->placed};
    return HKI_GO;
}

static void release(hki_port *port, uint32_t peer)
{
    rank *k = (rank *)port;
    hki_sim *s = k->sim;
    lane *l = lane_of(s, peer, port->rank);
    line *m = line_of(l, ++l->taken);
    k->expected[peer].place = NULL;
    m->free = l->last_free = hki_max(s->now + delay(s), l->last_free);
    s->ranks[peer].wake = hki_min(s->ranks[peer].wake, m->free);
    port->stats.messages_received++;
    port->stats.bytes_received += m->bytes;
    note(s, port->rank, TAKES, peer, l->taken, m->bytes);
}

static uint32_t unread(hki_port *port, uint32_t peer)
{
    const rank *k = (rank *)port;
    lane *l = lane_of(k->sim, port->rank, peer);
    return passed(k->sim, l, l->sent) ? 0 : l->sent - l->freed;
}

static void close_port(hki_port *port) { }

static const hki_port_ops ops = {reserve, NULL, commit, settled, lendable, peek, NULL, expect, release, unread, close_port};

/* When something on its way reaches rank r next. Only the first untaken message of a lane can make a difference. */
static uint64_t next_change(hki_sim *s, uint32_t r)
{
    uint64_t t = HKI_SIM_NEVER;
    for (uint32_t q = 0; q < s->params.ranks; q++) {
        const lane *from = lane_of(s, q, r);
        lane *to = lane_of(s, r, q);
        const uint64_t seen = from->taken < from->sent ? line_of(from, from->taken + 1)->seen : HKI_SIM_NEVER;
        if (seen > s->now) t = hki_min(t, seen);
        if (!passed(s, to, to->sent) && to->freed < to->taken) t = hki_min(t, line_of(to, to->freed + 1)->free);
    }
    return t;
}

/* ---- Running -------------------------------------------------------------------------------------------------------- */

static void hand_over(hki_sim *s, rank *k)
{
    hki_run_hand_over(&k->run);
    if (k->steps_done || k->waiting_for != UINT32_MAX) note(s, k->port.rank, TURNS, 0, k->run.step, 0);
}

static void blocked(hki_sim *s, rank *k, uint32_t before)
{
    const hki_run *r = &k->run;
    const bool news = r->steps_done != k->steps_done || r->waiting_for != k->waiting_for || r->waits_to_send != k->waits_to_send;
    k->verdict.waiting_for = k->waiting_for = r->waiting_for;
    k->verdict.waits_to_send = k->waits_to_send = r->waits_to_send;
    k->steps_done = r->steps_done;
    if (k->kill_at <= s->now) {
        k->verdict.state = HKI_SIM_KILLED;
        note(s, k->port.rank, DIES, 0, 0, 0);
        return;
    }
    k->verdict.state = HKI_SIM_BLOCKED;
    k->wake = k->hesitated ? s->now + 1 + hki_prng_below(&s->prng, s->params.jitter_us + 1) : next_change(s, k->port.rank);
    if (news && !k->hesitated) note(s, k->port.rank, BLOCKS, r->waiting_for, 0, 0);
    const bool lasting = !r->event && r->steps_done == before && s->params.executor != HKI_SIM_INLINE;
    if (lasting && hki_prng_below(&s->prng, 2) == 0) {
        hand_over(s, k);
        k->wake = s->now;
    }
}

static void step(hki_sim *s, rank *k)
{
    const uint32_t before = k->run.steps_done;
    k->wake = HKI_SIM_NEVER;
    k->hesitated = false;
    memset(k->lacks, 0, s->params.ranks * sizeof *k->lacks);
    k->verdict.at_us = s->now;
    switch (k->run.event ? hki_run_event(&k->run) : hki_run_inline(&k->run)) {
    case HKI_RUN_DONE:
        k->verdict.state = HKI_SIM_DONE;
        note(s, k->port.rank, ENDS, 0, 0, 0);
        break;
    case HKI_RUN_FAILED:
        k->verdict.state = HKI_SIM_FAILED;
        k->verdict.status = k->run.status;
        k->verdict.culprit = k->run.culprit;
        note(s, k->port.rank, FAILS, k->run.culprit, 0, 0);
        break;
    case HKI_RUN_BLOCKED:
        blocked(s, k, before);
        break;
    }
}

static bool can_run(const rank *k) { return k->verdict.state == HKI_SIM_RUNNING || k->verdict.state == HKI_SIM_BLOCKED; }

/* When rank k runs next, faults considered. */
static uint64_t due(const rank *k)
{
    if (!k->loaded || !can_run(k) || k->wake == HKI_SIM_NEVER) return HKI_SIM_NEVER;
    return k->wake >= k->stall_from && k->wake < k->stall_to ? k->stall_to : k->wake;
}

/* One of those that run first, or NULL. */
static rank *pick(hki_sim *s, uint64_t *at)
{
    rank *best = NULL;
    uint64_t ties = 0;
    *at = HKI_SIM_NEVER;
    for (uint32_t r = 0; r < s->params.ranks; r++) {
        const uint64_t t = due(&s->ranks[r]);
        if (t == HKI_SIM_NEVER || t > *at) continue;
        ties = t < *at ? 1 : ties + 1;
        *at = t;
        if (ties == 1 || hki_prng_below(&s->prng, ties) == 0) best = &s->ranks[r];
    }
    return best;
}

/* Nothing is on its way. Runs still in line wait in vain for one step although another may be possible: they are handed over. */
static bool break_standstill(hki_sim *s)
{
    bool any = false;
    for (uint32_t r = 0; r < s->params.ranks && s->params.executor != HKI_SIM_INLINE; r++) {
        rank *k = &s->ranks[r];
        if (!k->loaded || !can_run(k) || k->run.event || k->kill_at <= s->now) continue;
        hand_over(s, k);
        k->wake = s->now;
        any = true;
    }
    return any;
}

void hki_sim_run(hki_sim *s, uint64_t until_us)
{
    uint64_t at;
    for (;;) {
        const hki_prng before = s->prng;
        rank *k = pick(s, &at);
        if (!k && break_standstill(s)) continue;
        if (!k || at > until_us) {
            s->prng = before; /* a limit changes nothing of the history */
            break;
        }
        s->now = hki_max(s->now, at);
        if (k->kill_at <= at) {
            k->verdict.state = HKI_SIM_KILLED;
            note(s, k->port.rank, DIES, 0, 0, 0);
        } else {
            step(s, k);
        }
    }
    for (uint32_t r = 0; r < s->params.ranks; r++) { /* a rank that nothing wakes is killed all the same */
        rank *k = &s->ranks[r];
        if (!can_run(k)) continue;
        if (k->kill_at <= until_us && k->kill_at != HKI_SIM_NEVER && due(k) == HKI_SIM_NEVER) k->verdict.state = HKI_SIM_KILLED;
        else k->verdict.state = due(k) == HKI_SIM_NEVER ? HKI_SIM_BLOCKED : HKI_SIM_RUNNING;
    }
}

/* ---- Life ----------------------------------------------------------------------------------------------------------- */

void hki_sim_reset(hki_sim *s, uint64_t seed, hki_sim_executor executor)
{
    const uint32_t P = s->params.ranks;
    s->params.seed = seed;
    s->params.executor = executor;
    s->prng.state = hki_mix(seed, P);
    s->now = s->hash = 0;
    s->text_len = 0;
    s->text_full = false;
    if (s->text) s->text[0] = 0;
    for (size_t i = 0; i < (size_t)P * P; i++) s->lanes[i] = (lane){.lines = s->lines + i * LINES};
    for (uint32_t r = 0; r < P; r++) {
        rank *k = &s->ranks[r];
        k->port = (hki_port){.ops = &ops, .ranks = P, .rank = r, .slot_bytes = s->params.slot_bytes};
        k->loaded = k->waits_to_send = k->hesitated = false;
        k->event = executor == HKI_SIM_EVENT || (executor == HKI_SIM_MIXED && hki_prng_below(&s->prng, 2));
        k->verdict = (hki_sim_verdict){.waiting_for = UINT32_MAX, .culprit = UINT32_MAX};
        k->wake = hki_prng_below(&s->prng, s->params.jitter_us + 1);
        k->mark = 0;
        memset(k->expected, 0, P * sizeof *k->expected);
        memset(k->lent_readers, 0, (s->params.lends ? LENDS : 1) * P * sizeof *k->lent_readers);
        k->steps_done = k->slot = k->messages = k->payloads = 0;
        k->stall_from = k->stall_to = 0;
        k->kill_at = HKI_SIM_NEVER;
        k->waiting_for = k->kill_after = k->corrupt_message = UINT32_MAX;
        memset(k->lacks, 0, P * sizeof *k->lacks);
        memset(k->slot_readers, 0, s->params.slots * sizeof *k->slot_readers);
    }
}

hki_sim *hki_sim_create(const hki_sim_params *p)
{
    hki_sim *s = hki_alloc(sizeof *s);
    if (!s) return NULL;
    const size_t P = p->ranks, S = p->slots;
    s->params = *p;
    s->params.slot_bytes = hki_round_up(p->slot_bytes, HKI_LINE);
    s->ranks = hki_alloc(P * sizeof *s->ranks);
    s->lanes = hki_alloc(P * P * sizeof *s->lanes);
    s->lines = hki_alloc(P * P * LINES * sizeof *s->lines);
    s->slots = hki_alloc(P * S * s->params.slot_bytes);
    s->slot_readers = hki_alloc(P * S * sizeof *s->slot_readers);
    s->lent_readers = hki_alloc(P * (p->lends ? LENDS : 1) * P * sizeof *s->lent_readers);
    s->putting = hki_alloc(P * P * sizeof *s->putting);
    s->expected = hki_alloc(P * P * sizeof *s->expected);
    s->readers = hki_alloc(P * S * P * sizeof *s->readers);
    s->sources = hki_alloc(2 * P * sizeof *s->sources);
    s->places = hki_alloc((P + 1) * sizeof *s->places);
    s->marks = hki_alloc((P + 1) * sizeof *s->marks);
    s->lacks = hki_alloc(P * P * sizeof *s->lacks);
    s->text = p->transcript_bytes ? hki_alloc(p->transcript_bytes) : NULL;
    if (!s->ranks || !s->lanes || !s->lines || !s->slots || !s->slot_readers || !s->lent_readers || !s->putting || !s->expected || !s->readers || !s->sources || !s->places ||
        !s->marks || !s->lacks || (p->transcript_bytes && !s->text)) {
        hki_sim_destroy(s);
        return NULL;
    }
    for (size_t r = 0; r < P; r++) {
        s->ranks[r].sim = s;
        s->ranks[r].slots = s->slots + r * S * s->params.slot_bytes;
        s->ranks[r].slot_readers = s->slot_readers + r * S;
        s->ranks[r].readers = s->readers + r * S * P;
        s->ranks[r].lent_readers = s->lent_readers + r * (p->lends ? LENDS : 1) * P;
        s->ranks[r].putting = s->putting + r * P;
        s->ranks[r].expected = s->expected + r * P;
        s->ranks[r].lacks = s->lacks + r * P;
    }
    hki_sim_reset(s, p->seed, p->executor);
    return s;
}

void hki_sim_destroy(hki_sim *s)
{
    if (!s) return;
    for (uint32_t r = 0; s->ranks && r < s->params.ranks; r++) {
        hki_free(s->ranks[r].temp);
        hki_free(s->ranks[r].done);
    }
    hki_free(s->ranks);
    hki_free(s->lanes);
    hki_free(s->lines);
    hki_free(s->slots);
    hki_free(s->slot_readers);
    hki_free(s->lent_readers);
    hki_free(s->putting);
    hki_free(s->expected);
    hki_free(s->readers);
    hki_free(s->sources);
    hki_free(s->places);
    hki_free(s->marks);
    hki_free(s->lacks);
    hki_free(s->text);
    hki_free(s);
}

static bool have(uint8_t **p, size_t *bytes, size_t want)
{
    if (want <= *bytes) return true;
    uint8_t *fresh = hki_alloc(want);
    if (!fresh) return false;
    hki_free(*p);
    *p = fresh;
    *bytes = want;
    return true;
}

hk_status hki_sim_load(hki_sim *s, uint32_t r, const hki_program *g, const void *in, void *out, uint64_t fingerprint)
{
    rank *k = &s->ranks[r];
    if (!have(&k->temp, &k->temp_bytes, hki_max(1, HKI_DEPTH * g->temp_bytes)) ||
        !have(&k->done, &k->done_bytes, hki_max(1, hki_program_done_bytes(g))))
        return HK_NO_MEMORY;
    hki_run_start(&k->run, g, &k->port, in, out, k->temp, k->done, fingerprint);
    k->run.sources = s->sources; /* working storage of one call: ranks run one after the other */
    k->run.places = s->places;
    k->run.marks = s->marks;
    if (s->params.lends) hki_run_lend(&k->run, 1, 1);
    if (k->event) hki_run_hand_over(&k->run);
    k->loaded = true;
    return HK_OK;
}

void hki_sim_stall(hki_sim *s, uint32_t r, uint64_t from_us, uint64_t to_us)
{
    s->ranks[r].stall_from = from_us;
    s->ranks[r].stall_to = to_us;
}

void hki_sim_kill(hki_sim *s, uint32_t r, uint64_t at_us) { s->ranks[r].kill_at = at_us; }
void hki_sim_kill_after(hki_sim *s, uint32_t r, uint32_t messages) { s->ranks[r].kill_after = messages; }

void hki_sim_corrupt(hki_sim *s, uint32_t r, uint32_t message, size_t byte)
{
    s->ranks[r].corrupt_message = message;
    s->ranks[r].corrupt_byte = byte;
}

hki_sim_verdict hki_sim_verdict_of(const hki_sim *s, uint32_t r) { return s->ranks[r].verdict; }
uint32_t hki_sim_taken(const hki_sim *s, uint32_t from, uint32_t to) { return lane_of(s, from, to)->taken; }
uint32_t hki_sim_sent_payloads(const hki_sim *s, uint32_t r) { return s->ranks[r].payloads; }
bool hki_sim_lacks(const hki_sim *s, uint32_t r, uint32_t of) { return s->ranks[r].lacks[of]; }
uint64_t hki_sim_now(const hki_sim *s) { return s->now; }
uint64_t hki_sim_hash(const hki_sim *s) { return s->hash; }
const char *hki_sim_transcript(const hki_sim *s) { return s->text ? s->text : ""; }
