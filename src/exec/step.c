/* SPDX-License-Identifier: Apache-2.0
 *
 * A step gathers its operands first (messages to read, room to write), then moves bytes, then lets go of messages and room. Since
 * peek and reserve take nothing, a step that lacks an operand leaves no trace.
 *
 * Nearly all steps have operands in one piece of memory each; only these lend memory or are put. The others go piece by piece. */
#include "exec/step.h"

#include <string.h>
#ifdef HOCKET_FAULTS
#include <stdio.h>
#include <stdlib.h>
#endif

#define SMALL 64 /* bytes up to which a call costs more than the copy */

#define EXPECTED 4096 /* bytes of a message from which it is worth telling where it will go */

static inline void move(void *dst, const void *src, size_t bytes)
{
    if (HKI_UNLIKELY(bytes > SMALL)) hki_copy(dst, src, bytes);
    else hki_copy_small(dst, src, bytes);
}

static hki_go lacking(hki_run *r, uint32_t peer, bool to_send)
{
    r->waiting_for = peer;
    r->waits_to_send = to_send;
    return HKI_NOT_YET;
}

static hki_go broken(hki_run *r, hk_status status, uint32_t culprit)
{
    r->status = status;
    r->culprit = culprit;
    return HKI_BROKEN;
}

/* The message a step reads from peer, checked: it must be of this very call and of the length this rank expects. */
static inline hki_go incoming(hki_run *r, uint32_t peer, size_t bytes, const void **data, bool *placed)
{
    hki_msg m;
    const hki_go go = r->port->ops->peek(r->port, peer, &m);
    if (HKI_LIKELY(go == HKI_GO)) {
        if (HKI_UNLIKELY(((m.fingerprint ^ r->fingerprint) & m.mask) || m.bytes != bytes)) return broken(r, HK_MISMATCH, peer);
        if (HKI_UNLIKELY(m.placed && !placed)) return broken(r, HK_CORRUPT, peer); /* none was wanted there */
        if (placed) *placed = m.placed;
        *data = m.data;
        return HKI_GO;
    }
    return go == HKI_NOT_YET ? lacking(r, peer, false) : broken(r, r->port->status, r->port->culprit);
}

static inline hki_go outgoing(hki_run *r, const hki_outgoing *o, hki_places *places)
{
    places->at = r->places;
    const hki_go go = r->port->ops->reserve(r->port, o, places);
    if (HKI_LIKELY(go == HKI_GO)) return go;
    return go == HKI_NOT_YET ? lacking(r, r->port->holder, true) : broken(r, r->port->status, r->port->culprit);
}

/* Field by field: a structure built whole and copied stalls on its own stores. */
static inline void address(const hki_run *r, const hki_step *s, size_t bytes, hki_outgoing *o)
{
    o->peers = r->program->plan->peers + s->to;
    o->n = s->nto;
    o->bytes = bytes;
    o->fingerprint = r->fingerprint;
    o->lent = o->wanted = NULL;
    o->ordinal = NULL;
}

/* Lets go of what was read and sends what was written. */
static inline hki_go let_go(hki_run *r, const hki_step *s, const hki_outgoing *o, uint32_t window)
{
    const hki_plan *p = r->program->plan;
    if (s->kind == HKI_STEP_RECV) r->port->ops->release(r->port, s->peer);
    for (uint32_t k = 0; k < s->nsrc; k++)
        if (p->srcs[s->src + k].buf == HKI_MSG) r->port->ops->release(r->port, p->srcs[s->src + k].first);
    if (HKI_UNLIKELY(r->port->status)) return broken(r, r->port->status, r->port->culprit);
    if (!s->nto) return HKI_GO;
    const uint64_t mark = r->port->ops->commit(r->port, o);
    if (HKI_UNLIKELY(mark != 0)) r->lent[window % HKI_DEPTH][s - p->steps] = r->last_lent = mark;
    return HKI_GO;
}

