/* SPDX-License-Identifier: Apache-2.0
 * One plan at a time: is every step well formed, and do the hazards order every pair of conflicting steps? */
#include "plan/check_graph.h"

static bool good_slice(const hki_plan *p, hki_slice s)
{
    if (s.buf >= HKI_MSG) return false;
    const uint32_t n = p->blocks[s.buf].n;
    return s.n == 0 || (s.first < n && s.n <= n && (s.buf != HKI_TEMP || s.first + s.n <= n));
}

static bool same_shape(const hki_plan *p, hki_slice a, hki_slice b)
{
    if (a.n != b.n) return false;
    for (uint32_t i = 0; i < a.n; i++)
        if (p->blocks[a.buf].len[hki_slice_block(p, a, i)] != p->blocks[b.buf].len[hki_slice_block(p, b, i)]) return false;
    return true;
}

/* Block by block a step may read what it overwrites, but only the block it is about to write. */
static bool overlaps_unevenly(const hki_plan *p, hki_slice dst, hki_slice src)
{
    if (dst.buf != src.buf || dst.first == src.first || dst.n == 0) return false;
    const uint32_t n = p->blocks[dst.buf].n;
    return (src.first + n - dst.first) % n < dst.n || (dst.first + n - src.first) % n < src.n;
}

static bool good_peer(const hki_plan *p, uint32_t peer) { return peer < p->call.ranks && peer != p->call.rank; }

static bool form_of_sources(hki_graph *g, uint32_t r, uint32_t i)
{
    const hki_plan *p = g->plans[r];
    const hki_step *s = &p->steps[i];
    char a[48], b[48];
    if (s->nsrc == 0 || s->src + s->nsrc > p->nsrcs || (s->kind == HKI_STEP_COPY && s->nsrc != 1))
        return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "has %u sources", s->nsrc);
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice from = p->srcs[s->src + k];
        if (from.buf == HKI_MSG && s->kind == HKI_STEP_REDUCE) {
            if (!good_peer(p, from.first))
                return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "source %u: no rank %u to hear from", k, from.first);
            for (uint32_t j = 0; j < k; j++)
                if (p->srcs[s->src + j].buf == HKI_MSG && p->srcs[s->src + j].first == from.first)
                    return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "needs two messages of rank %u at once", from.first);
            continue;
        }
        if (!good_slice(p, from) || !same_shape(p, s->slice, from))
            return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "source %s does not fit %s", hki_slice_text(from, a),
                                   hki_slice_text(s->slice, b));
        if (overlaps_unevenly(p, s->slice, from))
            return hki_graph_blame(g, HKI_CHECK_HAZARDS, r, i, "reads %s while it writes %s", hki_slice_text(from, a),
                                   hki_slice_text(s->slice, b));
    }
    return true;
}

static bool form_of_step(hki_graph *g, uint32_t r, uint32_t i)
{
    const hki_plan *p = g->plans[r];
    const hki_step *s = &p->steps[i];
    char a[48];
    const bool token = s->kind >= HKI_STEP_POST, folds = s->kind == HKI_STEP_REDUCE || s->kind == HKI_STEP_COPY;
    const bool sends = s->kind == HKI_STEP_SEND || s->kind == HKI_STEP_POST;
    const bool hears = s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT;
    if (s->kind > HKI_STEP_AWAIT) return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "no such kind of step");
    if (s->nto > p->npeers || s->to > p->npeers - s->nto)
        return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "its peers are not in the plan");
    if (sends ? s->nto == 0 : s->kind == HKI_STEP_AWAIT && s->nto)
        return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "sends to %u ranks", s->nto);
    if (!folds && s->nsrc) return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "has %u sources", s->nsrc);
    if (hears && !good_peer(p, s->peer)) return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "no rank %u to hear from", s->peer);
    for (uint32_t k = 0; k < s->nto; k++) {
        if (!good_peer(p, p->peers[s->to + k]))
            return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "no rank %u to send to", p->peers[s->to + k]);
        for (uint32_t j = 0; j < k; j++)
            if (p->peers[s->to + j] == p->peers[s->to + k])
                return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "sends one message to rank %u twice", p->peers[s->to + k]);
    }
    if (token) return s->token < p->tokens || hki_graph_blame(g, HKI_CHECK_FORM, r, i, "no token %u", s->token);
    if (!good_slice(p, s->slice) || hki_slice_elems(p, s->slice) == 0)
        return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "%s is empty or reaches beyond its buffer", hki_slice_text(s->slice, a));
    if (s->nto && s->slice.n > p->span) return hki_graph_blame(g, HKI_CHECK_FORM, r, i, "%s has more blocks than the span, %u",
                                                               hki_slice_text(s->slice, a), p->span);
    if (s->finish && (!folds || !hki_op_reduces(p->call.op)))
        return hki_graph_blame(g, HKI_CHECK_FINISH, r, i, "only folds and copies of a reduction can finish a value");
    return !folds || form_of_sources(g, r, i);
}

