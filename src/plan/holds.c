/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/holds.h"

#include <string.h>

/* A message on its lane; a value a block that is not empty. */
typedef struct message { uint64_t *sets; uint32_t n, next; } message;

typedef struct world {
    hki_plan *const *plans;
    uint32_t ranks;
    uint64_t *cells[HKI_HOLDS_RANKS];    /* IN, OUT and TEMP blocks of a rank */
    uint32_t at[HKI_HOLDS_RANKS];        /* steps done */
    uint32_t head[HKI_HOLDS_RANKS][HKI_HOLDS_RANKS], tail[HKI_HOLDS_RANKS][HKI_HOLDS_RANKS]; /* from, to: message + 1 */
    message *messages;
    uint64_t *payload;
    uint32_t nmessages;
    size_t npayload;
} world;

static uint64_t *cell(const world *w, uint32_t r, uint8_t buf, uint32_t block)
{
    const hki_plan *p = w->plans[r];
    for (uint8_t b = 0; b < buf; b++) block += p->blocks[b].n;
    return &w->cells[r][block];
}

/* In place the other buffer is where this rank's own blocks stand. */
static bool smaller_out(const hki_plan *p) { return p->blocks[HKI_OUT].n < p->blocks[HKI_IN].n; }
static uint32_t own(const hki_call *c) { return c->op == HKI_GATHER || c->op == HKI_SCATTER ? c->root : c->rank; }

static void fill_inputs(world *w, uint32_t r)
{
    const hki_plan *p = w->plans[r];
    const hki_call *c = &p->call;
    const uint32_t in = p->blocks[HKI_IN].n, out = p->blocks[HKI_OUT].n;
    if ((c->op == HKI_BROADCAST || c->op == HKI_SCATTER) && r != c->root) return;
    for (uint32_t b = 0; b < in; b++)
        *(!c->in_place || in > out ? cell(w, r, HKI_IN, b) : cell(w, r, HKI_OUT, in < out ? own(c) : b)) = UINT64_C(1) << r;
}

static bool open(world *w)
{
    size_t messages = 0, payload = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        const hki_plan *p = w->plans[r];
        size_t blocks = 1;
        for (int b = 0; b < HKI_BUFS; b++) blocks += p->blocks[b].n;
        if (!(w->cells[r] = hki_alloc(blocks * sizeof **w->cells))) return false;
        fill_inputs(w, r);
        for (uint32_t i = 0; i < p->nsteps; i++) {
            messages += p->steps[i].nto;
            payload += p->steps[i].nto ? p->steps[i].slice.n : 0;
        }
    }
    w->messages = hki_alloc((messages + 1) * sizeof *w->messages);
    w->payload = hki_alloc((payload + 1) * sizeof *w->payload);
    return w->messages && w->payload;
}

static void close(world *w)
{
    for (uint32_t r = 0; r < w->ranks; r++) hki_free(w->cells[r]);
    hki_free(w->messages);
    hki_free(w->payload);
    hki_free(w);
}

static bool all_there(const world *w, uint32_t r, const hki_step *s)
{
    const hki_plan *p = w->plans[r];
    if ((s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT) && !w->head[s->peer][r]) return false;
    for (uint32_t k = 0; k < s->nsrc; k++)
        if (p->srcs[s->src + k].buf == HKI_MSG && !w->head[p->srcs[s->src + k].first][r]) return false;
    return true;
}

/* The set of the i-th block of a source, the full-th of those that are not empty. */
static bool load(const world *w, uint32_t r, hki_slice from, uint32_t i, uint32_t full, uint64_t *set)
{
    if (from.buf == HKI_MSG) {
        const message *m = &w->messages[w->head[from.first][r] - 1];
        if (full >= m->n) return false;
        *set |= m->sets[full];
    } else {
        if (i >= from.n) return false;
        *set |= *cell(w, r, from.buf, hki_slice_block(w->plans[r], from, i));
    }
    return true;
}

