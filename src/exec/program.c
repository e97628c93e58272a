/* SPDX-License-Identifier: Apache-2.0
 * From a plan to a program: where every operand lies, and what steps may do without a copy. One pass over the steps, O(steps). */
#include "exec/exec.h"

#include <string.h>

size_t hki_window_elems(const hki_plan *p, size_t slot_bytes)
{
    const size_t elem = hk_dtype_size(p->call.dtype), lines = slot_bytes / p->span / HKI_LINE;
    return hki_max(lines, 1) * HKI_LINE / elem;
}

size_t hki_program_done_bytes(const hki_program *g)
{
    const size_t n = g->plan->nsteps;
    return HKI_DEPTH * (n * sizeof(uint64_t) + n) + 1;
}

static bool room(void *vector, uint32_t want, uint32_t *have, size_t entry)
{
    void **v = vector;
    if (want <= *have) return true;
    hki_free(*v);
    *v = hki_alloc(want * entry);
    *have = *v ? want : 0;
    return *v != NULL;
}

static bool rooms(hki_program *g, const hki_plan *p)
{
    return room(&g->steps, p->nsteps + 1, &g->steps_room, sizeof *g->steps) &&
           room(&g->src_at, p->nsrcs + 1, &g->srcs_room, sizeof *g->src_at) &&
           room(&g->ordinal, p->npeers + 1, &g->peers_room, sizeof *g->ordinal) &&
           room(&g->count, 4 * p->call.ranks, &g->ranks_room, sizeof *g->count);
}

void hki_program_fini(hki_program *g)
{
    hki_free(g->steps);
    hki_free(g->src_at);
    hki_free(g->ordinal);
    hki_free(g->count);
    memset(g, 0, sizeof *g);
}

static void lay_out_temp(hki_program *g, hki_plan *p)
{
    const size_t line = HKI_LINE / g->elem_bytes;
    hki_blocks *t = &p->blocks[HKI_TEMP];
    size_t at = 0;
    for (uint32_t b = 0; b < t->n; b++) {
        t->off[b] = at;
        const size_t len = hki_min(t->len[b], g->w);
        at += g->one_piece ? len : hki_round_up(len, line);
    }
    g->temp_bytes = hki_round_up(at * g->elem_bytes, HKI_LINE);
}

/* In one piece in every window: a single block, or, if there is but one window, blocks one behind the other. */
static bool in_one_piece(const hki_program *g, hki_slice s)
{
    const hki_blocks *t = &g->plan->blocks[s.buf];
    if (s.buf == HKI_MSG || s.n == 1) return true;
    for (uint32_t i = 1; i < s.n; i++) {
        const uint32_t a = hki_slice_block(g->plan, s, i - 1), b = hki_slice_block(g->plan, s, i);
        if (!g->one_piece || t->off[b] != t->off[a] + t->len[a]) return false;
    }
    return true;
}

static size_t start_of(const hki_program *g, hki_slice s)
{
    return s.buf == HKI_MSG || !s.n ? 0 : g->plan->blocks[s.buf].off[hki_slice_block(g->plan, s, 0)] * g->elem_bytes;
}

/* What step s, of one piece of memory each, is in a small call. */
static uint8_t kind_of_small(const hki_plan *p, const hki_step *s)
{
    if (!hki_slice_elems(p, s->slice)) return HKI_NOT_SMALL;
    if (s->kind == HKI_STEP_SEND) return HKI_SMALL_SEND;
    if (s->kind == HKI_STEP_COPY && s->nto && !s->finish && p->srcs[s->src].buf != HKI_MSG) return HKI_SMALL_SEND;
    if (s->kind == HKI_STEP_REDUCE && !s->nto && s->nsrc > 1) return HKI_SMALL_FOLD;
    return s->kind == HKI_STEP_RECV && !s->nto ? HKI_SMALL_RECV : HKI_NOT_SMALL;
}

static void place(hki_program *g, uint32_t i)
{
    const hki_plan *p = g->plan;
    const hki_step *s = &p->steps[i];
    hki_ready *y = &g->steps[i];
    *y = (hki_ready){.last = true, .lends = true};
    bool single = s->kind < HKI_STEP_POST && in_one_piece(g, s->slice);
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice src = p->srcs[s->src + k];
        single = single && in_one_piece(g, src);
        g->src_at[s->src + k] = start_of(g, src);
    }
    if (!single) {
        g->flat = false;
        return;
    }
    y->elems = hki_slice_elems(p, s->slice);
    y->bytes = y->elems * g->elem_bytes;
    y->at = start_of(g, s->slice);
    y->small = kind_of_small(p, s);
}

