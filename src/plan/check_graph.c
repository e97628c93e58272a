/* SPDX-License-Identifier: Apache-2.0
 * The graph itself: which message is read where, an order of all steps, and what an in-order walk needs. */
#include "plan/check_graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void *hki_graph_alloc(hki_graph *g, size_t bytes)
{
    HKI_ASSERT(g->nowned < HKI_COUNT(g->owned));
    void *p = g->owned[g->nowned++] = hki_alloc(bytes);
    if (!p && !g->status) g->status = HK_NO_MEMORY;
    return p;
}
#define NEW(g, n, type) ((type *)hki_graph_alloc(g, ((size_t)(n) + 1) * sizeof(type)))

const char *hki_slice_text(hki_slice s, char text[48])
{
    static const char *const names[] = {"IN", "OUT", "TEMP"};
    if (s.buf >= HKI_MSG) snprintf(text, 48, "message from %u", s.first);
    else snprintf(text, 48, "%s[%u..+%u)", names[s.buf], s.first, s.n);
    return text;
}

static int step_text(const hki_plan *p, const hki_step *s, char *text, size_t room)
{
    static const char *const kinds[] = {"send", "recv", "reduce", "copy", "post", "await"};
    char slice[48];
    const bool token = s->kind >= HKI_STEP_POST, hears = s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT;
    if (token) snprintf(slice, sizeof slice, "token %u", s->token);
    else hki_slice_text(s->slice, slice);
    int n = snprintf(text, room, "%s %s", s->kind <= HKI_STEP_AWAIT ? kinds[s->kind] : "?", slice);
    if (hears) n += snprintf(text + n, room - n, " from %u", s->peer);
    if (s->nto && s->to < p->npeers) n += snprintf(text + n, room - n, " to %u%s", p->peers[s->to], s->nto > 1 ? ".." : "");
    return n;
}

bool hki_graph_blame(hki_graph *g, hki_property property, uint32_t rank, uint32_t step, const char *format, ...)
{
    hki_check_report *r = g->report;
    if (g->status) return false;
    g->status = HK_INVALID;
    r->property = property, r->rank = rank, r->step = step;
    int n = snprintf(r->text, sizeof r->text, "%s: rank %u", hki_property_name(property), rank);
    if (step != HKI_NOBODY) {
        n += snprintf(r->text + n, sizeof r->text - n, " step %u (", step);
        n += step_text(g->plans[rank], &g->plans[rank]->steps[step], r->text + n, sizeof r->text - n);
        n += snprintf(r->text + n, sizeof r->text - n, ")");
    }
    n += snprintf(r->text + n, sizeof r->text - n, ": ");
    va_list args;
    va_start(args, format);
    vsnprintf(r->text + n, sizeof r->text - n, format, args);
    va_end(args);
    return false;
}

/* ---- Messages ---- */

static uint32_t reads_of(const hki_plan *p, const hki_step *s)
{
    uint32_t n = s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT;
    for (uint32_t k = 0; k < s->nsrc; k++) n += p->srcs[s->src + k].buf == HKI_MSG;
    return n;
}

static bool number(hki_graph *g)
{
    if (!(g->first = NEW(g, g->ranks, uint32_t)) || !(g->seq_first = NEW(g, g->ranks, uint32_t))) return false;
    for (uint32_t r = 0; r < g->ranks; r++) g->first[r + 1] = g->first[r] + g->plans[r]->nsteps;
    const uint32_t nodes = g->nodes = g->first[g->ranks];
    g->rank_of = NEW(g, nodes, uint32_t), g->sent_at = NEW(g, nodes, uint32_t), g->read_at = NEW(g, nodes, uint32_t);
    g->seq = NEW(g, nodes, uint32_t), g->seq_of = NEW(g, nodes, uint32_t), g->order = NEW(g, nodes, uint32_t);
    if (g->status) return false;
    uint32_t sending = 0;
    for (uint32_t r = 0; r < g->ranks; r++) {
        g->seq_first[r] = sending;
        for (uint32_t n = g->first[r]; n < g->first[r + 1]; n++) {
            g->rank_of[n] = r;
            const hki_step *s = hki_graph_step(g, n);
            g->sent_at[n + 1] = g->sent_at[n] + s->nto;
            g->read_at[n + 1] = g->read_at[n] + reads_of(g->plans[r], s);
            if (s->nto) g->seq_of[n] = sending, g->seq[sending++] = n;
        }
    }
    g->seq_first[g->ranks] = sending;
    g->nmsgs = g->sent_at[nodes], g->nreads = g->read_at[nodes];
    g->msgs = NEW(g, g->nmsgs, hki_message), g->reads = NEW(g, g->nreads, uint32_t);
    return !g->status;
}