#ifdef HOCKET_FAULTS
/* A planted fault of test builds: HOCKET_FAULT=flip:rank=R,op=N,byte=B flips one bit of a message that rank R's N-th run sends. */
static void plant(hki_run *r, const hki_places *places, size_t bytes)
{
    static _Thread_local uint64_t last, runs;
    const char *fault = getenv("HOCKET_FAULT");
    unsigned rank, op;
    size_t byte;
    if (!fault || sscanf(fault, "flip:rank=%u,op=%u,byte=%zu", &rank, &op, &byte) != 3 || rank != r->port->rank || !bytes || !places->n) return;
    if (last != r->fingerprint) last = r->fingerprint, runs++;
    if (runs == op) ((uint8_t *)places->at[0])[byte % bytes] ^= 1, runs++;
}
#endif

/* ---- Steps whose operands are one piece of memory each */

static inline uint8_t *here(const hki_run *r, uint8_t buf, size_t at, uint32_t window)
{
    const hki_program *g = r->program;
    if (r->flat) return r->base[buf] + at;
    if (buf == HKI_TEMP) return r->base[buf] + (r->event ? window % HKI_DEPTH * g->temp_bytes : 0) + at;
    return r->base[buf] + at + window * g->w * g->elem_bytes;
}

static inline size_t elems_of(const hki_program *g, size_t elems, uint32_t window)
{
    if (g->windows == 1) return elems;
    const size_t from = window * g->w;
    return elems <= from ? 0 : hki_min(elems - from, g->w);
}

/* Sources of a fold, checked and listed. */
static inline hki_go gather(hki_run *r, const hki_step *s, size_t bytes, uint32_t window)
{
    const hki_program *g = r->program;
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice src = g->plan->srcs[s->src + k];
        if (src.buf != HKI_MSG) {
            r->sources[k] = here(r, src.buf, g->src_at[s->src + k], window);
            continue;
        }
        const hki_go go = incoming(r, src.first, bytes, &r->sources[k], NULL);
        if (go != HKI_GO) return go;
    }
    return HKI_GO;
}

/* What an earlier step lent of the memory that this one writes must have been read. */
static hki_go reclaimed(hki_run *r, uint32_t i, uint32_t window)
{
    const hki_hazards *h = &r->program->plan->hazards;
    const uint64_t *lent = r->lent[window % HKI_DEPTH];
    for (uint32_t j = h->at[i]; j < h->at[i + 1]; j++)
        if (lent[h->pred[j]] && !r->port->ops->settled(r->port, lent[h->pred[j]], false)) return lacking(r, r->port->holder, true);
    return HKI_GO;
}

/* What the message offers and asks for beyond its bytes. */
static void offer(const hki_run *r, const hki_step *s, const hki_ready *y, const uint8_t *mine, uint32_t window, hki_outgoing *o)
{
    const hki_program *g = r->program;
    if (y->lends && r->lends >> s->slice.buf & 1) o->lent = mine;
    o->window = window;
    o->ordinal = g->ordinal + s->to;
    o->holds = y->holds;
    if (!y->wants || !(r->lends >> HKI_OUT & 1)) return;
    const hki_ready *later = &g->steps[y->wants - 1];
    o->wanted = here(r, HKI_OUT, later->at, window);
    o->wanted_bytes = elems_of(g, later->elems, window) * g->elem_bytes;
    o->wanted_ordinal = later->ordinal;
}

static void copy_to(void *dst, const void *src, size_t bytes, bool far)
{
    if (far) hki_copy_far(dst, src, bytes);
    else move(dst, src, bytes);
}

/* One source, as it is, to this rank's memory (unless it is there) and into the message. */
static void spread(const hki_run *r, uint8_t *mine, const void *from, size_t bytes, const hki_places *places, bool far)
{
    for (uint32_t k = 0; k < places->n; k++) copy_to(places->at[k], from, bytes, r->far && k >= places->near);
    if (mine && mine != from) copy_to(mine, from, bytes, far);
}

