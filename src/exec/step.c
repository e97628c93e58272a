/* SPDX-License-Identifier: Apache-2.0
 *
 * A step gathers its operands first (messages to read, room to write), then moves bytes, then lets go of messages and room. Since
 * peek and reserve take nothing, a step that lacks an operand leaves no trace. */
#include "exec/step.h"

#include "kern/kern.h"

#include <string.h>
#ifdef HOCKET_FAULTS
#include <stdio.h>
#include <stdlib.h>
#endif

/* Elements of block b of a buffer that fall in window c. */
static size_t piece_elems(const hki_program *g, uint8_t buf, uint32_t b, uint32_t c)
{
    const size_t len = g->plan->blocks[buf].len[b], from = c * g->w;
    return len <= from ? 0 : hki_min(len - from, g->w);
}

static uint8_t *piece(const hki_run *r, uint8_t buf, uint32_t b, uint32_t c)
{
    const hki_program *g = r->program;
    const size_t off = g->plan->blocks[buf].off[b];
    if (buf == HKI_TEMP) return r->base[buf] + (c % HKI_DEPTH) * (r->event ? g->temp_bytes : 0) + off * g->elem_bytes;
    return r->base[buf] + (off + c * g->w) * g->elem_bytes;
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
static hki_go incoming(hki_run *r, uint32_t peer, size_t bytes, const void **data)
{
    hki_msg m;
    const hki_go go = r->port->ops->peek(r->port, peer, &m);
    if (HKI_LIKELY(go == HKI_GO)) {
        if (HKI_UNLIKELY(((m.fingerprint ^ r->fingerprint) & m.mask) || m.bytes != bytes)) return broken(r, HK_MISMATCH, peer);
        *data = m.data;
        return HKI_GO;
    }
    return go == HKI_NOT_YET ? lacking(r, peer, false) : broken(r, r->port->status, r->port->culprit);
}

static hki_go outgoing(hki_run *r, const hki_step *s, size_t bytes, uint32_t *nplaces)
{
    const hki_go go = r->port->ops->reserve(r->port, r->program->plan->peers + s->to, s->nto, bytes, r->places, nplaces);
    if (HKI_LIKELY(go == HKI_GO)) return go;
    return go == HKI_NOT_YET ? lacking(r, r->port->holder, true) : broken(r, r->port->status, r->port->culprit);
}

static hki_go try_token(hki_run *r, const hki_step *s)
{
    if (s->kind == HKI_STEP_POST) {
        uint32_t nplaces;
        const hki_go go = outgoing(r, s, 0, &nplaces);
        if (go == HKI_GO) r->port->ops->commit(r->port, r->program->plan->peers + s->to, s->nto, 0, r->fingerprint);
        return go;
    }
    const void *data;
    const hki_go go = incoming(r, s->peer, 0, &data);
    if (go == HKI_GO) r->port->ops->release(r->port, s->peer);
    return go;
}

static hki_go gather(hki_run *r, const hki_step *s, size_t bytes)
{
    if (s->kind == HKI_STEP_RECV) return incoming(r, s->peer, bytes, &r->sources[0]);
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice src = r->program->plan->srcs[s->src + k];
        if (src.buf != HKI_MSG) continue;
        const hki_go go = incoming(r, src.first, bytes, &r->sources[k]);
        if (go != HKI_GO) return go;
    }
    return HKI_GO;
}

/* Moves the piece that starts at block i (n blocks, `elems` elements), `at` bytes into every message concerned. */
static void move(hki_run *r, const hki_step *s, uint32_t i, size_t elems, size_t at, uint32_t c, bool sends)
{
    const hki_plan *p = r->program->plan;
    const size_t bytes = elems * r->program->elem_bytes;
    uint8_t *mine = piece(r, s->slice.buf, hki_slice_block(p, s->slice, i), c);
    uint8_t *place = sends ? (uint8_t *)r->places[0] + at : NULL;
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
    hki_fold(p->call.dtype, dst, place ? 2 : 1, list, s->nsrc, elems, &p->call.red, s->finish);
}

#ifdef HOCKET_FAULTS
/* A planted fault of test builds: HOCKET_FAULT=flip:rank=R,op=N,byte=B flips one bit of a message that rank R's N-th run sends. */
static void plant(hki_run *r, size_t bytes)
{
    static _Thread_local uint64_t last, runs;
    const char *fault = getenv("HOCKET_FAULT");
    unsigned rank, op;
    size_t byte;
    if (!fault || sscanf(fault, "flip:rank=%u,op=%u,byte=%zu", &rank, &op, &byte) != 3 || rank != r->port->rank || !bytes) return;
    if (last != r->fingerprint) last = r->fingerprint, runs++;
    if (runs == op) ((uint8_t *)r->places[0])[byte % bytes] ^= 1, runs++;
}
#endif

static void let_go(hki_run *r, const hki_step *s, size_t bytes)
{
    const hki_plan *p = r->program->plan;
    if (s->kind == HKI_STEP_RECV) r->port->ops->release(r->port, s->peer);
    for (uint32_t k = 0; k < s->nsrc; k++)
        if (p->srcs[s->src + k].buf == HKI_MSG) r->port->ops->release(r->port, p->srcs[s->src + k].first);
    if (s->nto) r->port->ops->commit(r->port, p->peers + s->to, s->nto, bytes, r->fingerprint);
}

static void move_pieces(hki_run *r, const hki_step *s, uint32_t window)
{
    size_t at = 0;
    for (uint32_t i = 0, n; i < s->slice.n; i += n) {
        n = run_length(r, s, i);
        const size_t e = run_elems(r, s->slice, i, n, window);
        if (e) move(r, s, i, e, at, window, s->nto > 0);
        at += e * r->program->elem_bytes;
    }
}

hki_go hki_step_try(hki_run *r, const hki_step *s, uint32_t window)
{
    if (s->kind >= HKI_STEP_POST) return window == 0 ? try_token(r, s) : HKI_GO;
    const size_t elems = s->flat_elems ? s->flat_elems : run_elems(r, s->slice, 0, s->slice.n, window), bytes = elems * r->program->elem_bytes;
    if (elems == 0) return HKI_GO; /* the blocks have ended; so they have at the other end */
    hki_go go = gather(r, s, bytes);
    if (go != HKI_GO) return go;
    uint32_t nplaces = 0;
    if (s->nto && (go = outgoing(r, s, bytes, &nplaces)) != HKI_GO) return go;

    if (s->flat_elems) move(r, s, 0, elems, 0, window, s->nto > 0);
    else move_pieces(r, s, window);
#ifdef HOCKET_FAULTS
    if (s->nto) plant(r, bytes);
#endif
    for (uint32_t k = 1; k < nplaces; k++) hki_copy(r->places[k], r->places[0], bytes);
    let_go(r, s, bytes);
    return HKI_GO;
}