/* Block lengths agree one by one; empty blocks carry nothing. */
static bool same_lengths(const hki_plan *a, hki_slice as, const hki_plan *b, hki_slice bs)
{
    uint32_t i = 0, j = 0;
    for (;;) {
        while (i < as.n && !a->blocks[as.buf].len[hki_slice_block(a, as, i)]) i++;
        while (j < bs.n && !b->blocks[bs.buf].len[hki_slice_block(b, bs, j)]) j++;
        if (i == as.n || j == bs.n) return i == as.n && j == bs.n;
        if (a->blocks[as.buf].len[hki_slice_block(a, as, i++)] != b->blocks[bs.buf].len[hki_slice_block(b, bs, j++)])
            return false;
    }
}

/* Node n reads the next message of the lane from rank s. */
static bool take(hki_graph *g, uint32_t n, uint32_t s, uint32_t at, const uint32_t *lane_first, uint32_t *taken,
                 const uint32_t *lane)
{
    const uint32_t d = g->rank_of[n], l = s * g->ranks + d, k = taken[l]++;
    if (k == lane_first[l + 1] - lane_first[l])
        return hki_graph_blame_node(g, HKI_CHECK_MESSAGES, n, "rank %u sends it %u messages, this would be one more", s, k);
    const uint32_t m = lane[lane_first[l] + k], from = g->msgs[m].from;
    const hki_step *sent = hki_graph_step(g, from), *read = hki_graph_step(g, n);
    g->msgs[m].to = n;
    g->reads[at] = m;
    const bool token = sent->kind == HKI_STEP_POST, awaited = read->kind == HKI_STEP_AWAIT;
    if (token != awaited || (!token && !same_lengths(g->plans[s], sent->slice, g->plans[d], read->slice)))
        return hki_graph_blame_node(g, HKI_CHECK_MESSAGES, n, "message %u of rank %u (its step %u) has other block lengths", k, s,
                                    from - g->first[s]);
    return true;
}

static bool take_all(hki_graph *g, const uint32_t *lane_first, uint32_t *taken, const uint32_t *lane)
{
    for (uint32_t n = 0; n < g->nodes; n++) {
        const hki_plan *p = g->plans[g->rank_of[n]];
        const hki_step *s = hki_graph_step(g, n);
        uint32_t at = g->read_at[n];
        if (s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT)
            if (!take(g, n, s->peer, at++, lane_first, taken, lane)) return false;
        for (uint32_t k = 0; k < s->nsrc; k++)
            if (p->srcs[s->src + k].buf == HKI_MSG && !take(g, n, p->srcs[s->src + k].first, at++, lane_first, taken, lane))
                return false;
    }
    for (uint32_t m = 0; m < g->nmsgs; m++)
        if (g->msgs[m].to == HKI_NOBODY)
            return hki_graph_blame_node(g, HKI_CHECK_MESSAGES, g->msgs[m].from, "rank %u never reads it", g->msgs[m].dst);
    return true;
}

bool hki_graph_match(hki_graph *g)
{
    if (!number(g)) return false;
    const uint32_t lanes = g->ranks * g->ranks;
    uint32_t *lane_first = NEW(g, lanes, uint32_t), *taken = NEW(g, lanes, uint32_t), *lane = NEW(g, g->nmsgs, uint32_t);
    if (g->status) return false;
    for (uint32_t n = 0, m = 0; n < g->nodes; n++) {
        const uint32_t r = g->rank_of[n];
        const hki_step *s = hki_graph_step(g, n);
        for (uint32_t k = 0; k < s->nto; k++, m++) {
            g->msgs[m] = (hki_message){.from = n, .to = HKI_NOBODY, .dst = g->plans[r]->peers[s->to + k]};
            lane_first[r * g->ranks + g->msgs[m].dst + 1]++;
        }
    }
    for (uint32_t l = 0; l < lanes; l++) lane_first[l + 1] += lane_first[l];
    for (uint32_t m = 0; m < g->nmsgs; m++) {
        const uint32_t l = g->rank_of[g->msgs[m].from] * g->ranks + g->msgs[m].dst;
        lane[lane_first[l] + taken[l]++] = m;
    }
    memset(taken, 0, lanes * sizeof *taken);
    return take_all(g, lane_first, taken, lane);
}