static void fold(const hki_run *r, const hki_step *s, uint8_t *mine, size_t elems, size_t bytes, const hki_places *places, bool far)
{
    const hki_program *g = r->program;
    void *dst[HKI_FOLD_MAX_DST];
    if (far || (r->far && places->n > places->near)) {
        /* The first place that readers will look at soon is written through the caches, the rest from there. */
        void *near = places->near ? places->at[0] : far ? NULL : mine;
        if (far) places->at[places->n] = mine; /* there is room for one more */
        const uint32_t first = places->near ? 1 : 0, n = places->n + far;
        hki_fold_far(g->fold, g->elem_bytes, near, places->at + first, n - first, r->sources, s->nsrc, elems, &g->plan->call.red, s->finish);
        if (near && near != mine && !far) move(mine, near, bytes);
        return;
    }
    uint32_t n = 0;
    dst[n++] = mine;
    for (uint32_t k = 0; k < places->n && n < HKI_FOLD_MAX_DST; k++) dst[n++] = places->at[k];
    hki_fold_by(g->fold, dst, n, r->sources, s->nsrc, elems, &g->plan->call.red, s->finish);
    for (uint32_t k = n - 1; k < places->n; k++) move(places->at[k], mine, bytes);
}

/* The message may be stored where this step would copy it, as nothing else stands in the step's way. Not in temporary blocks: those of a
 * window move when a run is handed over. */
static void expect(hki_run *r, const hki_step *s, uint8_t *mine, size_t bytes, uint32_t window)
{
    if (s->slice.buf != HKI_OUT) return;
    if (r->last_lent && reclaimed(r, (uint32_t)(s - r->program->plan->steps), window) != HKI_GO) return;
    r->port->ops->expect(r->port, s->peer, mine, bytes, r->fingerprint);
}

static hki_go try_single(hki_run *r, const hki_step *s, const hki_ready *y, uint32_t window)
{
    const hki_program *g = r->program;
    const size_t elems = elems_of(g, y->elems, window), bytes = elems * g->elem_bytes;
    if (elems == 0) return HKI_GO; /* the block has ended; so it has at the other end */
    uint8_t *mine = here(r, s->slice.buf, y->at, window);
    hki_places places;
    hki_outgoing o;
    places.n = places.near = 0;
    bool placed = false;
    if (s->kind == HKI_STEP_RECV && r->port->ops->expect && bytes >= EXPECTED) expect(r, s, mine, bytes, window);
    hki_go go = s->kind == HKI_STEP_RECV ? incoming(r, s->peer, bytes, &r->sources[0], &placed) : gather(r, s, bytes, window);
    if (go != HKI_GO) return go;
    if (r->last_lent && s->kind != HKI_STEP_SEND && (go = reclaimed(r, (uint32_t)(s - g->plan->steps), window)) != HKI_GO) return go;
    if (s->nto) {
        address(r, s, bytes, &o);
        if (r->lends) offer(r, s, y, mine, window, &o);
        if ((go = outgoing(r, &o, &places)) != HKI_GO) return go;
    }
    const bool far = r->far && y->last && s->slice.buf == HKI_OUT;
    if (s->kind == HKI_STEP_SEND) spread(r, NULL, mine, bytes, &places, false);
    else if (s->kind == HKI_STEP_RECV) spread(r, mine, placed ? mine : r->sources[0], bytes, &places, far);
    else if (s->kind == HKI_STEP_COPY && !s->finish) spread(r, mine, r->sources[0], bytes, &places, far);
    else fold(r, s, mine, elems, bytes, &places, far);
#ifdef HOCKET_FAULTS
    if (s->nto) plant(r, &places, bytes);
#endif
    return let_go(r, s, &o, window);
}

/* ---- The steps that small calls consist of, in a flat run: the same, with nothing to find out. Whatever else turns up goes the general
 * way. Functions of their own, so that each has the registers to itself. */

