/* SPDX-License-Identifier: Apache-2.0
 *
 * Binomial broadcast: a rank that has the vector hands it to the roots of ever smaller subtrees. The root sends ceil(log2 P)
 * times, no path is longer than floor(log2 P): T = ceil(log2 P) (a + n b). For small vectors. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, v = (c->rank + P - c->root) % P; /* the tree starts at the root */
    uint32_t child[32], to[32];
    const uint32_t n = hki_binomial_children(P, v, child);

    for (uint32_t i = 0; i < n; i++) to[i] = (child[n - 1 - i] + c->root) % P; /* the largest subtree first */
    if (v) hki_plan_recv(p, (hki_binomial_parent(v) + c->root) % P, hki_out(c));
    else hki_plan_copy(p, hki_out(c), hki_in(c));
    hki_plan_multicast(p, to, n, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count, most = hki_log2_ceil(c->ranks);
    return (hki_cost){.rounds = hki_log2_floor(c->ranks), .messages = most, .busiest = most * n, .total = (P - 1) * n};
}

const hki_algo hki_algo_broadcast_binomial = {
    .name = "binomial",
    .summary = "down a binomial tree: few rounds, whole vectors",
    .ops = HKI_OP_BIT(HKI_BROADCAST),
    .span = HKI_SPAN_ALL,
    .emit = emit,
    .cost = cost,
};