/* Per rank: messages sent to it, received from it, index + 1 of the first SEND to it, and of the last step that reads a message from it. */
typedef struct counts { uint32_t *sent, *got, *open, *heard; } counts;

#define WANTED UINT32_MAX /* in counts.open: a place is wanted already; one a window from each rank */

/* A RECV's place is free from the start, or once the one step is done that touches it before: a SEND to the very rank it is wanted from.
 * (Whoever has that message has, or is about to, read it. See net/area.c.) */
static void want(hki_program *g, counts *c, uint32_t i)
{
    const hki_plan *p = g->plan;
    const hki_step *s = &p->steps[i];
    const uint32_t preds = p->hazards.at[i + 1] - p->hazards.at[i], only = preds == 1 ? p->hazards.pred[p->hazards.at[i]] : 0;
    const hki_step *before = &p->steps[only];
    const uint32_t open = c->open[s->peer];
    if (preds > 1 || !g->steps[i].elems || s->slice.buf != HKI_OUT || open == WANTED) return;
    const bool after_it = preds == 1 && before->kind == HKI_STEP_SEND && before->nto == 1 && p->peers[before->to] == s->peer && g->steps[only].elems;
    if (!after_it && (preds || !open)) return;
    g->steps[after_it ? only : open - 1].wants = i + 1;
    c->open[s->peer] = WANTED;
}

static bool in_slice(const hki_plan *p, hki_slice s, uint32_t block)
{
    const uint32_t n = p->blocks[s.buf].n;
    return (block + n - s.first) % n < s.n;
}

static bool share_blocks(const hki_plan *p, hki_slice a, hki_slice b)
{
    return a.buf == b.buf && a.n && b.n && (in_slice(p, a, hki_slice_block(p, b, 0)) || in_slice(p, b, hki_slice_block(p, a, 0)));
}

/* Step i comes after step j, which it has a hazard with: what does that mean for j's slice? */
static void come_after(hki_program *g, uint32_t i, uint32_t j)
{
    const hki_plan *p = g->plan;
    const hki_step *s = &p->steps[i], *before = &p->steps[j];
    g->steps[j].last = false;
    if (s->kind == HKI_STEP_SEND || s->kind >= HKI_STEP_POST || before->kind >= HKI_STEP_POST || !share_blocks(p, s->slice, before->slice)) return;
    const bool swap = p->swaps && s->kind == HKI_STEP_RECV && before->kind == HKI_STEP_SEND && before->nto == 1 && p->peers[before->to] == s->peer;
    if (!swap) g->steps[j].lends = false;
}

static void count_messages(hki_program *g, counts *c, uint32_t i)
{
    const hki_plan *p = g->plan;
    const hki_step *s = &p->steps[i];
    hki_ready *y = &g->steps[i];
    for (uint32_t j = p->hazards.at[i]; j < p->hazards.at[i + 1]; j++) come_after(g, i, p->hazards.pred[j]);
    if (s->kind == HKI_STEP_RECV) {
        y->ordinal = c->got[s->peer]++;
        want(g, c, i);
    }
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice src = p->srcs[s->src + k];
        if (src.buf == HKI_MSG) c->got[src.first]++, c->heard[src.first] = i + 1;
    }
    y->holds = true;
    for (uint32_t t = 0; t < s->nto && s->kind < HKI_STEP_POST; t++) {
        const uint32_t peer = p->peers[s->to + t];
        g->ordinal[s->to + t] = c->sent[peer]++;
        y->holds = y->holds && c->heard[peer] == i + 1;
        if (s->kind == HKI_STEP_SEND && s->nto == 1 && y->elems && !c->open[peer]) c->open[peer] = i + 1;
    }
}

bool hki_program_init(hki_program *g, hki_plan *p, size_t slot_bytes)
{
    const uint32_t P = p->call.ranks;
    HKI_ASSERT(p->hazards.ready);
    g->plan = p;
    g->elem_bytes = hk_dtype_size(p->call.dtype);
    g->w = hki_window_elems(p, slot_bytes);
    g->windows = p->longest ? (uint32_t)((p->longest + g->w - 1) / g->w) : p->tokens ? 1 : 0;
    g->one_piece = g->flat = g->windows <= 1;
    g->fold = hki_op_reduces(p->call.op) ? hki_fold_find(p->call.dtype, &p->call.red) : (hki_folder){0};
    if (!rooms(g, p)) return false;
    lay_out_temp(g, p);
    memset(g->count, 0, 4 * P * sizeof *g->count);
    counts c = {g->count, g->count + P, g->count + 2 * P, g->count + 3 * P};
    for (uint32_t i = 0; i < p->nsteps; i++) place(g, i);
    for (uint32_t i = 0; i < p->nsteps; i++) count_messages(g, &c, i);
    return true;
}