static inline unsigned small_kind(const hki_run *r, const hki_ready *y)
{
#ifdef HOCKET_FAULTS /* which are planted on the general way */
    return HKI_NOT_SMALL;
#else
    return y->bytes <= r->port->small_bytes ? y->small : HKI_NOT_SMALL;
#endif
}

static __attribute__((noinline)) hki_go small_send(hki_run *r, const hki_step *s, const hki_ready *y)
{
    const hki_program *g = r->program;
    hki_port *port = r->port;
    uint8_t *mine = r->base[s->slice.buf] + y->at;
    const uint8_t *from = s->kind == HKI_STEP_COPY ? r->base[g->plan->srcs[s->src].buf] + g->src_at[s->src] : mine;
    const hki_go gone = port->ops->send(port, g->plan->peers + s->to, s->nto, from, y->bytes, r->fingerprint);
    if (HKI_UNLIKELY(gone != HKI_GO)) return gone == HKI_NOT_YET ? lacking(r, port->holder, true) : broken(r, port->status, port->culprit);
    if (from != mine) move(mine, from, y->bytes);
    return HKI_GO;
}

/* The payload of the message from peer, which is looked for up to `looks` times, or NULL. */
static inline const void *look(hki_run *r, uint32_t peer, const hki_ready *y, uint32_t looks)
{
    const void *data;
    while (!(data = r->port->ops->glance(r->port, peer, y->bytes, r->fingerprint)))
        if (--looks == 0) return NULL;
    return data;
}

/* What can be known before the messages come is found out before. */
static inline __attribute__((always_inline)) hki_go fold_when_there(hki_run *r, const hki_step *s, const hki_ready *y, uint32_t looks)
{
    const hki_program *g = r->program;
    const hki_slice *const src = g->plan->srcs + s->src;
    const size_t *at = g->src_at + s->src;
    const void **from = r->sources;
    const uint32_t n = s->nsrc;
    const bool few = y->elems <= HKI_FEW && g->fold.few && hki_fp_plain();
    void *dst = r->base[s->slice.buf] + y->at;
    for (uint32_t k = 0; k < n; k++) {
        from[k] = src[k].buf == HKI_MSG ? look(r, src[k].first, y, looks) : r->base[src[k].buf] + at[k];
        if (!from[k]) return hki_step_try(r, s, 0);
    }
    if (few) g->fold.few(dst, from, n, y->elems, &g->plan->call.red, s->finish);
    else hki_fold_by(g->fold, &dst, 1, from, n, y->elems, &g->plan->call.red, s->finish);
    for (uint32_t k = 0; k < n; k++)
        if (src[k].buf == HKI_MSG) r->port->ops->release(r->port, src[k].first);
    return HKI_GO;
}

static inline __attribute__((always_inline)) hki_go recv_when_there(hki_run *r, const hki_step *s, const hki_ready *y, uint32_t looks)
{
    const void *from = look(r, s->peer, y, looks);
    if (!from) return hki_step_try(r, s, 0);
    move(r->base[s->slice.buf] + y->at, from, y->bytes);
    r->port->ops->release(r->port, s->peer);
    return HKI_GO;
}

static __attribute__((noinline)) hki_go small_fold(hki_run *r, const hki_step *s, const hki_ready *y) { return fold_when_there(r, s, y, 1); }
static __attribute__((noinline)) hki_go small_recv(hki_run *r, const hki_step *s, const hki_ready *y) { return recv_when_there(r, s, y, 1); }

static hki_go flat_end(hki_run *r)
{
    r->window = 1;
    r->step = 0;
    r->steps_done = r->program->plan->nsteps;
    r->waiting_for = UINT32_MAX;
    return HKI_GO;
}

/* Copies of fold and receive with their own branches, which always go the same way: a CPU forgets what they did over an uncertain number
 * of looks. */
