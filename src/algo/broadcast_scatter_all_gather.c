/* SPDX-License-Identifier: Apache-2.0
 *
 * Scatter and all-gather: the root deals out the vector's parts down a binomial tree, then all gather them on a circulant graph.
 * At most 2 ceil(log2 P) rounds, and no rank sends more than 2(P-1)/P n: T = 2L a + 2(P-1)/P n b. For large vectors. Barnett,
 * Gupta, Payne, Shuler, van de Geijn & Watts, SC'94; all-gather: J. L. Traff, arXiv:2410.14234, 2024. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank, v = (me + P - c->root) % P;
    uint32_t child[32];
    const uint32_t n = hki_binomial_children(P, v, child);

    /* A rank gets the parts of its subtree: its own and those of the ranks behind it. */
    if (v) hki_plan_recv(p, (hki_binomial_parent(v) + c->root) % P, hki_out_parts(c, me, hki_binomial_size(P, v)));
    else hki_plan_copy(p, hki_out_part(c, P, me), hki_in_part(c, P, me));
    for (uint32_t i = n; i-- > 0;) {
        const uint32_t r = (child[i] + c->root) % P, parts = hki_binomial_size(P, child[i]);
        hki_plan_send(p, r, v ? hki_out_parts(c, r, parts) : hki_in_parts(c, r, parts));
    }
    hki_circulant_all_gather(p, c);
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    uint64_t hops = 0; /* of all parts down the tree: one for each set bit of the distance */
    for (uint32_t v = 1; v < P; v++) hops += (uint64_t)__builtin_popcount(v);
    return (hki_cost){.rounds = hki_log2_floor(c->ranks) + hki_circulant_rounds(c->ranks),
                      .messages = 2 * hki_log2_ceil(c->ranks), .busiest = 2 * (P - 1) * (n / P),
                      .total = (hops + P * (P - 1)) * (n / P)};
}

const hki_algo hki_algo_broadcast_scatter_all_gather = {
    .name = "scatter_all_gather",
    .summary = "parts dealt out, then gathered by all: least bytes for large vectors",
    .ops = HKI_OP_BIT(HKI_BROADCAST),
    .span = HKI_SPAN_HALF,
    .emit = emit,
    .cost = cost,
};
