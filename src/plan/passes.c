/* SPDX-License-Identifier: Apache-2.0
 * What happens to a plan once it is written: rewriting for in place, marking the finish, fusing, deriving hazards. */
#include "plan/plan.h"

#include <string.h>

/* In place, this rank's own block stands in the larger buffer: one side's slices become the other's, at NCCL's offsets. */
static hki_slice place(const hki_plan *p, hki_slice s)
{
    if (s.buf >= HKI_TEMP) return s;
    const hki_call *c = &p->call;
    const uint32_t in = p->blocks[HKI_IN].n, out = p->blocks[HKI_OUT].n;
    if (in == out) s.buf = HKI_OUT;
    else if (in < out && s.buf == HKI_IN) s = hki_blocks_of(HKI_OUT, c->op == HKI_GATHER ? c->root : c->rank, s.n);
    else if (in > out && s.buf == HKI_OUT) s = hki_blocks_of(HKI_IN, c->op == HKI_SCATTER ? c->root : c->rank, s.n);
    return s;
}

static void rewrite_in_place(hki_plan *p)
{
    for (uint32_t i = 0; i < p->nsrcs; i++) p->srcs[i] = place(p, p->srcs[i]);
    for (uint32_t i = 0; i < p->nsteps; i++) p->steps[i].slice = place(p, p->steps[i].slice);
}

static bool same_slice(hki_slice a, hki_slice b) { return a.buf == b.buf && a.first == b.first && a.n == b.n; }

static void drop_idle_copies(hki_plan *p)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const hki_step *s = &p->steps[i];
        const bool idle = s->kind == HKI_STEP_COPY && !s->finish && same_slice(s->slice, p->srcs[s->src]);
        if (!idle) p->steps[kept++] = *s;
    }
    p->nsteps = kept;
}

/* The finish belongs to the step that makes a value complete. Walking backwards, a block of the result that is last written by a
 * fold is complete there; one last written by a copy is traced to the copy's source; one received arrives complete. Empty blocks
 * have no value: what once covered them may be a partial result of others. */
static void mark(hki_plan *p, uint8_t buf, uint32_t block, uint32_t before)
{
    const uint32_t n = p->blocks[buf].n;
    for (uint32_t i = before; i-- > 0;) {
        hki_step *s = &p->steps[i];
        const uint32_t at = (block + n - s->slice.first) % n; /* distance around the ring of blocks */
        if (s->kind == HKI_STEP_SEND || s->kind >= HKI_STEP_POST || s->slice.buf != buf || at >= s->slice.n) continue;
        if (s->kind == HKI_STEP_REDUCE) s->finish = true;
        if (s->kind == HKI_STEP_COPY) mark(p, p->srcs[s->src].buf, hki_slice_block(p, p->srcs[s->src], at), i);
        return;
    }
}

static void mark_finish(hki_plan *p)
{
    const hki_call *c = &p->call;
    if (!hki_op_reduces(c->op) || !c->red.finish || (c->op == HKI_REDUCE && c->rank != c->root)) return;
    for (uint32_t b = 0; b < p->blocks[HKI_OUT].n; b++) {
        const hki_slice out = hki_blocks_of(HKI_OUT, b, 1), at = c->in_place ? place(p, out) : out;
        if (p->blocks[at.buf].len[at.first]) mark(p, at.buf, at.first, p->nsteps);
    }
}

hk_status hki_plan_end(hki_plan *p)
{
    if (p->status) return p->status;
    if (p->call.in_place) rewrite_in_place(p);
    mark_finish(p);
    drop_idle_copies(p);
    return p->status;
}

void hki_plan_fuse(hki_plan *p)
{
    if (p->status) return;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const hki_step s = p->steps[i];
        hki_step *last = kept ? &p->steps[kept - 1] : NULL;
        const bool joins = s.kind == HKI_STEP_SEND && last && last->nto == 0 && last->kind != HKI_STEP_AWAIT &&
                           same_slice(s.slice, last->slice);
        if (joins) {
            last->to = s.to;
            last->nto = s.nto;
        } else {
            p->steps[kept++] = s;
        }
    }
    p->nsteps = kept;
}

/* ---- Hazards: one pass in list order over per-block "last writer" and "readers since". ------------------------------ */

