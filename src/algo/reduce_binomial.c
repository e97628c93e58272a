/* SPDX-License-Identifier: Apache-2.0
 *
 * Binomial reduce: a rank folds what its children's subtrees sent, all at once, and sends the result up. floor(log2 P) rounds,
 * every rank but the root sends one vector: T = ceil(log2 P) (a + n b + n g). The tree starts at the root; for operators that do
 * not commute it starts at rank 0, so that every fold is over neighbouring ranges in rank order, and one more hop brings the
 * result to the root. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank, top = c->red.commutes ? c->root : 0, v = (me + P - top) % P;
    uint32_t child[32];
    const uint32_t n = hki_binomial_children(P, v, child);
    hki_slice part[33] = {hki_in(c)}, mine = part[0];

    for (uint32_t i = 0; i < n; i++) part[i + 1] = hki_from((child[i] + top) % P);
    if (n) {
        mine = me == top && me == c->root ? hki_out(c) : hki_plan_temp(p, hki_in(c));
        hki_plan_reduce(p, mine, part, n + 1);
        if (me == top) hki_plan_finish(p);
    }
    if (v) hki_plan_send(p, (hki_binomial_parent(v) + top) % P, mine);
    if (top == c->root) return;
    if (me == top) hki_plan_send(p, c->root, mine);
    if (me == c->root) hki_plan_recv(p, top, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count, hop = !c->red.commutes && c->root;
    return (hki_cost){.rounds = hki_log2_floor(c->ranks) + hop, .messages = 1, .busiest = n, .total = (P - 1 + hop) * n};
}

const hki_algo hki_algo_reduce_binomial = {
    .name = "binomial",
    .summary = "up a binomial tree: few rounds, whole vectors",
    .ops = HKI_OP_BIT(HKI_REDUCE),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER,
    .emit = emit,
    .cost = cost,
};