/* ---- Order ---- */

typedef struct edges { uint32_t (*pair)[2], n, *at, *next; } edges;

/* Room for all edges that collect() can find. */
static bool edges_new(hki_graph *g, edges *e)
{
    uint32_t most = g->nodes + 3 * g->nmsgs;
    for (uint32_t r = 0; r < g->ranks; r++) most += g->plans[r]->hazards.npred;
    e->n = 0;
    e->pair = hki_graph_alloc(g, (most + 1) * sizeof *e->pair);
    e->at = NEW(g, g->nodes, uint32_t);
    e->next = NEW(g, most, uint32_t);
    return !g->status;
}

static void edge(edges *e, uint32_t from, uint32_t to)
{
    e->pair[e->n][0] = from;
    e->pair[e->n++][1] = to;
}

/* All that an event-driven run keeps. */
static void collect(const hki_graph *g, edges *e, uint32_t *last, uint32_t slots)
{
    for (uint32_t r = 0; r < g->ranks; r++) {
        const hki_hazards *h = &g->plans[r]->hazards;
        memset(last, 0, g->ranks * sizeof *last);
        for (uint32_t n = g->first[r]; n < g->first[r + 1]; n++) {
            const uint32_t i = n - g->first[r];
            for (uint32_t k = h->at[i]; k < h->at[i + 1]; k++) edge(e, g->first[r] + h->pred[k], n);
            for (uint32_t k = g->read_at[n]; k < g->read_at[n + 1]; k++) {
                const uint32_t from = g->msgs[g->reads[k]].from, s = g->rank_of[from];
                edge(e, from, n);
                if (last[s]) edge(e, last[s] - 1, n);
                last[s] = n + 1;
            }
        }
        for (uint32_t q = g->seq_first[r]; q < g->seq_first[r + 1]; q++) {
            if (q > g->seq_first[r]) edge(e, g->seq[q - 1], g->seq[q]);
            if (q - g->seq_first[r] < slots) continue;
            const uint32_t reused = g->seq[q - slots];
            for (uint32_t m = g->sent_at[reused]; m < g->sent_at[reused + 1]; m++) edge(e, g->msgs[m].to, g->seq[q]);
        }
    }
}

/* Names a step in a circle: walking back over steps that wait must come round. A send, if there is one: what it lacks is room. */
static bool blame_circle(hki_graph *g, const edges *e, const uint32_t *waits, uint32_t slots)
{
    uint32_t *back = g->order, at = 0;
    for (uint32_t k = 0; k < e->n; k++)
        if (waits[e->pair[k][0]]) back[e->pair[k][1]] = e->pair[k][0];
    while (!waits[at]) at++;
    for (uint32_t turn = 0; turn < g->nodes; turn++) at = back[at];
    uint32_t worst = at;
    for (uint32_t n = back[at]; n != at; n = back[n]) {
        const bool sends = hki_graph_step(g, n)->nto, sends_too = hki_graph_step(g, worst)->nto;
        if (sends != sends_too ? sends : n < worst) worst = n;
    }
    return hki_graph_blame_node(g, HKI_CHECK_DEADLOCK, worst, "with %u slots it waits in a circle, first for step %u of rank %u",
                                slots, back[worst] - g->first[g->rank_of[back[worst]]], g->rank_of[back[worst]]);
}

/* Kahn's algorithm: how many nodes come out, in order; the others still wait. */
static uint32_t sort(const hki_graph *g, edges *e, uint32_t *waits, uint32_t *order)
{
    memset(waits, 0, g->nodes * sizeof *waits);
    memset(e->at, 0, (g->nodes + 1) * sizeof *e->at);
    for (uint32_t k = 0; k < e->n; k++) e->at[e->pair[k][0] + 1]++, waits[e->pair[k][1]]++;
    for (uint32_t n = 0; n < g->nodes; n++) e->at[n + 1] += e->at[n];
    for (uint32_t k = 0; k < e->n; k++) e->next[e->at[e->pair[k][0]]++] = e->pair[k][1];
    for (uint32_t n = g->nodes; n > 0; n--) e->at[n] = e->at[n - 1];
    e->at[0] = 0;
    uint32_t done = 0;
    for (uint32_t n = 0; n < g->nodes; n++)
        if (!waits[n]) order[done++] = n;
    for (uint32_t q = 0; q < done; q++)
        for (uint32_t k = e->at[order[q]]; k < e->at[order[q] + 1]; k++)
            if (--waits[e->next[k]] == 0) order[done++] = e->next[k];
    return done;
}