typedef struct track {
    uint32_t *writer;        /* per cell: last writing step + 1 */
    uint32_t *reader;        /* per cell: head of its list of readers since, index + 1 */
    struct { uint32_t step, next; } *node;
    uint32_t nodes, room;
    uint32_t cell_of[HKI_BUFS + 1]; /* first cell of each buffer; tokens come last */
} track;

static bool add_pred(hki_plan *p, uint32_t first, uint32_t step)
{
    hki_hazards *h = &p->hazards;
    for (uint32_t i = first; i < h->npred; i++)
        if (h->pred[i] == step) return true;
    if (h->npred == h->room) {
        const uint32_t want = h->room ? 2 * h->room : 64;
        uint32_t *grown = hki_grow(h->pred, h->npred * sizeof *grown, want * sizeof *grown);
        if (!grown) return false;
        h->pred = grown;
        h->room = want;
    }
    h->pred[h->npred++] = step;
    return true;
}

/* Step i touches one cell; before[0..] are the predecessors found so far, from index `first`. */
static bool touch(hki_plan *p, track *t, uint32_t first, uint32_t i, uint32_t cell, bool writes)
{
    if (t->writer[cell] && t->writer[cell] - 1 != i && !add_pred(p, first, t->writer[cell] - 1)) return false;
    if (writes) {
        for (uint32_t r = t->reader[cell]; r; r = t->node[r - 1].next)
            if (t->node[r - 1].step != i && !add_pred(p, first, t->node[r - 1].step)) return false;
        t->reader[cell] = 0;
        t->writer[cell] = i + 1;
        return true;
    }
    if (t->nodes == t->room) {
        const uint32_t want = t->room ? 2 * t->room : 256;
        void *grown = hki_grow(t->node, t->nodes * sizeof *t->node, want * sizeof *t->node);
        if (!grown) return false;
        t->node = grown;
        t->room = want;
    }
    t->node[t->nodes].step = i;
    t->node[t->nodes].next = t->reader[cell];
    t->reader[cell] = ++t->nodes;
    return true;
}

static bool touch_slice(hki_plan *p, track *t, uint32_t first, uint32_t i, hki_slice s, bool writes)
{
    if (s.buf == HKI_MSG) return true;
    for (uint32_t b = 0; b < s.n; b++)
        if (!touch(p, t, first, i, t->cell_of[s.buf] + hki_slice_block(p, s, b), writes)) return false;
    return true;
}

static bool touch_step(hki_plan *p, track *t, uint32_t i)
{
    const hki_step *s = &p->steps[i];
    const uint32_t first = p->hazards.npred, tokens = t->cell_of[HKI_MSG];
    if (s->kind == HKI_STEP_POST) return touch(p, t, first, i, tokens + s->token, false);
    if (s->kind == HKI_STEP_AWAIT) return touch(p, t, first, i, tokens + s->token, true);
    if (s->kind == HKI_STEP_SEND) return touch_slice(p, t, first, i, s->slice, false);
    for (uint32_t k = 0; k < s->nsrc; k++)
        if (!touch_slice(p, t, first, i, p->srcs[s->src + k], false)) return false;
    return touch_slice(p, t, first, i, s->slice, true);
}

hk_status hki_plan_hazards(hki_plan *p)
{
    if (p->status || p->hazards.ready) return p->status;
    track t = {0};
    uint32_t cells = 0;
    for (int b = 0; b < HKI_BUFS; b++) {
        t.cell_of[b] = cells;
        cells += p->blocks[b].n;
    }
    t.cell_of[HKI_MSG] = cells;
    cells += p->tokens;
    t.writer = hki_alloc((cells + 1) * sizeof *t.writer);
    t.reader = hki_alloc((cells + 1) * sizeof *t.reader);
    hki_free(p->hazards.at);
    p->hazards.at = hki_alloc((p->nsteps + 1) * sizeof *p->hazards.at);
    p->hazards.npred = 0;
    bool ok = t.writer && t.reader && p->hazards.at;
    for (uint32_t i = 0; ok && i < p->nsteps; i++) {
        p->hazards.at[i] = p->hazards.npred;
        ok = touch_step(p, &t, i);
    }
    if (ok) p->hazards.at[p->nsteps] = p->hazards.npred;
    p->hazards.ready = ok;
    hki_free(t.writer);
    hki_free(t.reader);
    hki_free(t.node);
    return ok ? HK_OK : HK_NO_MEMORY;
}