static inline hki_go await_small(hki_run *r, uint32_t looks)
{
    const uint32_t i = r->step;
    const hki_step *s = r->program->plan->steps + i;
    const hki_ready *y = r->program->steps + i;
    const hki_go go = y->small == HKI_SMALL_FOLD ? fold_when_there(r, s, y, looks) : recv_when_there(r, s, y, looks);
    if (HKI_UNLIKELY(go != HKI_GO)) return go;
    r->step = i + 1;
    return HKI_LIKELY(i + 1 == r->program->plan->nsteps) ? flat_end(r) : HKI_GO;
}

hki_go hki_step_await(hki_run *r, uint32_t looks)
{
    const hki_ready *y = r->program->steps + r->step;
    if (HKI_LIKELY(r->flat && small_kind(r, y) >= HKI_SMALL_FOLD)) return await_small(r, looks);
    hki_msg m;
    for (; looks; looks--)
        if (r->waits_to_send || r->port->ops->peek(r->port, r->waiting_for, &m) != HKI_NOT_YET) return HKI_GO;
    return HKI_NOT_YET;
}

hki_go hki_steps_flat(hki_run *r)
{
    const hki_program *g = r->program;
    const hki_step *s = g->plan->steps;
    const hki_ready *y = g->steps;
    const uint32_t n = g->windows ? g->plan->nsteps : 0;
    for (uint32_t i = r->step; i < n; i++) {
        const unsigned small = small_kind(r, y + i);
        const hki_go go = small == HKI_SMALL_SEND   ? small_send(r, s + i, y + i)
                          : small == HKI_SMALL_FOLD ? small_fold(r, s + i, y + i)
                          : small == HKI_SMALL_RECV ? small_recv(r, s + i, y + i)
                                                    : hki_step_try(r, s + i, 0);
        if (HKI_UNLIKELY(go != HKI_GO)) {
            r->step = r->steps_done = i;
            return go;
        }
    }
    return flat_end(r);
}

/* ---- Steps with operands in several pieces */

/* Elements of block b of a buffer that fall in window c. */
static size_t piece_elems(const hki_program *g, uint8_t buf, uint32_t b, uint32_t c)
{
    return elems_of(g, g->plan->blocks[buf].len[b], c);
}

static uint8_t *piece(const hki_run *r, uint8_t buf, uint32_t b, uint32_t c)
{
    return here(r, buf, r->program->plan->blocks[buf].off[b] * r->program->elem_bytes, c);
}

/* Blocks of s from i on that lie one behind the other in memory: how many. */
static uint32_t adjacent(const hki_plan *p, hki_slice s, uint32_t i)
{
    const hki_blocks *t = &p->blocks[s.buf];
    uint32_t n = 1;
    for (; i + n < s.n; n++) {
        const uint32_t a = hki_slice_block(p, s, i + n - 1), b = hki_slice_block(p, s, i + n);
        if (t->off[b] != t->off[a] + t->len[a]) break;
    }
    return n;
}

/* How many blocks from the i-th on every operand of the step can take as one piece. */
static uint32_t run_length(const hki_run *r, const hki_step *s, uint32_t i)
{
    const hki_plan *p = r->program->plan;
    if (!r->program->one_piece || s->slice.n == 1) return 1;
    uint32_t n = adjacent(p, s->slice, i);
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice src = p->srcs[s->src + k];
        if (src.buf != HKI_MSG) n = (uint32_t)hki_min(n, adjacent(p, src, i));
    }
    return n;
}

static size_t run_elems(const hki_run *r, hki_slice s, uint32_t i, uint32_t n, uint32_t c)
{
    size_t e = 0;
    for (uint32_t k = 0; k < n; k++) e += piece_elems(r->program, s.buf, hki_slice_block(r->program->plan, s, i + k), c);
    return e;
}