bool hki_check_form(hki_graph *g)
{
    for (uint32_t r = 0; r < g->ranks; r++) {
        const hki_plan *p = g->plans[r];
        if (p->status)
            return hki_graph_blame(g, HKI_CHECK_FORM, r, HKI_NOBODY, "the plan was not built: %s", p->error ? p->error : "?");
        if (p->call.rank != r || p->call.ranks != g->ranks || p->call.op != g->plans[0]->call.op ||
            p->call.root != g->plans[0]->call.root)
            return hki_graph_blame(g, HKI_CHECK_FORM, r, HKI_NOBODY, "its plan is of another call");
        for (uint32_t i = 0; i < p->nsteps; i++)
            if (!form_of_step(g, r, i)) return false;
    }
    return true;
}

/* ---- Hazards, derived once more with nothing in common with hki_plan_hazards but the rule. ---- */

typedef struct history {
    uint32_t *writer, *readers;    /* per cell: last writing step + 1; its readers since, index + 1 into `node` */
    uint32_t *node_step, *node_next;
    uint32_t nodes;
    uint32_t *ordered;             /* per step: the last step + 1 that has it as a predecessor */
} history;

static bool must_follow(hki_graph *g, const history *h, uint32_t r, uint32_t i, uint32_t earlier)
{
    return earlier == i || h->ordered[earlier] == i + 1 ||
           hki_graph_blame(g, HKI_CHECK_HAZARDS, r, i, "conflicts with step %u and is not ordered after it", earlier);
}

static bool access(hki_graph *g, history *h, uint32_t r, uint32_t i, uint32_t cell, bool writes)
{
    if (h->writer[cell] && !must_follow(g, h, r, i, h->writer[cell] - 1)) return false;
    if (!writes) {
        h->node_step[h->nodes] = i;
        h->node_next[h->nodes] = h->readers[cell];
        h->readers[cell] = ++h->nodes;
        return true;
    }
    for (uint32_t k = h->readers[cell]; k; k = h->node_next[k - 1])
        if (!must_follow(g, h, r, i, h->node_step[k - 1])) return false;
    h->readers[cell] = 0;
    h->writer[cell] = i + 1;
    return true;
}

static bool access_slice(hki_graph *g, history *h, uint32_t r, uint32_t i, hki_slice s, bool writes)
{
    const hki_plan *p = g->plans[r];
    uint32_t base = 0;
    if (s.buf == HKI_MSG) return true;
    for (int b = 0; b < s.buf; b++) base += p->blocks[b].n;
    for (uint32_t k = 0; k < s.n; k++)
        if (!access(g, h, r, i, base + hki_slice_block(p, s, k), writes)) return false;
    return true;
}

static bool hazards_of_step(hki_graph *g, history *h, uint32_t r, uint32_t i, uint32_t tokens)
{
    const hki_plan *p = g->plans[r];
    const hki_step *s = &p->steps[i];
    for (uint32_t k = p->hazards.at[i]; k < p->hazards.at[i + 1]; k++) {
        if (p->hazards.pred[k] >= i)
            return hki_graph_blame(g, HKI_CHECK_HAZARDS, r, i, "is ordered after step %u", p->hazards.pred[k]);
        h->ordered[p->hazards.pred[k]] = i + 1;
    }
    if (s->kind >= HKI_STEP_POST) return access(g, h, r, i, tokens + s->token, s->kind == HKI_STEP_AWAIT);
    for (uint32_t k = 0; k < s->nsrc; k++)
        if (!access_slice(g, h, r, i, p->srcs[s->src + k], false)) return false;
    return access_slice(g, h, r, i, s->slice, s->kind != HKI_STEP_SEND);
}

static bool hazards_of_rank(hki_graph *g, uint32_t r)
{
    const hki_plan *p = g->plans[r];
    uint32_t cells = p->tokens, reads = 0;
    for (int b = 0; b < HKI_BUFS; b++) cells += p->blocks[b].n;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        reads += p->steps[i].kind >= HKI_STEP_POST ? 1 : p->steps[i].slice.n;
        for (uint32_t k = 0; k < p->steps[i].nsrc; k++) reads += p->srcs[p->steps[i].src + k].n;
    }
    uint32_t *memory = hki_alloc((2 * (size_t)cells + 2 * (size_t)reads + p->nsteps + 1) * sizeof *memory);
    if (!memory) return g->status = HK_NO_MEMORY, false;
    history h = {.writer = memory, .readers = memory + cells, .node_step = memory + 2 * cells};
    h.node_next = h.node_step + reads;
    h.ordered = h.node_next + reads;
    bool ok = true;
    for (uint32_t i = 0; ok && i < p->nsteps; i++) ok = hazards_of_step(g, &h, r, i, cells - p->tokens);
    hki_free(memory);
    return ok;
}

bool hki_check_hazards(hki_graph *g)
{
    for (uint32_t r = 0; r < g->ranks; r++) {
        if (hki_plan_hazards(g->plans[r])) return g->status = HK_NO_MEMORY, false;
        if (!hazards_of_rank(g, r)) return false;
    }
    return true;
}