static bool move(world *w, uint32_t r, const hki_step *s)
{
    const hki_plan *p = w->plans[r];
    const hki_slice heard = hki_from(s->peer), *src = s->nsrc ? &p->srcs[s->src] : &heard;
    const uint32_t nsrc = s->kind == HKI_STEP_RECV ? 1 : s->nsrc;
    for (uint32_t i = 0, full = 0; i < s->slice.n; i++) {
        const uint32_t block = hki_slice_block(p, s->slice, i);
        uint64_t set = 0, *dst = cell(w, r, s->slice.buf, block);
        if (!p->blocks[s->slice.buf].len[block]) continue;
        for (uint32_t k = 0; k < nsrc; k++)
            if (!load(w, r, src[k], i, full, &set)) return false;
        if (s->kind != HKI_STEP_SEND) *dst = set;
        if (s->nto) w->payload[w->npayload + full] = *dst;
        full++;
    }
    return true;
}

/* false: there is none, as when one step wants two messages of a rank. */
static bool take(world *w, uint32_t from, uint32_t to)
{
    if (!w->head[from][to]) return false;
    w->head[from][to] = w->messages[w->head[from][to] - 1].next;
    return true;
}

static bool do_step(world *w, uint32_t r, const hki_step *s)
{
    const hki_plan *p = w->plans[r];
    uint32_t full = 0;
    if (s->kind < HKI_STEP_POST) {
        if (!move(w, r, s)) return false;
        for (uint32_t i = 0; i < s->slice.n; i++) full += p->blocks[s->slice.buf].len[hki_slice_block(p, s->slice, i)] > 0;
    }
    if ((s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT) && !take(w, s->peer, r)) return false;
    for (uint32_t k = 0; k < s->nsrc; k++)
        if (p->srcs[s->src + k].buf == HKI_MSG && !take(w, p->srcs[s->src + k].first, r)) return false;
    for (uint32_t k = 0; k < s->nto; k++) {
        const uint32_t to = p->peers[s->to + k], m = ++w->nmessages;
        w->messages[m - 1] = (message){.sets = w->payload + w->npayload, .n = full};
        if (w->head[r][to]) w->messages[w->tail[r][to] - 1].next = m;
        else w->head[r][to] = m;
        w->tail[r][to] = m;
    }
    if (s->nto) w->npayload += full;
    return true;
}

static void look(const world *w, uint32_t r, uint64_t *sets)
{
    const hki_plan *p = w->plans[r];
    const uint32_t n = p->blocks[HKI_OUT].n;
    const bool moved = p->call.in_place && smaller_out(p);
    for (uint32_t b = 0; b < n; b++) sets[(size_t)r * n + b] = *(moved ? cell(w, r, HKI_IN, own(&p->call)) : cell(w, r, HKI_OUT, b));
}

/* All walk their lists as far as they get, again and again. */
static hk_status walk(world *w, uint32_t steps, uint64_t *sets)
{
    uint32_t unfinished = w->ranks;
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (!w->plans[r]->nsteps) unfinished--;
        if (!steps || !w->plans[r]->nsteps) look(w, r, sets);
    }
    for (bool moved = true; moved && unfinished;) {
        moved = false;
        for (uint32_t r = 0; r < w->ranks; r++) {
            const hki_plan *p = w->plans[r];
            for (; w->at[r] < p->nsteps && all_there(w, r, &p->steps[w->at[r]]); moved = true) {
                if (!do_step(w, r, &p->steps[w->at[r]])) return HK_INVALID;
                w->at[r]++;
                if (w->at[r] == hki_min(steps, p->nsteps)) look(w, r, sets);
                unfinished -= w->at[r] == p->nsteps;
            }
        }
    }
    return unfinished ? HK_INVALID : HK_OK;
}

hk_status hki_plan_holds(hki_plan *const *plans, uint32_t ranks, uint32_t steps, uint64_t *sets)
{
    if (ranks > HKI_HOLDS_RANKS) return HK_UNSUPPORTED;
    world *w = hki_alloc(sizeof *w);
    if (!w) return HK_NO_MEMORY;
    w->plans = plans;
    w->ranks = ranks;
    const hk_status status = open(w) ? walk(w, steps, sets) : HK_NO_MEMORY;
    close(w);
    return status;
}