/* Moves the piece that starts at block i (n blocks, `elems` elements), `at` bytes into every message concerned. */
static void move_piece(hki_run *r, const hki_step *s, uint32_t i, size_t elems, size_t at, uint32_t c, uint8_t *place)
{
    const hki_program *g = r->program;
    const hki_plan *p = g->plan;
    const size_t bytes = elems * g->elem_bytes;
    uint8_t *mine = piece(r, s->slice.buf, hki_slice_block(p, s->slice, i), c);
    if (s->kind == HKI_STEP_SEND) {
        hki_copy(place, mine, bytes);
        return;
    }
    if (s->kind == HKI_STEP_RECV) {
        const uint8_t *from = (const uint8_t *)r->sources[0] + at;
        hki_copy(mine, from, bytes);
        if (place) hki_copy(place, from, bytes);
        return;
    }
    const void *src[64], **list = s->nsrc <= HKI_COUNT(src) ? src : r->sources + r->port->ranks;
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice from = p->srcs[s->src + k];
        list[k] = from.buf == HKI_MSG ? (const uint8_t *)r->sources[k] + at : piece(r, from.buf, hki_slice_block(p, from, i), c);
    }
    if (s->kind == HKI_STEP_COPY && !s->finish) {
        if (list[0] != mine) hki_copy(mine, list[0], bytes);
        if (place) hki_copy(place, mine, bytes);
        return;
    }
    void *dst[2] = {mine, place};
    hki_fold_by(g->fold, dst, place ? 2 : 1, list, s->nsrc, elems, &p->call.red, s->finish);
}

static hki_go try_pieces(hki_run *r, const hki_step *s, uint32_t window)
{
    const hki_program *g = r->program;
    const size_t elems = run_elems(r, s->slice, 0, s->slice.n, window), bytes = elems * g->elem_bytes;
    if (elems == 0) return HKI_GO;
    hki_places places = {0};
    hki_outgoing o;
    address(r, s, bytes, &o);
    hki_go go = s->kind == HKI_STEP_RECV ? incoming(r, s->peer, bytes, &r->sources[0], NULL) : HKI_GO;
    for (uint32_t k = 0; go == HKI_GO && k < s->nsrc; k++) {
        const hki_slice src = g->plan->srcs[s->src + k];
        if (src.buf == HKI_MSG) go = incoming(r, src.first, bytes, &r->sources[k], NULL);
    }
    if (go == HKI_GO && r->last_lent && s->kind != HKI_STEP_SEND) go = reclaimed(r, (uint32_t)(s - g->plan->steps), window);
    if (go == HKI_GO && s->nto) go = outgoing(r, &o, &places);
    if (go != HKI_GO) return go;
    size_t at = 0;
    for (uint32_t i = 0, n; i < s->slice.n; i += n) {
        n = run_length(r, s, i);
        const size_t e = run_elems(r, s->slice, i, n, window);
        if (e) move_piece(r, s, i, e, at, window, places.n ? (uint8_t *)places.at[0] + at : NULL);
        at += e * g->elem_bytes;
    }
#ifdef HOCKET_FAULTS
    if (s->nto) plant(r, &places, bytes);
#endif
    for (uint32_t k = 1; k < places.n; k++) hki_copy(places.at[k], places.at[0], bytes);
    return let_go(r, s, &o, window);
}

static hki_go try_token(hki_run *r, const hki_step *s)
{
    if (s->kind == HKI_STEP_POST) {
        hki_places places;
        hki_outgoing o;
        address(r, s, 0, &o);
        const hki_go go = outgoing(r, &o, &places);
        if (go == HKI_GO) r->port->ops->commit(r->port, &o);
        return go;
    }
    const void *data;
    const hki_go go = incoming(r, s->peer, 0, &data, NULL);
    if (go == HKI_GO) r->port->ops->release(r->port, s->peer);
    return go;
}

hki_go hki_step_try(hki_run *r, const hki_step *s, uint32_t window)
{
    const hki_ready *y = &r->program->steps[s - r->program->plan->steps];
    if (HKI_LIKELY(y->elems)) return try_single(r, s, y, window);
    if (s->kind >= HKI_STEP_POST) return window == 0 ? try_token(r, s) : HKI_GO;
    return try_pieces(r, s, window);
}
