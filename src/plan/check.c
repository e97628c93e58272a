/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/check_graph.h"

#include <string.h>

const char *hki_property_name(hki_property p)
{
    static const char *const names[] = {"none",     "form",   "buffers",     "hazards", "messages",
                                        "deadlock", "result", "association", "finish",  "barrier"};
    return (unsigned)p < HKI_COUNT(names) ? names[p] : "?";
}

/* The longest chain of messages that ends in each node, over what truly depends: hazards and messages. */
static bool measure_rounds(hki_graph *g)
{
    uint32_t *depth = hki_graph_alloc(g, (g->nodes + 1) * sizeof *depth);
    if (!depth) return false;
    for (uint32_t q = 0; q < g->nodes; q++) {
        const uint32_t n = g->order[q], r = g->rank_of[n], i = n - g->first[r];
        const hki_hazards *h = &g->plans[r]->hazards;
        uint32_t d = 0;
        for (uint32_t k = h->at[i]; k < h->at[i + 1]; k++) d = (uint32_t)hki_max(d, depth[g->first[r] + h->pred[k]]);
        for (uint32_t k = g->read_at[n]; k < g->read_at[n + 1]; k++)
            d = (uint32_t)hki_max(d, 1 + depth[g->msgs[g->reads[k]].from]);
        depth[n] = d;
        g->report->rounds = hki_max(g->report->rounds, d);
    }
    return true;
}

static void measure_traffic(hki_graph *g)
{
    hki_check_report *m = g->report;
    for (uint32_t r = 0; r < g->ranks; r++) {
        uint64_t messages, elems;
        hki_plan_sent(g->plans[r], &messages, &elems);
        m->messages = hki_max(m->messages, g->sent_at[g->first[r + 1]] - g->sent_at[g->first[r]]);
        m->busiest = hki_max(m->busiest, elems);
        m->total += elems;
    }
}

/* knows[n]: the ranks that must have entered before node n is done. */
bool hki_check_barrier(hki_graph *g)
{
    const uint32_t words = (g->ranks + 63) / 64;
    uint64_t *knows = hki_graph_alloc(g, ((size_t)g->nodes + 1) * words * sizeof *knows), *all = knows + (size_t)g->nodes * words;
    if (!knows) return false;
    for (uint32_t q = 0; q < g->nodes; q++) {
        const uint32_t n = g->order[q], r = g->rank_of[n], i = n - g->first[r];
        const hki_hazards *h = &g->plans[r]->hazards;
        uint64_t *mine = knows + (size_t)n * words;
        mine[r / 64] |= UINT64_C(1) << r % 64;
        for (uint32_t k = h->at[i]; k < h->at[i + 1]; k++)
            for (uint32_t w = 0; w < words; w++) mine[w] |= knows[(size_t)(g->first[r] + h->pred[k]) * words + w];
        for (uint32_t k = g->read_at[n]; k < g->read_at[n + 1]; k++)
            for (uint32_t w = 0; w < words; w++) mine[w] |= knows[(size_t)g->msgs[g->reads[k]].from * words + w];
    }
    for (uint32_t r = 0; r < g->ranks; r++) {
        memset(all, 0, words * sizeof *all);
        for (uint32_t n = g->first[r]; n < g->first[r + 1]; n++)
            for (uint32_t w = 0; w < words; w++) all[w] |= knows[(size_t)n * words + w];
        for (uint32_t other = 0; other < g->ranks; other++)
            if (other != r && !(all[other / 64] >> other % 64 & 1))
                return hki_graph_blame(g, HKI_CHECK_BARRIER, r, HKI_NOBODY, "leaves before rank %u has come", other);
    }
    return true;
}

static bool check(hki_graph *g, uint32_t slots)
{
    if (!hki_check_form(g) || !hki_graph_match(g) || !hki_check_hazards(g) || !hki_graph_order(g, slots) || !hki_check_values(g))
        return false;
    if (g->plans[0]->call.op == HKI_BARRIER && !hki_check_barrier(g)) return false;
    measure_traffic(g);
    hki_graph_walk(g);
    return measure_rounds(g) && !g->status;
}

hk_status hki_check(hki_plan *const *plans, uint32_t ranks, uint32_t slots, hki_check_report *report)
{
    memset(report, 0, sizeof *report);
    hki_graph g = {.plans = plans, .ranks = ranks, .report = report};
    /* As many as the plans count on. A slot more never adds an edge: sends are in order, so waiting for a later reading implies waiting for
     * all before. */
    if (check(&g, (uint32_t)hki_min(slots, hki_max(plans[0]->call.slots, 2))))
        for (uint32_t r = 0; r < ranks; r++) plans[r]->inline_slots = report->inline_slots;
    for (uint32_t i = 0; i < g.nowned; i++) hki_free(g.owned[i]);
    return g.status;
}