bool hki_graph_order(hki_graph *g, uint32_t slots)
{
    edges e;
    uint32_t *waits = NEW(g, g->nodes, uint32_t), *last = NEW(g, g->ranks, uint32_t);
    if (!edges_new(g, &e)) return false;
    collect(g, &e, last, slots);
    return sort(g, &e, waits, g->order) == g->nodes || blame_circle(g, &e, waits, slots);
}

/* ---- In list order ---- */

static bool can_go(const hki_graph *g, uint32_t n, uint32_t slots, const uint8_t *done)
{
    for (uint32_t k = g->read_at[n]; k < g->read_at[n + 1]; k++)
        if (!done[g->msgs[g->reads[k]].from]) return false;
    if (g->sent_at[n] == g->sent_at[n + 1] || g->seq_of[n] - g->seq_first[g->rank_of[n]] < slots) return true;
    const uint32_t reused = g->seq[g->seq_of[n] - slots];
    for (uint32_t m = g->sent_at[reused]; m < g->sent_at[reused + 1]; m++)
        if (!done[g->msgs[m].to]) return false;
    return true;
}

/* All ranks walk their lists as far as they get. What can go now can go later too, so any schedule gets equally far. */
static bool walks_through(const hki_graph *g, uint32_t slots, uint8_t *done, uint32_t *at)
{
    memset(done, 0, g->nodes);
    memcpy(at, g->first, g->ranks * sizeof *at);
    uint32_t left = g->nodes;
    for (bool moved = true; moved && left;) {
        moved = false;
        for (uint32_t r = 0; r < g->ranks; r++)
            for (; at[r] < g->first[r + 1] && can_go(g, at[r], slots, done); at[r]++, left--) done[at[r]] = 1, moved = true;
    }
    return left == 0;
}

static uint32_t root_of(uint32_t *unit, uint32_t n)
{
    while (unit[n] != n) n = unit[n] = unit[unit[n]];
    return n;
}

/* A send and the reading of its message become one node; then hazards and orders must still be without a circle. */
static void measure_rendezvous(hki_graph *g)
{
    edges e;
    uint32_t *waits = NEW(g, g->nodes, uint32_t), *last = NEW(g, g->ranks, uint32_t), *unit = NEW(g, g->nodes, uint32_t),
             *order = NEW(g, g->nodes, uint32_t), kept = 0;
    if (!edges_new(g, &e)) return;
    for (uint32_t n = 0; n < g->nodes; n++) unit[n] = n;
    for (uint32_t m = 0; m < g->nmsgs; m++) unit[root_of(unit, g->msgs[m].to)] = root_of(unit, g->msgs[m].from);
    collect(g, &e, last, UINT32_MAX);
    for (uint32_t k = 0; k < e.n; k++) {
        const uint32_t from = root_of(unit, e.pair[k][0]), to = root_of(unit, e.pair[k][1]);
        const bool message = g->rank_of[e.pair[k][0]] != g->rank_of[e.pair[k][1]];
        if (!message && from == to) return;
        if (message) continue;
        e.pair[kept][0] = from;
        e.pair[kept++][1] = to;
    }
    e.n = kept;
    g->report->rendezvous = sort(g, &e, waits, order) == g->nodes;
}

void hki_graph_walk(hki_graph *g)
{
    uint8_t *done = hki_graph_alloc(g, g->nodes + 1);
    uint32_t *at = NEW(g, g->ranks, uint32_t);
    if (g->status) return;
    g->report->inline_slots = 0;
    if (walks_through(g, UINT32_MAX, done, at)) {
        g->report->inline_slots = 2;
        while (!walks_through(g, g->report->inline_slots, done, at)) g->report->inline_slots *= 2;
    }
    measure_rendezvous(g);
}
